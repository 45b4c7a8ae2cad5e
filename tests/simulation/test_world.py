"""What can be done to a machine of the world, and what its cluster makes of it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from quorate.errors import StoreFullError
from quorate.simulation import Ledger, Observer, Setting, ViolationError, World, open_world
from quorate.simulation.ledger import equal
from quorate.simulation.machines.clock import EPOCH_MS, Clock
from quorate.simulation.machines.disk import Fate

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path


@asynccontextmanager
async def cluster(directory: Path, *, contain: bool = False) -> AsyncGenerator[World[Ledger]]:
    """Three members that have started, under observation."""
    setting = Setting(members=3, contain=contain)
    async with open_world(directory, Ledger, setting, observer=Observer([0, 1, 2])) as world:
        await world.start()
        await world.settled()
        yield world


async def test_a_paused_leader_is_replaced_and_follows_when_it_goes_on(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with cluster(tmp_path) as world:
        old = world.leaders()[0]
        assert await world.attempt(old, b"before")
        world.pause(old)
        await world.until(lambda: any(i != old for i in world.leaders()))
        assert old in world.leaders()  # it does not know yet
        (new,) = (i for i in world.leaders() if i != old)
        assert await world.attempt(new, b"meanwhile")
        world.resume(old)
        await world.until(lambda: world.leaders() == [new])
        await equal(world, [b"before", b"meanwhile"])


async def test_a_read_at_a_leader_that_was_paused_is_not_stale(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with cluster(tmp_path) as world, trio.open_nursery() as nursery:
        old = world.leaders()[0]
        replies: list[bytes] = []

        async def read() -> None:
            replies.append(await world.hosts[old].running.query(b""))

        world.pause(old)
        await world.until(lambda: any(i != old for i in world.leaders()))
        (new,) = (i for i in world.leaders() if i != old)
        assert await world.attempt(new, b"meanwhile")
        nursery.start_soon(read)
        await trio.sleep(0.1)
        world.resume(old)
        await world.until(lambda: bool(replies))
        assert replies == [b"1"]


@pytest.mark.parametrize("fate", Fate)
async def test_nobody_hears_of_lost_power_but_by_silence(
    tmp_path: Path, autojump_clock: object, fate: Fate
) -> None:
    async with cluster(tmp_path) as world:
        old = world.leaders()[0]
        await world.attempt(old, b"one")
        since = trio.current_time()
        await world.cut_power(old, fate=fate)
        new = await world.leader()
        assert trio.current_time() - since > world.setting.timeouts.leader_heartbeat_timeout / 2
        assert await world.attempt(new, b"two")
        await world.start(old)
        await equal(world, [b"one", b"two"])


@pytest.mark.parametrize("steps", range(0, 60, 4))
async def test_a_member_that_dies_at_any_step_comes_back(
    tmp_path: Path, autojump_clock: object, steps: int
) -> None:
    async with cluster(tmp_path) as world:
        victim = world.hosts[world.leaders()[0]]
        victim.crash_after(steps, lambda: victim.cut_power(Fate.TORN))
        await world.attempt(victim.member_id, b"one", within=0.2)
        await world.until(lambda: victim.stopped)
        await world.start(victim.member_id)
        assert await world.attempt(await world.settled(), b"two")
        await equal(world)


async def test_a_wiped_member_gets_everything_again(tmp_path: Path, autojump_clock: object) -> None:
    async with cluster(tmp_path) as world:
        leader = world.leaders()[0]
        assert await world.attempt(leader, b"one")
        (other, _) = world.others(leader)
        await world.wipe(other)
        await world.start(other)
        await equal(world, [b"one"])
        assert world.hosts[other].running.store.append_position > 0


async def test_a_member_on_a_full_disk_stops_and_the_others_serve(
    tmp_path: Path, autojump_clock: object
) -> None:
    async with cluster(tmp_path, contain=True) as world:
        leader = world.leaders()[0]
        world.hosts[leader].disk.full = StoreFullError("no space left on device")
        assert not await world.attempt(leader, b"one")
        await world.until(lambda: world.hosts[leader].stopped)
        assert "no space left" in repr(world.failures[leader])
        assert await world.attempt(await world.leader(), b"two")


async def test_clocks_are_off_and_run_at_their_own_rate(
    tmp_path: Path, autojump_clock: object
) -> None:
    clock = Clock(rate=2.0, offset_ms=-3_600_000)
    setting = Setting(members=1)
    async with open_world(tmp_path, Ledger, setting) as world:
        host = world.hosts[0]
        host.clock = clock
        await trio.sleep(10.0)
        assert clock.now_ms() == EPOCH_MS - 3_600_000 + 20_000
        await world.start()
        timeouts = host.running.state.timeouts
        assert timeouts.leader_heartbeat_timeout == setting.timeouts.leader_heartbeat_timeout / 2
        await world.settled()
        await world.attempt(0, b"x")
        assert host.service.commands[0].timestamp_ms < EPOCH_MS - 3_500_000
        clock.jump(7_200_000)
        assert clock.now_ms() > EPOCH_MS + 3_500_000
        await world.attempt(0, b"y")  # a member follows no jump before it has lasted
        assert host.service.commands[1].timestamp_ms < EPOCH_MS - 3_500_000


async def test_an_observer_ends_the_world_at_a_violation(
    tmp_path: Path, autojump_clock: object
) -> None:
    with pytest.raises(ViolationError, match="LeaderCompleteness"):  # noqa: PT012
        async with cluster(tmp_path) as world:
            leader = world.leaders()[0]
            assert world.observer is not None
            await world.attempt(leader, b"one")
            world.observer.known.committed_in[0] = 10_000
            world.observer.known.committed_prefix[10_000] = b"?"
            await world.kill(leader)
            await world.leader()
