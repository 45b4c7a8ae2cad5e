"""A machine looks for the map, and the director for those who lead, before they act."""

from pathlib import Path

import msgspec
import pytest
import trio

from quorate.errors import ConfigurationError, NoLeaderError
from quorate.keyvalue.slots.cluster_map import META, ClusterMap
from quorate.local.survey import Survey
from quorate.machine import finding, reach
from quorate.machine.config import MachineConfig, MachineEntry
from quorate.machine.finding import look_for_map
from quorate.machine.map_watch import KnownMap
from quorate.machine.maps import map_of_file
from quorate.machine.reach import RemoteGroups
from quorate.node.requests.status import MemberAddress

MACHINES = tuple(MachineEntry(n, f"10.0.0.{n}", 7000, 17000) for n in range(3))


async def test_a_machine_without_a_map_asks_all_members_of_the_others_for_it(
    tmp_path: Path, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = MachineConfig("orders", 0, MACHINES, 2, tmp_path)
    asked, first = set[tuple[int, int]](), map_of_file(config)

    async def ask(address: MemberAddress) -> ClusterMap:
        asked.add((address.member_id, address.client_port))
        if address.client_port == 7000:
            raise ConfigurationError("it knows none yet")
        if address.client_port == 7001:
            await trio.sleep_forever()
        return msgspec.structs.replace(first, epoch=address.member_id + 5)

    monkeypatch.setattr(finding, "ask_for_map", ask)
    known = KnownMap(tmp_path, "orders", 0)
    await look_for_map(config, known)
    assert asked == {(n, port) for n in (1, 2) for port in (7000, 7001, 7002)}
    assert known.newest is not None
    assert known.newest.epoch == 7
    assert known.newest == KnownMap(tmp_path, "orders", 0).newest


async def test_a_request_of_the_director_goes_on_to_a_member_that_knows_a_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = map_of_file(MachineConfig("orders", 0, MACHINES, 2, tmp_path))
    asked = list[int]()

    async def control(address: MemberAddress, words: str) -> str | None:
        asked.append(address.member_id)
        if address.member_id == 0:
            raise NoLeaderError("it has no seat")
        return None if address.member_id == 1 else words

    async def nobody(_members: object) -> Survey:
        return Survey(())

    monkeypatch.setattr(reach, "_control", control)
    monkeypatch.setattr(reach, "survey", nobody)
    async with trio.open_nursery() as nursery:
        group = RemoteGroups(nursery, lambda: first).group(META)
        assert await group.control("member list") == "member list"
    assert asked == [0, 1, 2]
