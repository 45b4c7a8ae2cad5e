"""Leadership returns to the preferred member once it is steady, and does not go to and fro."""

from __future__ import annotations

import itertools
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from quorate.errors import RequestError
from quorate.node import State
from quorate.node.leader.preference import STEADY_TIMEOUTS
from quorate.simulation.ledger import equal, open_ledgers
from quorate.simulation.world import TIMEOUTS
from quorate.transport import Scout

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation import Ledger, World

STEADY = STEADY_TIMEOUTS * TIMEOUTS.leader_heartbeat_timeout
SOON = TIMEOUTS.leader_heartbeat_timeout


@asynccontextmanager
async def open_world(
    directory: Path, *priorities: int, seed: int = 0
) -> AsyncGenerator[World[Ledger]]:
    """A cluster whose members have those priorities, that has settled."""
    async with open_ledgers(directory, len(priorities), seed=seed) as world:
        for host in world.hosts.values():
            members = zip(host.config.members, priorities, strict=True)
            preferring = tuple(attrs.evolve(one, priority=level) for one, level in members)
            host.config = attrs.evolve(host.config, members=preferring)
        await world.start()
        await world.settled()
        yield world


def terms(world: World[Ledger]) -> int:
    """How many terms were led."""
    return sum(each.after is State.LEADER_READY for each in world.transitions)


async def test_it_returns_after_trouble_and_not_before_a_while(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, 0, 0, 5) as world:
        await world.until(lambda: world.leaders() == [2], within=STEADY + 1)
        await world.kill(2)
        await world.leader()
        await world.start(2)
        other = await world.settled()
        back = trio.current_time()
        await trio.sleep(STEADY - 2 * SOON)
        assert world.leaders() == [other]
        await world.until(lambda: world.leaders() == [2], within=3 * SOON)
        assert trio.current_time() - back < STEADY + SOON
        before = terms(world)
        await trio.sleep(20 * STEADY)
        assert (world.leaders(), terms(world)) == ([2], before)  # and there it stays


async def test_the_highest_that_is_there_gets_it_and_equals_leave_each_other_alone(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, 1, 7, 7, 0, 9) as world:
        await world.until(lambda: world.leaders() == [4], within=2 * STEADY)
        await world.kill(4)
        leader = await world.leader()
        await trio.sleep(3 * STEADY)
        (later,) = world.leaders()
        assert later in {1, 2}
        assert later == leader or leader in {0, 3}


async def test_a_member_that_is_not_level_does_not_get_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, 0, 0, 5) as world:
        await world.until(lambda: world.leaders() == [2], within=STEADY + 1)
        await world.kill(2)
        other = await world.leader()
        world.hosts[2].disk.latency = 0.4  # always some entries behind
        await world.start(2)
        end = trio.current_time() + 1.5 * STEADY
        with trio.move_on_at(end):
            while True:
                await world.command(other, b"x")
                await trio.sleep(0.1)
        assert world.leaders() == [other]


async def test_an_operators_choice_stands_until_there_is_trouble(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, 0, 0, 5) as world:
        await world.until(lambda: world.leaders() == [2], within=STEADY + 1)
        await world.hosts[0].running.control("transfer 1")
        await world.settled()
        await trio.sleep(5 * STEADY)
        assert world.leaders() == [1]
        await world.kill(1)
        await world.leader()
        await world.until(lambda: world.leaders() == [2], within=2 * STEADY)


@pytest.mark.slow
async def test_who_fails_again_and_again_gets_it_ever_more_rarely(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_world(tmp_path, 0, 5, 0) as world:
        await world.until(lambda: world.leaders() == [1], within=STEADY + 1)
        # Member 2 never stands, so that it is always member 0 that hands over.
        world.messages.drop(lambda sender, _, what: sender == 2 and isinstance(what, Scout))
        gaps: list[float] = []
        for _ in range(4):
            world.isolate(1)
            await trio.sleep(3 * SOON)
            world.mend()
            assert await world.settled() == 0
            since = trio.current_time()
            await world.until(lambda: world.leaders() == [1], within=20 * STEADY)
            gaps.append(trio.current_time() - since)
        assert gaps[0] == pytest.approx(STEADY, abs=SOON)
        assert all(1.8 < b / a < 2.2 for a, b in itertools.pairwise(gaps)), gaps
        await trio.sleep(20 * STEADY)  # this time it lasts
        world.isolate(1)
        await trio.sleep(3 * SOON)
        world.mend()
        await world.settled()
        await trio.sleep(STEADY + SOON)
        assert world.leaders() == [1]


@pytest.mark.parametrize("seed", range(2))
async def test_under_faults_no_write_is_lost_and_it_ends_with_the_preferred(
    tmp_path: Path, autojump_clock: MockClock, seed: int
) -> None:
    rng = random.Random(seed)
    async with open_world(tmp_path, 0, 3, 1, seed=seed) as world:
        done: list[bytes] = []

        async def write(at: int) -> None:
            for i in range(10**6):
                payload = b"%d-%d" % (at, i)
                try:
                    with trio.fail_after(1.0):
                        await world.hosts[at].running.command(payload)
                    done.append(payload)
                except (RequestError, trio.TooSlowError):
                    pass
                await trio.sleep(0.2)

        async with trio.open_nursery() as nursery:
            for at in world.hosts:
                nursery.start_soon(write, at)
            for _ in range(4):
                victim = rng.randrange(3)
                world.isolate(victim)
                await trio.sleep(rng.uniform(0.1, 1.5))
                world.mend()
                await trio.sleep(rng.choice((0.5, STEADY + 1)))
            await world.until(lambda: world.leaders() == [1], within=3 * STEADY)
            nursery.cancel_scope.cancel()
        await equal(world)
        assert set(done) <= set(world.hosts[1].service.payloads)
