"""A member that is to install a snapshot: its log was not compared with its leader's."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import trio

from quorate.node import State
from quorate.node.config.config import SnapshotPolicy
from quorate.node.readers.replay_client import ReplayClient
from quorate.simulation import Observer
from quorate.simulation.ledger import equal, open_ledgers
from quorate.transport import Address
from tests.node.membership.test_standby import STANDBY, offers

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation import Ledger, World

TAIL = b"nobody else has it"
PRUNING = SnapshotPolicy(keep=1, margin_bytes=0)


def crowd(world: World[Ledger], *ids: int) -> None:
    """Leave so little room that a member serves, but neither takes nor installs snapshots."""
    for i in ids:
        host = world.hosts[i]
        host.disk.room = host.config.limits.reserve_bytes * 3 // 2


@asynccontextmanager
async def an_old_leader_waits_for_a_snapshot(
    directory: Path,
) -> AsyncGenerator[tuple[World[Ledger], int, int, int]]:
    """Give a world, its old leader, its leader, and the member that still has all of the log.

    The old leader's log ends with a command that nobody else has, before the leader's begins.
    """
    observer = Observer([0, 1, 2])
    async with open_ledgers(directory, observer=observer) as world:
        for host in world.hosts.values():
            host.config = attrs.evolve(host.config, snapshot=PRUNING)
        await world.start()
        old = await world.settled()
        await world.command(old, b"a")
        await equal(world)
        world.isolate(old)
        assert not await world.attempt(old, TAIL, within=0.3)
        await world.kill(old)
        new = await world.leader()
        (keeper,) = world.others(old, new)
        crowd(world, old, keeper)
        await world.command(new, b"." * 8192)
        await world.hosts[new].running.control("snapshot")
        await world.until(lambda: world.hosts[new].running.store.start_position > 0)
        world.mend()
        await world.start(old)
        await world.reached(old, State.FOLLOWER_LOG_REPLICATION)
        await trio.sleep(0.1)  # it hears how far the leader has committed, again and again
        yield world, old, new, keeper


async def test_its_uncommitted_end_is_neither_committed_nor_applied_nor_counted(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with an_old_leader_waits_for_a_snapshot(tmp_path) as (world, old, new, keeper):
        host = world.hosts[old]
        assert host.service.payloads == [b"a"]
        status = host.running.status()
        assert status.commit_position < status.append_position
        peers = {peer.member_id: peer for peer in world.hosts[new].running.status().peers}
        assert peers[old].append_position == 0
        await world.kill(new)
        assert await world.settled() == keeper
        await equal(world, [b"a", b"." * 8192])


async def test_once_there_is_room_the_snapshot_takes_the_place_of_that_log(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with an_old_leader_waits_for_a_snapshot(tmp_path) as (world, old, _new, _keeper):
        world.hosts[old].disk.mend()
        await world.settled()
        await equal(world, [b"a", b"." * 8192])
        assert world.hosts[old].running.store.start_position > 0


async def test_readers_from_outside_do_not_get_that_end(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with an_old_leader_waits_for_a_snapshot(tmp_path) as (world, old, _new, _keeper):
        address = Address(world.hosts[old].name, 7000)
        client = ReplayClient("simulated", [address], network=world.network.host("backup"))
        (said,) = await client.ask()
        store = world.hosts[old].running.store
        assert said.commit_position < store.append_position
        async with await client.replay(said.commit_position) as replay:
            for _ in range(3):
                assert await replay.receive() is None


async def test_a_standby_serves_nothing_before_its_log_was_compared(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path, 4, standbys=1) as world:
        for host in world.hosts.values():
            host.config = attrs.evolve(host.config, snapshot=PRUNING)
        await world.start()
        leader = await world.settled()
        await world.command(leader, b"a")
        await world.hosts[leader].running.control("snapshot")
        await equal(world)
        await world.kill(STANDBY)
        await world.command(leader, b"." * 8192)
        await world.hosts[leader].running.control("snapshot")
        await world.until(
            lambda: (
                world.hosts[leader].running.store.start_position > 8192
                and len(world.hosts[leader].running.store.snapshots) == 1
            )
        )
        crowd(world, STANDBY)
        await world.start(STANDBY)
        await world.reached(STANDBY, State.FOLLOWER_LOG_REPLICATION)
        assert not await offers(world, leader)
