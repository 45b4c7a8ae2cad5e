"""Backups in virtual time: what is recorded, from whom, and across everything that members do."""

from __future__ import annotations

import functools
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from quorate.errors import PrunedError, StoreMismatchError, TransportError
from quorate.node.readers.backup import open_backup
from quorate.node.readers.replay_client import ReplayClient
from quorate.simulation.ledger import equal, open_ledgers
from quorate.storage import Store, open_readonly, verify
from quorate.storage.log.recorder import Write
from quorate.storage.testing import InlineExecutor
from quorate.transport import Address
from tests.node.state_machine.test_snapshots import PRUNING, load, pruned, set_policy, snapshot

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.node.readers.backup import Backup
    from quorate.simulation import Ledger, World


def client_of(world: World[Ledger], cluster: str = "simulated") -> ReplayClient:
    addresses = [Address(host.name, 7000) for host in world.hosts.values()]
    return ReplayClient(cluster, addresses, network=world.network.host("backup"))


@asynccontextmanager
async def backup_of(
    world: World[Ledger],
    directory: Path,
    said: list[str] | None = None,
    *,
    write_seconds: float = 0.0,
) -> AsyncGenerator[Backup]:
    async with open_backup(
        directory,
        client_of(world),
        rng=random.Random(0),
        executor=functools.partial(InlineExecutor[Write], latency=write_seconds),
        report=(said if said is not None else []).append,
    ) as backup:
        yield backup


def agrees(world: World[Ledger], directory: Path) -> int:
    """Check that a backup is sound, and that it and the members have one log; give its end."""
    assert verify(directory / "log").ok
    with open_readonly(directory / "log") as store:
        assert store.last_commit_position == store.append_position
        for i in world.running():
            theirs = world.hosts[i].running.store
            start = max(theirs.start_position, store.start_position)
            size = store.append_position - start
            assert b"".join(theirs.scan(start))[:size] == b"".join(store.scan(start))[:size]
        return store.append_position


