"""Schedules of a leader that was cut off and returns with a command that only its log has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from quorate.node import State
from quorate.node.config.config import SnapshotPolicy
from tests.simulation.hazards.schedules import begin, rest
from tests.simulation.mutants.schedules import PATIENCE

if TYPE_CHECKING:
    from quorate.simulation import Ledger, World

PRUNING = SnapshotPolicy(keep=1, margin_bytes=0)


async def an_old_leader_returns(stage: World[Ledger]) -> None:
    """An old leader returns with a command that only its log has, which must be truncated.

    Raises:
        AssertionError: the old leader does not follow.
    """
    old = await begin(stage)
    stage.isolate(old)
    assert not await stage.attempt(old, b"nobody else's", within=0.3)
    await stage.until(lambda: any(i != old for i in stage.leaders()))
    (new,) = (i for i in stage.leaders() if i != old)
    assert await stage.attempt(new, b"everybody's")
    stage.mend()
    await trio.sleep(0.5)
    assert stage.hosts[old].state is State.CLOSED, "Liveness: an old leader does not follow"
    await rest(stage)


async def an_old_leader_returns_where_the_log_is_pruned(stage: World[Ledger]) -> None:
    """An old leader returns with such a command, after the new leader has pruned past that point.

    It cannot fetch a snapshot. Then the new leader is lost, and the next one has the whole log.
    This is rare in storms, since the old leader must be away with such a command for long.
    """
    for host in stage.hosts.values():
        host.config = attrs.evolve(host.config, snapshot=PRUNING)
    old = await begin(stage)
    stage.isolate(old)
    assert not await stage.attempt(old, b"nobody else's", within=0.3)
    await stage.kill(old)
    new = await stage.leader()
    (keeper,) = stage.others(old, new)
    for crowded in (old, keeper):
        stage.hosts[crowded].disk.room = stage.hosts[crowded].config.limits.reserve_bytes * 3 // 2
    assert await stage.attempt(new, b"." * 8192)
    await stage.hosts[new].running.control("snapshot")
    await stage.until(lambda: stage.hosts[new].running.store.start_position > 0)
    stage.mend()
    await stage.start(old)
    await stage.reached(old, State.FOLLOWER_LOG_REPLICATION)
    await trio.sleep(0.1)  # until the leader has sent its commit position
    await stage.kill(new)
    await trio.sleep(PATIENCE)
    stage.hosts[old].disk.mend()
    await stage.start(new)
    await rest(stage)
