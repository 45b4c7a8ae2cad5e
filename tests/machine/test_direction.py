"""The director runs where the metadata group is led, and a bug in it harms nobody."""

from pathlib import Path

import msgspec
import pytest
import trio

from quorate.errors import NoLeaderError
from quorate.keyvalue.slots.cluster_map import META, ClusterMap, encode_map
from quorate.keyvalue.slots.folder import Notice, board_file, replace_file
from quorate.keyvalue.slots.ranges import parse_slots_untrusted
from quorate.machine import direction
from quorate.machine.config import MachineConfig, MachineEntry
from quorate.machine.direction import direct_while_leading, leads
from quorate.machine.map_watch import KnownMap
from quorate.machine.maps import map_of_file
from quorate.machine.reach import RemoteGroups
from quorate.node.requests.status import MemberAddress
from quorate.partitions.metadata import LOST_EPOCHS, again
from quorate.partitions.wishes import plan_move, request_moves
from tests.support.partitions_world import Link, opened

MACHINES = tuple(MachineEntry(n, f"10.0.0.{n}", 7000, 17000) for n in range(3))


def note(config: MachineConfig, leader: int | None) -> None:
    notice = msgspec.json.encode(Notice(leader, 1))
    replace_file(board_file(config.directory, META), notice)


class Said:
    """What the machine's member answers when it is asked whether it leads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.leads: bool | None = True
        monkeypatch.setattr(direction, "says_it_leads", self.answer)

    async def answer(self, address: MemberAddress) -> bool | None:
        assert (address.member_id, address.client_port) == (1, 7000)
        return self.leads


async def test_a_machine_leads_if_its_notice_names_it_and_its_member_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = MachineConfig("orders", 1, MACHINES, 2, tmp_path)
    said = Said(monkeypatch)
    assert not await leads(config)
    for leader, is_us in ((1, True), (2, False), (None, False), (1, True)):
        note(config, leader)
        assert await leads(config) == is_us
    for said.leads in (None, False):  # the notice is of another life
        assert not await leads(config)
    said.leads = True
    board_file(tmp_path, META).write_bytes(b"{")
    assert not await leads(config)


async def test_a_director_stops_when_its_member_leads_no_more_or_is_silent(
    tmp_path: Path, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    directs = [False]

    async def direct(_groups: object, _first: object) -> None:
        directs[0] = True
        try:
            await trio.sleep_forever()
        finally:
            directs[0] = False

    monkeypatch.setattr(direction, "_found_and_direct", direct)
    config, said = MachineConfig("orders", 1, MACHINES, 2, tmp_path), Said(monkeypatch)
    note(config, 1)
    async with trio.open_nursery() as nursery:
        groups = RemoteGroups(nursery, lambda: map_of_file(config))
        nursery.start_soon(direct_while_leading, config, groups, lambda: None)
        await trio.sleep(2)
        assert directs == [True]
        said.leads = False
        await trio.sleep(2)
        assert directs == [False]
        said.leads = True
        await trio.sleep(2)
        said.leads = None  # it is busy, or hangs
        await trio.sleep(5)
        assert directs == [True]
        await trio.sleep(10)
        assert directs == [False]
        nursery.cancel_scope.cancel()


async def test_the_director_comes_and_goes_with_the_leadership_and_outlives_errors(
    tmp_path: Path, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = list[float]()

    async def directs(_groups: object, _first: object) -> None:
        runs.append(trio.current_time())
        if len(runs) == 1:
            raise NoLeaderError("none")
        if len(runs) == 2:
            raise ValueError("a bug")
        await trio.sleep_forever()

    monkeypatch.setattr(direction, "_found_and_direct", directs)
    Said(monkeypatch)
    config = MachineConfig("orders", 1, MACHINES, 2, tmp_path)
    first = map_of_file(config)
    async with trio.open_nursery() as nursery:
        groups = RemoteGroups(nursery, lambda: first)
        nursery.start_soon(direct_while_leading, config, groups, lambda: first)
        await trio.sleep(5)
        assert runs == []
        note(config, 1)
        await trio.sleep(5)
        assert len(runs) == 3
        note(config, 2)
        await trio.sleep(5)
        note(config, 1)
        await trio.sleep(5)
        assert len(runs) == 4
        nursery.cancel_scope.cancel()


async def test_a_metadata_group_that_loses_its_map_gets_the_newest_one_again(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    async with opened(tmp_path) as world:
        groups = Link(world)
        known = KnownMap(tmp_path, "orders", 0)
        first = world.map()
        known.offer(encode_map(first))

        def begins_with() -> ClusterMap:
            assert known.newest is not None
            return again(known.newest)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(direction.direct_again, groups, begins_with)
            slots = parse_slots_untrusted("0-99")
            await request_moves(groups.group(META), plan_move(first, slots, 1))
            await trio.sleep(20)
            begun = world.map()
            assert begun.partitions[1].slots.startswith("0-99")
            known.offer(encode_map(begun))
            world.groups[META].run((b"FLUSHALL",))
            await trio.sleep(5)
            nursery.cancel_scope.cancel()
        there = world.map()
        assert there.partitions == begun.partitions
        assert known.offer(encode_map(there)), "machines take it, since its epoch is higher"
        assert there.epoch < 3 * LOST_EPOCHS
