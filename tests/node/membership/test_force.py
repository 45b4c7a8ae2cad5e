"""A quorum is lost for good, and forced: what is left of the cluster goes on, and nothing else."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from quorate.errors import ConfigurationError, LostStoreError, StorageError, StoreBusyError, leaves
from quorate.local.force_quorum import look_at, why_refused
from quorate.node import State
from quorate.node.store_opening import open_store
from quorate.simulation.ledger import Ledger, equal
from quorate.storage import ThreadExecutor, VotingRight, decode_entries_untrusted, describe, verify
from quorate.storage.log.founding import force
from tests.support.changing import complete, grow, order
from tests.support.founding import begun_cluster, new_cluster

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation.world import World

NEW_STORE = 77


async def lose_two(world: World[Ledger]) -> tuple[int, list[int]]:
    """Run a cluster, stop it, and lose two disks, which are kept; give who is left."""
    await world.start()
    leader = await world.settled()
    assert await world.attempt(leader, b"one")
    await equal(world, [b"one"])
    left, *lost = world.others(leader)[0], world.others(leader)[1], leader
    await world.kill(left)
    assert await world.attempt(leader, b"only the lost ones have this")
    await world.kill(*lost)
    for i in lost:
        directory = world.hosts[i].config.directory
        directory.rename(directory.with_name(f"old-{i}"))
    return left, lost


async def test_what_is_left_is_what_the_cluster_goes_on_with(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with new_cluster(tmp_path) as world:
        left, lost = await lose_two(world)
        store = world.hosts[left].config.directory / "log"
        row = force(store, instance_id=NEW_STORE, timestamp_ms=5)
        assert describe(store).forced == (row,)
        assert describe(store).standing.kind is VotingRight.NEW
        await world.start(*lost)
        await trio.sleep(10.0)
        assert world.leaders() == []
        await world.start(left)
        leader = await world.settled()
        assert leader == left
        assert await world.attempt(leader, b"two")
        await equal(world, [b"one", b"two"])
        assert world.hosts[left].running.store.identity.instance_id == NEW_STORE
        for host in world.hosts.values():  # the mark is in everybody's log
            entries = [
                entry.payload
                for raw in host.running.store.scan(row.position)
                for entry in decode_entries_untrusted(raw)
            ]
            assert b'"forced": {"timestamp_ms": 5' in entries[0]
        await world.kill(left)  # the new ones are a quorum, and have everything
        assert await world.attempt(await world.settled(), b"three")
        await equal(world, [b"one", b"two", b"three"])
        assert verify(store).forced == (row,)
        assert verify(store).ok


async def test_a_member_of_the_old_history_is_refused_when_it_turns_up(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with new_cluster(tmp_path) as world:
        left, (old, other) = await lose_two(world)
        force(world.hosts[left].config.directory / "log", instance_id=NEW_STORE, timestamp_ms=5)
        await world.start()
        await world.settled()
        await world.kill(old)
        directory = world.hosts[old].config.directory
        shutil.rmtree(directory)
        directory.with_name(f"old-{old}").rename(directory)
        await world.start(old)
        await trio.sleep(10.0)
        assert world.hosts[old].state is State.CANVASS
        assert await world.attempt(await world.leader(), b"two")
        assert b"only" not in world.hosts[left].service.payloads[-1]
        assert world.hosts[other].running.state.votes


async def test_a_forced_store_does_not_begin_beside_the_old_history(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with begun_cluster(tmp_path) as (world, leader):
        forced = world.others(leader)[0]
        await world.kill(forced)
        force(world.hosts[forced].config.directory / "log", instance_id=NEW_STORE, timestamp_ms=5)
        await world.start(forced)
        await world.until(lambda: world.hosts[forced].stopped)
        (failure,) = leaves(world.failures[forced])
        assert isinstance(failure, LostStoreError)
        assert "the quorum was forced" in str(failure)


async def test_a_store_without_a_vote_or_of_a_running_member_is_not_forced(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with begun_cluster(tmp_path) as (world, leader):
        store = world.hosts[leader].config.directory / "log"
        with pytest.raises(StoreBusyError):
            force(store, instance_id=NEW_STORE, timestamp_ms=5)
        wiped = world.others(leader)[0]
        await world.wipe(wiped)
        store = world.hosts[wiped].config.directory / "log"
        with pytest.raises(StorageError, match="no vote"):
            force(store, instance_id=NEW_STORE, timestamp_ms=5)
        assert describe(store).forced == ()


def refusal(world: World[Ledger], *left: int) -> str:
    """Return why the quorum can't be forced with what these members have, with files for that."""
    configs = [attrs.evolve(world.hosts[i].config, join=False) for i in left]
    return why_refused([look_at(config) for config in configs])


async def test_a_cluster_that_has_grown_is_judged_by_the_voters_of_its_log(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with new_cluster(tmp_path) as world:
        await world.start()
        await grow(world, 2)
        await complete(world)
        await equal(world, [])
        await world.kill(*world.running())
        assert refusal(world, 0, 4) == ""
        assert "3, 4 of 5 voters (configuration" in refusal(world, 0, 3, 4)


async def test_a_cluster_that_has_shrunk_is_judged_by_the_voters_of_its_log(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with new_cluster(tmp_path, members=5) as world:
        await world.start()
        for gone in (3, 4):
            await order(world, f"remove {gone}")
        await complete(world)
        await equal(world, [])
        await world.kill(*world.running())
        assert "Members 0, 1 of 3 voters" in refusal(world, 0, 1)
        # They have a vote by their stores, and are no voters any more.
        assert refusal(world, 0, 3, 4) == ""


async def test_the_file_of_a_joiner_founds_nothing(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with new_cluster(tmp_path) as world:
        await world.start()
        (new,) = await grow(world, 1)
        await equal(world, [])
        await world.kill(*world.running())
        config = world.hosts[new].config
        assert "delete the line join = true in all" in why_refused([look_at(config)])
        force(config.directory / "log", instance_id=NEW_STORE, timestamp_ms=5)
        with pytest.raises(ConfigurationError, match="the same list of"):
            open_store(config, random.Random(1), ThreadExecutor)
        open_store(attrs.evolve(config, join=False), random.Random(1), ThreadExecutor).close()