async def test_a_backup_holds_all_that_is_committed_and_goes_on_where_it_ended(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    there, said = tmp_path / "backup", list[str]()
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        for name in (b"a", b"b"):
            await load(world, leader, 20, name)
            end = world.hosts[leader].running.status().commit_position
            async with backup_of(world, there, said) as backup:
                await backup.run()
            assert agrees(world, there) == end
        assert len({words for words in said if words != f"recording from member {leader}"}) == 1
        with open_readonly(there / "log") as store:
            assert (store.start_position, store.snapshots) == (0, ())
            assert store.terms[-1].term == world.hosts[leader].running.state.leadership_term


async def test_a_backup_begins_with_the_newest_snapshot_and_takes_a_newer_one_when_it_is_worth_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    there = tmp_path / "backup"
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        for i in range(30):  # what can't be compressed makes a large file
            await world.command(leader, random.Random(i).randbytes(2000))
        first = await snapshot(world, leader)
        await load(world, leader, 1, b"b")
        async with backup_of(world, there) as backup:
            await backup.run()
            assert backup.store.start_position == first
            await snapshot(world, leader)  # longer than the log since the first
            await backup.run()
            assert [row.position for row in backup.store.snapshots] == [first]
            await load(world, leader, 80, b"c")
            third = await snapshot(world, leader)
            await backup.run()
            assert [row.position for row in backup.store.snapshots] == [first, third]
        agrees(world, there)


async def test_a_backup_that_follows_outlives_leaders_and_restarts(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    there, said = tmp_path / "backup", list[str]()
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        async with backup_of(world, there, said) as backup, trio.open_nursery() as nursery:

            async def follow() -> None:
                await backup.run(follow=True)

            async def level() -> None:
                end = world.hosts[leader].running.status().commit_position
                await world.until(lambda: backup.store.last_commit_position >= end)

            nursery.start_soon(follow)
            for name in (b"a", b"b", b"c"):
                await load(world, leader, 10, name)
                await level()
                await world.kill(leader)
                after = await world.leader()
                await load(world, after, 10, name + b"'")
                await world.start(leader)
                leader = await world.settled()
                await level()
            await world.kill(*world.hosts)
            await trio.sleep(60.0)
            await world.start()
            leader = await world.settled()
            await load(world, leader, 10, b"d")
            await level()
            nursery.cancel_scope.cancel()
        await equal(world)
        agrees(world, there)
    assert len([words for words in said if words.startswith("recording from")]) >= 3


async def test_a_follower_that_has_become_the_leader_is_left(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    said: list[str] = []
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        async with (
            backup_of(world, tmp_path / "backup", said) as backup,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(run_for_ever, backup)
            await trio.sleep(2.0)
            source = sources(said)[-1]
            assert source != leader
            await world.hosts[leader].running.control(f"transfer {source}")
            await trio.sleep(5.0)
            assert sources(said)[-1] != source
            nursery.cancel_scope.cancel()


def sources(said: list[str]) -> list[int]:
    """The members from which a backup says that it has recorded."""
    return [int(words.split()[-1]) for words in said if words.startswith("recording from")]


async def run_for_ever(backup: Backup) -> None:
    await backup.run(follow=True)


async def test_the_log_of_another_history_is_never_mixed_in(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    there = tmp_path / "backup"
    for round_ in ("first", "second"):
        async with open_ledgers(tmp_path / round_, seed=round_) as world:
            await world.start()
            leader = await world.settled()
            await load(world, leader, 10 if round_ == "first" else 20, round_.encode())
            async with backup_of(world, there) as backup:
                if round_ == "first":
                    await backup.run()
                else:
                    with pytest.raises(StoreMismatchError, match="of another history"):
                        await backup.run()
    with open_readonly(there / "log") as store:
        assert b"second" not in b"".join(store.scan(0))


async def test_a_gap_is_refused_and_nothing_is_removed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    there = tmp_path / "backup"
    async with open_ledgers(tmp_path) as world:
        set_policy(world, PRUNING)
        await world.start()
        leader = await world.settled()
        await load(world, leader, 10, b"a")
        async with backup_of(world, there) as backup:
            await backup.run()
            end = backup.store.append_position
            await pruned(world, leader)
            with pytest.raises(PrunedError, match=f"after {end}"):
                await backup.run()
            assert backup.store.append_position == end
            assert backup.store.start_position == 0


async def test_without_any_member_it_ends_unless_it_follows(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world, backup_of(world, tmp_path / "backup") as backup:
        with pytest.raises(TransportError, match=r"no member answers: h0:7000: .*refused"):
            await backup.run()


async def test_members_of_another_cluster_refuse_it(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        await world.settled()
        with pytest.raises(TransportError, match="cluster 'other', expected 'simulated'"):
            await client_of(world, "other").ask()


async def test_readers_share_one_rate(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_ledgers(tmp_path, 1) as world:
        host = world.hosts[0]
        limits = attrs.evolve(host.config.limits, reader_bytes_per_second=64 * 1024)
        host.config = attrs.evolve(host.config, limits=limits)
        await world.start()
        await world.settled()
        await load(world, 0, 200, b"a")
        end = host.running.status().commit_position
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for name in ("one", "two"):
                nursery.start_soon(run_once, world, tmp_path / name)
        seconds = 2 * end / (64 * 1024)
        assert seconds - 2 < trio.current_time() - began < seconds + 2
        assert agrees(world, tmp_path / "one") == agrees(world, tmp_path / "two") == end


async def run_once(world: World[Ledger], directory: Path) -> None:
    async with backup_of(world, directory) as backup:
        await backup.run()


async def test_a_members_directory_is_no_backup_and_a_backup_is_no_members(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        await world.settled()
        await run_once(world, tmp_path / "backup")
        await world.kill(0)
        with pytest.raises(StoreMismatchError, match="member 0; expected cluster 'simulated'"):
            await run_once(world, world.hosts[0].config.directory)
    with pytest.raises(
        StoreMismatchError, match="member -1; expected cluster 'simulated', member 0"
    ):
        Store.open(
            tmp_path / "backup" / "log", cluster="simulated", member_id=0, rng=random.Random(0)
        )


async def test_what_is_being_written_counts_when_a_backup_ends(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    there = tmp_path / "backup"
    async with open_ledgers(tmp_path / "cluster") as world:
        await world.start()
        leader = await world.settled()
        async with backup_of(world, there, write_seconds=1.0) as backup:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(functools.partial(backup.run, follow=True))
                await load(world, leader, 10, b"a")
                end = world.hosts[leader].running.status().commit_position
                await world.until(lambda: backup.store.submitted_position >= end)
                nursery.cancel_scope.cancel()
            assert backup.store.append_position < end
            await backup.save()
            assert backup.store.append_position >= end
        agrees(world, there)


@pytest.mark.slow
async def test_a_backup_that_is_killed_at_any_moment_goes_on(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    there, ends = tmp_path / "backup", list[int]()
    async with open_ledgers(tmp_path / "cluster") as world:
        await world.start()
        leader = await world.settled()
        for i in range(30):
            await world.command(leader, random.Random(i).randbytes(2000))
        await snapshot(world, leader)
        await load(world, leader, 200, b"a")
        for i in range(16):
            with trio.move_on_after(0.0008 * (i + 1)):
                await run_until_killed(world, there)
            if (there / "log").exists():
                assert verify(there / "log").ok
                with open_readonly(there / "log") as store:
                    ends.append(store.append_position)
        await run_once(world, there)
        agrees(world, there)
    assert len({*ends}) > 3, ends


async def run_until_killed(world: World[Ledger], directory: Path) -> None:
    """Have a backup follow until it is cancelled; what is not durable then is lost."""
    async with backup_of(world, directory) as backup:
        executor = backup.store.executor
        assert isinstance(executor, InlineExecutor)
        try:
            await backup.run(follow=True)
        finally:
            executor.cut_power()
