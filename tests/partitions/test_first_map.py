"""The first map spreads replicas, leaders and slots evenly."""

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.errors import ConfigurationError
from quorate.keyvalue.slots.cluster_map import decode_map_untrusted, encode_map
from quorate.keyvalue.slots.ranges import ALL_SLOTS, count_of, parse_slots_untrusted
from quorate.partitions.balance import first_map
from tests.support.partitions_world import machines


def test_three_machines_lead_in_turn() -> None:
    first = first_map("orders", machines(3), 4, 3)
    assert [each.preferred for each in first.partitions] == [0, 1, 2, 0]
    assert [each.replicas for each in first.partitions] == [(0, 1, 2)] * 4
    assert first.partitions[1].slots == first.partitions[1].founded == "4096-8191"
    assert first.metadata == (0, 1, 2)


@given(count=st.integers(1, 9), partitions=st.integers(1, 20), data=st.data())
def test_every_map_is_even(count: int, partitions: int, data: st.DataObject) -> None:
    replicas = data.draw(st.integers(1, count))
    first = first_map("orders", machines(count), partitions, replicas)
    assert decode_map_untrusted(encode_map(first)) == first
    slots = [parse_slots_untrusted(each.slots) for each in first.partitions]
    assert sum(slots) == ALL_SLOTS
    assert max(map(count_of, slots)) - min(map(count_of, slots)) <= 1
    held = Counter(each for one in first.partitions for each in one.replicas)
    loads = [held[each] for each in range(count)]
    assert max(loads) - min(loads) <= 1
    leads = Counter(each.preferred for each in first.partitions)
    assert max(leads.values()) - min(leads[each] for each in range(count)) <= 2
    assert all(len(each.replicas) == replicas for each in first.partitions)


def test_replicas_lie_in_different_racks() -> None:
    racked = machines(6, racks=3)
    racks = {each.machine_id: each.rack for each in racked}
    for each in first_map("orders", racked, 12, 3).partitions:
        assert len({racks[machine] for machine in each.replicas}) == 3


@pytest.mark.parametrize(
    ("count", "partitions", "replicas", "words"),
    [
        (3, 4, 4, "replicas = 4: expected 1 to 3"),
        (3, 0, 3, "partitions = 0: expected 1 to 64"),
        (3, 65, 3, "partitions = 65"),
    ],
)
def test_a_wrong_number_is_refused(count: int, partitions: int, replicas: int, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        first_map("orders", machines(count), partitions, replicas)


@pytest.mark.parametrize("changes", [{"host": "x\r\n+OK"}, {"port": 65_500}, {"member_port": -1}])
def test_a_map_with_what_is_no_address_is_none(changes: dict[str, Any]) -> None:
    first = first_map("orders", machines(2), 1, 1)
    bad = msgspec.structs.replace(first.machines[0], **changes)
    found = msgspec.structs.replace(first, machines=(bad, first.machines[1]))
    with pytest.raises(ConfigurationError, match="machine 0 has"):
        decode_map_untrusted(encode_map(found))
