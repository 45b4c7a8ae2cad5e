"""Applying takes turns with everything else, and what is committed is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from quorate.simulation import Ledger, Setting, open_world
from quorate.simulation.ledger import equal
from quorate.simulation.world import TIMEOUTS

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.node import Command
    from quorate.simulation import World

EACH_SECONDS = 0.02
COMMANDS = 150  # far more work than a leader may be silent for, and all of it in one batch


class Slow(Ledger):
    """A ledger whose commands can be made to take their time, as if it was computing."""

    clock: MockClock | None = None

    def apply(self, command: Command) -> bytes:
        if self.clock is not None:
            self.clock.jump(EACH_SECONDS)
        return super().apply(command)

    def query(self, payload: bytes, flags: int) -> bytes:
        if self.clock is not None:
            self.clock.jump(EACH_SECONDS)
        return super().query(payload, flags)


def open_slow_world(directory: Path) -> AbstractAsyncContextManager[World[Slow]]:
    return open_world(directory, Slow, Setting(members=3))


def make_slow(world: World[Slow], clock: MockClock) -> None:
    for host in world.hosts.values():
        host.service.clock = clock


async def send_all(world: World[Slow], leader: int, answers: list[bytes]) -> None:
    async def send(payload: bytes) -> None:
        answers.append(await world.command(leader, payload))

    async with trio.open_nursery() as nursery:
        for i in range(COMMANDS):
            nursery.start_soon(send, b"%d" % i)


async def test_a_batch_that_takes_long_to_apply_costs_no_election(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    assert 4 * TIMEOUTS.leader_heartbeat_timeout < COMMANDS * EACH_SECONDS
    async with open_slow_world(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        held = len(world.transitions)
        make_slow(world, autojump_clock)
        answers: list[bytes] = []
        await send_all(world, leader, answers)
        await equal(world)
        assert sorted(map(int, answers)) == list(range(1, COMMANDS + 1))
        assert {each.payload for each in world.hosts[leader].service.commands} == {
            b"%d" % i for i in range(COMMANDS)
        }
        assert len(world.transitions) == held


async def test_a_read_waits_until_what_is_committed_is_applied(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_slow_world(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        member, service = world.hosts[leader].running, world.hosts[leader].service
        make_slow(world, autojump_clock)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_all, world, leader, list[bytes]())
            await world.until(lambda: 0 < len(service.commands) < COMMANDS)
            assert member.applier.lagging
            assert await member.query(b"") == b"%d" % COMMANDS


async def test_what_is_committed_is_answered_although_its_leader_was_deposed_meanwhile(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_slow_world(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        service = world.hosts[leader].service
        make_slow(world, autojump_clock)
        answers: list[bytes] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_all, world, leader, answers)
            await world.until(lambda: 0 < len(service.commands) < COMMANDS)
            world.hosts[leader].running.state.role.end("deposed by the test")
            await world.until(lambda: not world.leaders())
            assert len(service.commands) < COMMANDS
        assert sorted(map(int, answers)) == list(range(1, COMMANDS + 1))


async def test_reads_that_take_long_together_let_others_have_their_turns(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_slow_world(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        member = world.hosts[leader].running
        make_slow(world, autojump_clock)
        answers: list[bytes] = []

        async def ask() -> None:
            answers.append(await member.query(b""))

        async with trio.open_nursery() as nursery:
            for _ in range(COMMANDS):
                nursery.start_soon(ask)
            longest = 0.0
            while len(answers) < COMMANDS:
                before = trio.current_time()
                await trio.sleep(EACH_SECONDS / 10)
                longest = max(longest, trio.current_time() - before)
        assert answers == [b"0"] * COMMANDS
        assert EACH_SECONDS <= longest < 3 * EACH_SECONDS


async def test_a_confirmed_read_is_asked_anew_when_the_leader_goes_before_its_turn(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_slow_world(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        member = world.hosts[leader].running
        make_slow(world, autojump_clock)
        answers: list[bytes] = []

        async def ask() -> None:
            answers.append(await member.query(b""))

        async with trio.open_nursery() as nursery:
            for _ in range(COMMANDS):
                nursery.start_soon(ask)
            await world.until(lambda: 0 < len(answers) < COMMANDS)
            member.state.role.end("deposed by the test")
            await world.until(lambda: not world.leaders())
            assert len(answers) < COMMANDS
        assert answers == [b"0"] * COMMANDS
