"""Snapshots: one place in the log for all members, restarts, pruning, and members far behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from quorate.errors import RefusedError
from quorate.node.config.config import SnapshotPolicy
from quorate.node.follower.snapshot_install import SnapshotInstall
from quorate.node.leader.operator import positions_of
from quorate.simulation import Ledger, Setting
from quorate.simulation import open_world as open_any_world
from quorate.simulation.ledger import equal, open_ledgers
from quorate.storage.snapshots.file import check_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.node import Command
    from quorate.simulation import World
    from quorate.simulation.machines.host import Place
    from quorate.storage import SnapshotHead, Summary

LARGE = bytes(2000)


def set_policy(world: World[Ledger], policy: SnapshotPolicy) -> None:
    for host in world.hosts.values():
        host.config = attrs.evolve(host.config, snapshot=policy)


async def load(world: World[Ledger], at: int, count: int, name: bytes) -> None:
    for i in range(count):
        await world.command(at, b"%b-%d-" % (name, i) + LARGE)


def summaries(world: World[Ledger], i: int) -> list[Summary]:
    """The snapshots of a member, each one checked."""
    snapshots = world.hosts[i].running.snapshots
    rows = world.hosts[i].running.store.snapshots
    return [check_snapshot(snapshots.folder.path_of(row)) for row in rows]


async def all_have(world: World[Ledger], position: int) -> None:
    def done() -> bool:
        return all(
            (newest := host.running.snapshots.newest) is not None and newest.position == position
            for host in world.hosts.values()
            if host.member
        )

    await world.until(done)


async def snapshot(world: World[Ledger], at: int) -> int:
    """Have one taken by all that run; give its position."""
    words = await world.hosts[at].running.control("snapshot")
    position = int(words.split()[2].rstrip(","))
    assert positions_of(words) == [position]
    await all_have(world, position)
    return position


async def test_all_members_take_a_snapshot_at_the_same_position(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        await load(world, leader, 250, b"a")
        position = await snapshot(world, world.others(leader)[0])
        await load(world, leader, 5, b"b")
        for i in world.hosts:
            assert [each.head.position for each in summaries(world, i)] == [position]
        assert len({summaries(world, i)[0].digest for i in world.hosts}) == 1
        assert summaries(world, 0)[0].pieces == 3
        await equal(world)


async def test_a_volatile_service_restarts_from_the_snapshot_and_the_tail(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "quorate")
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        await load(world, leader, 20, b"a")
        position = await snapshot(world, leader)
        await load(world, leader, 5, b"b")
        await equal(world)
        want = world.hosts[leader].service.payloads
        await world.kill(*world.hosts)
        await world.start()
        assert caplog.text.count(f"loaded the snapshot at {position}") == 3
        await world.settled()
        await equal(world, want)


async def test_a_damaged_snapshot_is_told_and_the_one_before_is_used(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "quorate")
    async with open_ledgers(tmp_path) as world:
        await world.start()
        leader = await world.settled()
        await load(world, leader, 20, b"a")
        older = await snapshot(world, leader)
        await load(world, leader, 20, b"b")
        await snapshot(world, leader)
        await equal(world)
        want = world.hosts[leader].service.payloads
        path = world.hosts[leader].running.snapshots.folder.path_of(
            world.hosts[leader].running.store.snapshots[-1]
        )
        await world.kill(leader)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        await world.start(leader)
        assert "skipping a damaged snapshot" in caplog.text
        assert f"loaded the snapshot at {older}" in caplog.text
        await world.settled()
        await equal(world, want)


async def pruned(world: World[Ledger], at: int, rounds: int = 3) -> None:
    """Write and take snapshots until the log is pruned."""
    for i in range(rounds):
        await load(world, at, 40, b"p%d" % i)
        await snapshot(world, at)
    await world.until(lambda: world.hosts[at].running.store.start_position > 0)


PRUNING = SnapshotPolicy(keep=2, margin_bytes=0)


async def test_the_log_is_pruned_below_the_oldest_snapshot_that_is_kept(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path) as world:
        set_policy(world, PRUNING)
        await world.start()
        leader = await world.settled()
        await pruned(world, leader)
        await trio.sleep(1.0)
        for host in world.hosts.values():
            rows = host.running.store.snapshots
            assert len(rows) == 2
            assert host.running.store.start_position == rows[0].position
            names = sorted(path.name for path in (host.config.directory / "snapshots").iterdir())
            assert names == [row.name for row in rows]
        want = world.hosts[leader].service.payloads
        await world.kill(*world.hosts)
        await world.start()
        await world.settled()
        await equal(world, want)


@pytest.mark.parametrize("wiped", [False, True], ids=["behind", "wiped"])
async def test_a_member_whose_log_ends_before_the_others_begin_installs_a_snapshot(
    tmp_path: Path, autojump_clock: MockClock, *, wiped: bool
) -> None:
    async with open_ledgers(tmp_path) as world:
        set_policy(world, PRUNING)
        await world.start()
        leader = await world.settled()
        late = world.others(leader)[0]
        await load(world, leader, 5, b"a")
        await equal(world)
        await world.kill(late)
        await pruned(world, leader)
        if wiped:
            await world.wipe(late)
        seen = len(world.transitions)
        await world.start(late)
        await world.settled()
        await load(world, leader, 5, b"z")
        await equal(world)
        assert "FOLLOWER_LOG_REPLICATION" in world.path(late, since=seen)
        rows = world.hosts[leader].running.store.snapshots
        store = world.hosts[late].running.store
        assert store.snapshots == rows[-1:]
        assert store.start_position == rows[-1].position
        await world.kill(late)
        await world.start(late)
        await world.settled()
        await equal(world)


async def test_what_a_snapshot_is_to_replace_is_not_applied_while_it_is_fetched(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    fetch = SnapshotInstall.fetch

    async def noted(
        self: SnapshotInstall, member: int, judge: Callable[[SnapshotHead], None]
    ) -> SnapshotHead:
        applier, store = self._applier, self._store  # pyright: ignore[reportPrivateUsage]
        before = applier.applied_position
        applier.commit(store.append_position)  # as if it had not come to apply that yet
        assert before < applier.commit_position
        await trio.sleep(1)  # long enough for all of it
        found.append(applier.applied_position - before)
        return await fetch(self, member, judge)

    monkeypatch.setattr(SnapshotInstall, "fetch", noted)
    async with open_ledgers(tmp_path) as world:
        set_policy(world, PRUNING)
        await world.start()
        leader = await world.settled()
        late = world.others(leader)[0]
        await load(world, leader, 5, b"a")
        await world.kill(late)
        await pruned(world, leader)
        await world.start(late)
        await world.settled()
        assert found == [0]
        await equal(world)


async def test_when_no_snapshot_comes_after_all_what_is_committed_is_applied(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member lacks what its leader has dropped; then one leads that has it still."""
    begun = trio.Event()

    async def broken(_install: object, _member: int, _judge: object) -> SnapshotHead:
        begun.set()
        return await trio.sleep_forever()

    monkeypatch.setattr(SnapshotInstall, "fetch", broken)
    async with open_ledgers(tmp_path) as world:
        set_policy(world, PRUNING)
        keeper = world.hosts[2]
        keeper.config = attrs.evolve(keeper.config, snapshot=SnapshotPolicy(keep=100))
        await world.start()
        if await world.settled() == 2:
            await keeper.running.control("transfer 0")
        leader = await world.settled()
        late = 1 - leader
        await load(world, leader, 5, b"a")
        await equal(world)
        world.isolate(late)
        await trio.sleep(5)
        for name in (b"p", b"q", b"r"):
            await load(world, leader, 40, name)
            await world.hosts[leader].running.control("snapshot")
        await world.until(lambda: world.hosts[leader].running.store.start_position > 0)
        world.mend()
        await begun.wait()
        await world.kill(leader)
        assert await world.settled() == 2
        await load(world, 2, 5, b"z")
        await equal(world)


