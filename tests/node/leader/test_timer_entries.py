"""When the log falls idle its commit position is recorded, once, for readers of a directory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio
import trio.abc

from quorate.node.leader.log_clock import IDLE_SECONDS
from quorate.simulation.ledger import open_ledgers
from quorate.storage import EntryKind, decode_entries_untrusted, decode_header_untrusted
from quorate.storage.tools.describe import describe

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation import Ledger, World

SOON = 2 * IDLE_SECONDS + 0.5


def kinds(world: World[Ledger], at: int, since: int = 0) -> list[EntryKind]:
    """The kinds of the entries in a member's log."""
    batches = world.hosts[at].running.store.scan(since)
    return [entry.kind for batch in batches for entry in decode_entries_untrusted(batch)]


def committed(world: World[Ledger], at: int) -> int:
    """How far a reader takes a member's log for committed that has nothing but its directory."""
    return world.hosts[at].running.store.recorded.last_commit_position


def end_of_commands(world: World[Ledger], at: int) -> int:
    """Where the last batch with a command ends."""
    return max(
        decode_header_untrusted(batch).end
        for batch in world.hosts[at].running.store.scan(0)
        if any(each.kind is EntryKind.COMMAND for each in decode_entries_untrusted(batch))
    )


async def test_readers_of_a_directory_get_the_last_batch_of_an_idle_cluster(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        assert await world.command(leader, b"x") == b"1"
        end = end_of_commands(world, leader)
        assert committed(world, leader) < end
        await trio.sleep(SOON)
        assert all(committed(world, i) >= end for i in world.hosts)


async def test_an_idle_cluster_records_once_and_rests(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        await trio.sleep(SOON)
        store = world.hosts[leader].running.store
        end = store.append_position
        assert kinds(world, leader) == [EntryKind.NEW_LEADERSHIP_TERM, EntryKind.TIMER]
        await trio.sleep(10)
        assert store.append_position == end
        for _ in range(2):
            for _ in range(3):
                await world.command(leader, b"x")
                await trio.sleep(IDLE_SECONDS / 2)
            await trio.sleep(SOON)
        three = [EntryKind.COMMAND] * 3 + [EntryKind.TIMER]
        assert kinds(world, leader, end) == 2 * three


async def test_an_idle_log_gets_its_entry_although_a_timer_is_due_much_later(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        applier, service = world.hosts[leader].running.applier, world.hosts[leader].service
        day_ms = 86_400_000
        service.next_deadline_ms = lambda: applier.timestamp_ms + day_ms  # type: ignore[method-assign]
        await world.command(leader, b"x")
        await trio.sleep(SOON)
        assert await world.command(leader, b"y") == b"2"
        await trio.sleep(SOON)
        assert all(committed(world, i) >= end_of_commands(world, leader) for i in world.hosts)


async def test_what_could_not_be_committed_is_recorded_when_it_is(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        await trio.sleep(SOON)
        for other in world.others(leader):
            world.hosts[other].disk.stall(5 * IDLE_SECONDS)
        assert await world.command(leader, b"x") == b"1"
        await trio.sleep(SOON)
        assert all(committed(world, i) >= end_of_commands(world, leader) for i in world.hosts)
        assert kinds(world, leader)[-2:] == [EntryKind.COMMAND, EntryKind.TIMER]


async def test_the_directory_of_a_lone_member_that_was_killed_has_it_too(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path, 1) as world:
        await world.start()
        await world.settled()
        assert await world.command(0, b"x") == b"1"
        await trio.sleep(SOON)
        end = end_of_commands(world, 0)
        await world.kill(0)
        assert describe(world.hosts[0].config.directory / "log").commit_position >= end


class Creeping(trio.abc.Clock):
    """Virtual time in which each look at the clock takes a microsecond, as with a real one."""

    def __init__(self) -> None:
        self.now = 0.0

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        self.now += 1e-6
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Skip the wait: trio asks only if nothing else is to be done."""
        if deadline < math.inf:
            self.now = max(self.now, deadline)
        return 0.0


def test_entries_are_recorded_while_a_service_wants_the_time_to_move(tmp_path: Path) -> None:
    async def wants_time() -> int:
        async with open_ledgers(tmp_path, 1) as world:
            await world.start()
            leader = await world.leader()
            applier, service = world.hosts[leader].running.applier, world.hosts[leader].service
            service.next_deadline_ms = lambda: applier.timestamp_ms + 500  # type: ignore[method-assign]
            assert await world.command(leader, b"x") == b"1"
            await trio.sleep(5)
            return kinds(world, leader).count(EntryKind.TIMER)

    assert 8 <= trio.run(wants_time, clock=Creeping()) <= 11
