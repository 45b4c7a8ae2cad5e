"""The director runs where the metadata group is led, and a bug in it harms nobody."""

from pathlib import Path

import msgspec
import pytest
import trio

from quorate.errors import NoLeaderError
from quorate.keyvalue.slots.cluster_map import META
from quorate.keyvalue.slots.folder import Notice, board_file, replace_file
from quorate.machine import direction
from quorate.machine.config import MachineConfig, MachineEntry
from quorate.machine.direction import direct_while_leading, leads
from quorate.machine.maps import map_of_file
from quorate.machine.reach import RemoteGroups
from quorate.node.requests.status import MemberAddress

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
