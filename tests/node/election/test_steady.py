"""Members that are slow now and then, as on a busy machine, hold no election."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import trio

from quorate.simulation.ledger import open_ledgers
from quorate.simulation.world import TIMEOUTS
from quorate.transport.testing.direction import Pace

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation import Ledger, World

SECONDS = 20.0
TIMEOUT = TIMEOUTS.leader_heartbeat_timeout

LONGEST = 0.7 * TIMEOUT
"""For which a process is held up, or a disk completes nothing; then all goes on as before."""


async def hold_up(world: World[Ledger], rng: random.Random) -> None:
    """Hold up processes, all at once perhaps, again and again."""
    while True:
        await trio.sleep(rng.expovariate(1 / TIMEOUT))
        some = rng.sample(list(world.hosts), rng.randint(1, len(world.hosts)))
        for each in some:
            world.pause(each)
        await trio.sleep(rng.random() * LONGEST)
        for each in some:
            world.resume(each)


async def hold_up_disks(world: World[Ledger], rng: random.Random) -> None:
    """Have disks stand still for a while, again and again."""
    while True:
        await trio.sleep(TIMEOUT + rng.expovariate(1 / TIMEOUT))
        world.hosts[rng.choice(list(world.hosts))].disk.stall(rng.random() * LONGEST)


async def slow_down_links(world: World[Ledger], rng: random.Random) -> None:
    """Make links slower and faster."""
    while True:
        one, other = rng.sample(list(world.hosts), 2)
        pace = Pace(0.0005, 0.1 * TIMEOUT * rng.random())
        world.network.set_pace(f"h{one}", f"h{other}", pace, both=False)
        await trio.sleep(rng.random())


async def write(world: World[Ledger]) -> None:
    """Load the leader."""
    for i in range(10**9):
        (leader,) = world.leaders()
        assert await world.attempt(leader, b"%d" % i, within=10.0)
        await trio.sleep(0.02)


@pytest.mark.parametrize("members", [3, pytest.param(5, marks=pytest.mark.slow)])
async def test_nobody_is_elected_while_nothing_fails(
    tmp_path: Path, autojump_clock: MockClock, members: int
) -> None:
    rng = random.Random(members)
    async with open_ledgers(tmp_path, members, seed=members) as world:
        await world.start()
        leader = await world.settled()
        term, seen = world.hosts[leader].running.status().term, len(world.transitions)
        async with trio.open_nursery() as nursery:
            for trouble in (hold_up, hold_up_disks, slow_down_links):
                nursery.start_soon(trouble, world, rng)
            nursery.start_soon(write, world)
            await trio.sleep(SECONDS)
            nursery.cancel_scope.cancel()
        assert world.leaders() == [leader]
        assert world.transitions[seen:] == []
        assert world.hosts[leader].running.status().term == term
        assert len(world.acked) > SECONDS
