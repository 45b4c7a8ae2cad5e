"""A disk that fills up: the member stops appending in time, and comes back with room."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import trio

from quorate.errors import NoLeaderError, RefusedError, RequestError
from quorate.node.config.config import PROFILES
from quorate.node.config.limits import Limits
from quorate.node.upkeep.disk_space import DiskSpaceWatch
from quorate.simulation.ledger import equal, open_ledgers
from quorate.storage import ThreadExecutor

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation import Ledger, World

RESERVE = 64 << 20


async def fills_up(world: World[Ledger], i: int) -> None:
    world.hosts[i].disk.room = RESERVE - 1
    await world.until(lambda: world.hosts[i].running.status().disk_full)


async def test_a_leader_whose_disk_fills_up_hands_over_and_comes_back(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        old = await world.settled()
        await world.command(old, b"a")
        seen = len(world.transitions)
        await fills_up(world, old)
        await world.until(lambda: len(world.leaders()) == 1 and world.leaders() != [old])
        new = world.leaders()[0]
        assert "CANDIDATE_BALLOT" not in world.path(old, since=seen)
        for i in range(20):
            await world.command(new, b"b%d" % i)
        position = world.hosts[old].running.store.append_position
        assert position < world.hosts[new].running.store.append_position
        assert world.hosts[old].state.name == "INIT"
        world.hosts[old].disk.room = 2 * RESERVE - 1  # not yet: it would go to and fro
        await world.command(new, b"c")
        assert world.hosts[old].running.status().disk_full
        world.hosts[old].disk.room = 2 * RESERVE
        assert await world.settled() == new
        await equal(world)


async def test_with_a_quorum_of_full_disks_nothing_is_written_and_nothing_is_lost(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        await world.command(leader, b"a")
        for i in world.others(leader):
            await fills_up(world, i)
        with pytest.raises(RequestError):
            await world.command(leader, b"unknown or refused")
        with pytest.raises(NoLeaderError):
            await world.command(leader, b"refused")
        for host in world.hosts.values():
            host.disk.room = 2 * RESERVE
        leader = await world.settled()
        await world.command(leader, b"b")
        await equal(world)
        payloads = world.hosts[leader].service.payloads
        assert payloads[0] == b"a"
        assert payloads[-1] == b"b"
        assert b"refused" not in payloads


async def test_a_snapshot_does_not_take_the_reserve(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        await world.command(leader, b"a")
        member = world.hosts[leader].running
        world.hosts[leader].disk.room = 2 * RESERVE - 1
        with pytest.raises(RefusedError, match=r"no snapshot at \d+: \d+ bytes are free"):
            await member.control("snapshot")
        assert "bytes are free" in member.status().snapshot_failure
        assert member.store.snapshots == ()
        assert list((world.hosts[leader].config.directory / "snapshots").iterdir()) == []
        world.hosts[leader].disk.room = 2 * RESERVE
        assert (await member.control("snapshot")).startswith("snapshot at")
        assert member.status().snapshot_failure == ""


async def test_a_disk_that_does_not_answer_holds_up_no_loop(tmp_path: Path) -> None:
    limits, timeouts = Limits(), PROFILES["lan"]
    config = SimpleNamespace(limits=limits, directory=tmp_path)
    state: Any = SimpleNamespace(config=config, disk_full=False, timeouts=timeouts, role=None)
    store: Any = SimpleNamespace(submitted_position=0)
    answers = threading.Event()

    def free(_directory: Path) -> int:
        answers.wait()
        return 1 << 40

    lane = ThreadExecutor[Any](lambda _: None)
    watch = DiskSpaceWatch(state, store, free, lane)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            await trio.sleep(0.02)
            assert watch.free_bytes is None
            answers.set()
            while watch.free_bytes is None:  # noqa: ASYNC110 - a thread finds it
                await trio.sleep(0.001)
            nursery.cancel_scope.cancel()
    assert watch.size_bytes > 0
