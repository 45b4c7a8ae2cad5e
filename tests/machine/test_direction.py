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

MACHINES = tuple(MachineEntry(n, f"10.0.0.{n}", 7000, 17000) for n in range(3))


def note(config: MachineConfig, leader: int | None) -> None:
    notice = msgspec.json.encode(Notice(leader, 1))
    replace_file(board_file(config.directory, META), notice)


def test_a_machine_leads_if_its_notice_names_it(tmp_path: Path) -> None:
    config = MachineConfig("orders", 1, MACHINES, 2, tmp_path)
    assert not leads(config)
    for leader, is_us in ((1, True), (2, False), (None, False), (1, True)):
        note(config, leader)
        assert leads(config) == is_us
    board_file(tmp_path, META).write_bytes(b"{")
    assert not leads(config)


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
    config = MachineConfig("orders", 1, MACHINES, 2, tmp_path)
    first = map_of_file(config)
    async with trio.open_nursery() as nursery:
        groups = RemoteGroups(nursery, lambda: first)
        nursery.start_soon(direct_while_leading, config, groups, first)
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
