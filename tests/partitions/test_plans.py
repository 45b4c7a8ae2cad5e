"""Plans are maps: what they change, and what they leave as it is."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.errors import ConfigurationError, UsageError
from quorate.keyvalue.slots.cluster_map import (
    META,
    ClusterMap,
    Move,
    decode_map_untrusted,
    encode_map,
)
from quorate.keyvalue.slots.ranges import ALL_SLOTS, parse_slots_untrusted
from quorate.partitions.balance import differences, first_map, rebalanced, split, with_replicas
from quorate.partitions.wishes import abort_move, plan_move, request_moves, with_wishes
from tests.support.partitions_world import Link, machines, opened


def grown(count: int, racks: int = 0) -> ClusterMap:
    """A founded cluster of three machines that has got more of them since."""
    first = first_map("orders", machines(3), 6, 3)
    return msgspec.structs.replace(
        first,
        machines=tuple(machines(count, racks)),
        partitions=tuple(
            msgspec.structs.replace(each, members=each.replicas) for each in first.partitions
        ),
        metadata_members=first.metadata,
    )


def test_an_even_cluster_is_left_alone() -> None:
    first = first_map("orders", machines(5), 10, 3)
    assert rebalanced(first, range(5)) == first
    assert differences(first, first) == []


def test_new_machines_get_replicas_and_leaders() -> None:
    before = grown(6)
    after = rebalanced(before, range(6))
    held = Counter(each for one in after.partitions for each in one.replicas)
    assert [held[each] for each in range(6)] == [3] * 6
    assert Counter(each.preferred for each in after.partitions) == dict.fromkeys(range(6), 1)
    assert "partition 0: replicas" in "\n".join(differences(before, after))


def test_replicas_leave_a_machine_that_is_gone() -> None:
    after = rebalanced(grown(4), {0, 1, 3})
    assert all(each.replicas == (0, 1, 3) for each in after.partitions)
    assert {each.preferred for each in after.partitions} == {0, 1, 3}
    assert after.metadata == (0, 1, 3)
    assert "metadata: replicas 2 -> 3" in differences(grown(4), after)


def test_replicas_stay_where_they_are_if_there_is_no_other_machine() -> None:
    after = rebalanced(grown(3), {0, 1})
    assert all(each.replicas == (0, 1, 2) for each in after.partitions)
    assert {each.preferred for each in after.partitions} == {0, 1}


@given(st.integers(3, 8), st.integers(0, 3), st.data())
def test_every_rebalanced_map_is_even_and_stays_so(
    count: int, racks: int, data: st.DataObject
) -> None:
    well = data.draw(st.sets(st.integers(0, count - 1), min_size=3))
    after = rebalanced(grown(count, racks), well)
    assert decode_map_untrusted(encode_map(after)) == after
    assert all(len(each.replicas) == 3 and {*each.replicas} <= well for each in after.partitions)
    leads = Counter(each.preferred for each in after.partitions)
    if not racks:
        held = Counter(each for one in after.partitions for each in one.replicas)
        assert max(held.values()) - min(held[each] for each in well) <= 1
    assert max(leads.values()) <= 6 // len(well) + 2
    assert rebalanced(after, well).partitions == after.partitions


def test_a_split_moves_half_of_each_partition() -> None:
    before = first_map("orders", machines(3), 4, 3)
    after = decode_map_untrusted(encode_map(split(before)))
    assert len(after.partitions) == 8
    assert [(each.source, each.target) for each in after.moves] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert after.moves[0].slots == "2048-4095"
    assert len({each.move for each in after.moves}) == 4
    assert all(each.slots == each.founded == "" for each in after.partitions[4:])
    assert "partition 4: new, on machines 0, 1, 2" in differences(before, after)
    assert "slots 2048-4095: partition 0 -> 4" in differences(before, after)


def test_partitions_that_would_be_too_many_are_not_split() -> None:
    with pytest.raises(ConfigurationError, match="33 partitions: expected 32 at most"):
        split(first_map("orders", machines(3), 33, 3))


def test_slots_move_from_every_partition_that_has_some() -> None:
    first = first_map("orders", machines(3), 4, 3)
    moves = plan_move(first, parse_slots_untrusted("4000-8200"), 1)
    assert moves == [Move(0, "4000-4095", 0, 1), Move(0, "8192-8200", 2, 1)]
    assert plan_move(first, parse_slots_untrusted("4096"), 1) == []
    with pytest.raises(UsageError, match="partition 4: expected one of 0 to 3"):
        plan_move(first, ALL_SLOTS, 4)


def test_slots_that_move_already_move_nowhere_else() -> None:
    first = first_map("orders", machines(3), 4, 3)
    moving = with_wishes(first, plan_move(first, parse_slots_untrusted("0-10"), 1))
    assert moving is not None
    with pytest.raises(ConfigurationError, match="move 2 has some of them"):
        plan_move(moving, parse_slots_untrusted("5"), 2)
    with pytest.raises(ConfigurationError, match="expected those of partition 0"):
        with_wishes(first, [Move(0, "5000", 0, 2)])


async def test_moves_that_are_asked_for_twice_are_in_the_map_once(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with opened(tmp_path) as world:
        group = Link(world).group(META)
        with pytest.raises(ConfigurationError, match="move 7: no move is under way"):
            await abort_move(group, 7)
        moves = plan_move(world.map(), parse_slots_untrusted("0-99"), 1)
        moves += plan_move(world.map(), parse_slots_untrusted("9000"), 0)
        assert await request_moves(group, moves) == await request_moves(group, moves)
        assert [each.move for each in world.map().moves] == [2, 3]
        assert world.map().epoch == 3
        with pytest.raises(ConfigurationError, match="move 7: expected one of 2, 3"):
            await abort_move(group, 7)
        await abort_move(group, 3)
        assert [each.step for each in world.map().moves] == ["copying", "aborting"]


def test_replicas_go_where_they_are_wanted_and_the_leader_stays_if_it_can() -> None:
    before = grown(5)
    after = with_replicas(before, 1, [4, 0, 1])
    assert after.partitions[1].replicas == (0, 1, 4)
    assert after.partitions[1].preferred == before.partitions[1].preferred
    assert with_replicas(before, 1, [4, 3]).partitions[1].preferred == 4
    assert differences(before, after) == ["partition 1: replicas 2 -> 4"]


@pytest.mark.parametrize(("number", "machines_of"), [(9, [0]), (0, [9]), (0, []), (0, [1, 1])])
def test_replicas_that_cannot_be_are_refused(number: int, machines_of: list[int]) -> None:
    with pytest.raises(UsageError, match="expected"):
        with_replicas(grown(3), number, machines_of)


def test_the_members_that_are_there_stay_in_the_map_until_they_are_gone() -> None:
    """No plan may cut off a group, not even one that has all its members elsewhere."""
    before = grown(6)
    for after in (with_replicas(before, 0, [3, 4, 5]), rebalanced(before, {3, 4, 5})):
        assert after.members_of(0) == (3, 4, 5, 0, 1, 2)
        assert decode_map_untrusted(encode_map(after)) == after
    assert rebalanced(before, {3, 4, 5}).members_of(META) == (3, 4, 5, 0, 1, 2)


def test_members_go_nowhere_as_long_as_it_is_unknown_where_they_are() -> None:
    young = msgspec.structs.replace(
        first_map("orders", machines(3), 2, 3), machines=tuple(machines(6))
    )
    with pytest.raises(ConfigurationError, match="partition 0: by map 1 it is not founded yet"):
        with_replicas(young, 0, [0, 1, 3])
    with pytest.raises(ConfigurationError, match="the metadata group: by map 1 it is not founded"):
        rebalanced(young, {3, 4, 5})
    assert with_replicas(young, 0, [2, 1, 0]) == young