async def test_snapshots_are_taken_by_the_rule(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_ledgers(tmp_path) as world:
        set_policy(world, SnapshotPolicy(interval_bytes=64 << 10, interval_entries=10))
        await world.start()
        leader = await world.settled()
        await load(world, leader, 12, b"a")
        await world.until(lambda: len(world.hosts[leader].running.store.snapshots) == 1)
        await trio.sleep(5.0)
        assert len(world.hosts[leader].running.store.snapshots) == 1
        await load(world, leader, 60, b"b")
        await world.until(lambda: len(world.hosts[leader].running.store.snapshots) == 2)


class Turnstile:
    """A service that can't be saved."""

    position = 0

    def __init__(self, place: Place, /) -> None:
        del place

    def apply(self, command: Command) -> bytes:
        return command.payload

    def query(self, payload: bytes, flags: int) -> bytes:
        del flags
        return payload

    def advance(self, position: int, timestamp_ms: int) -> None:
        del position, timestamp_ms

    def next_deadline_ms(self) -> int | None:
        return None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()


async def test_a_service_without_snapshots_keeps_the_whole_log(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_any_world(tmp_path, Turnstile, Setting(members=1)) as world:
        await world.start()
        leader = await world.settled()
        with pytest.raises(RefusedError, match="has no snapshots"):
            await world.hosts[leader].running.control("snapshot")
