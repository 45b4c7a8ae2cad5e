"""Restores in virtual time: members that begin with a backup serve exactly its state."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import attrs
import pytest

from quorate.errors import (
    PrunedError,
    SafetyViolationError,
    StorageError,
    StoreMismatchError,
    leaves,
)
from quorate.node.election.context import ElectionContext
from quorate.simulation.ledger import equal, open_ledgers
from quorate.storage import NodeState, decode_header_untrusted, open_readonly, verify
from quorate.storage.log.recorder import Write
from quorate.storage.snapshots.file import check_snapshot
from quorate.storage.testing import InlineExecutor
from quorate.storage.tools.restore import plan_restore, restore
from tests.node.readers.test_backup import run_once
from tests.node.state_machine.test_snapshots import PRUNING, load, pruned, set_policy, snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from trio.testing import MockClock

    from quorate.simulation import Ledger, World
    from quorate.storage import BatchHeader
    from quorate.storage.tools.restore import RestorePlan


async def make(plan: RestorePlan, directory: Path, *, members: int = 3) -> None:
    """Make all members of a cluster of which the simulation takes the place."""
    for i in range(members):
        await restore(
            plan,
            directory / f"member-{i}",
            cluster="simulated",
            member_id=i,
            rng=random.Random(i),
            executor=InlineExecutor[Write],
        )


async def served(directory: Path, plan: RestorePlan) -> list[bytes]:
    """Make a cluster of a plan; return what it serves, after its next election."""
    await make(plan, directory)
    async with open_ledgers(directory) as world:
        await world.start()
        leader = await world.settled()
        await equal(world)
        found = world.hosts[leader].service.payloads
        await world.command(leader, b"and on")
        await equal(world, [*found, b"and on"])
    return found


def headers(backup: Path) -> list[BatchHeader]:
    with open_readonly(backup / "log") as store:
        return [decode_header_untrusted(batch) for batch in store.scan(store.start_position)]


async def backed_up(world: World[Ledger], directory: Path) -> list[bytes]:
    """Make a backup with a snapshot in the middle, and in front of it a change of leader."""
    await world.start()
    leader = await world.settled()
    await run_once(world, directory)  # so that it begins with the beginning
    await load(world, leader, 3, b"a")
    await world.kill(leader)
    after = await world.leader()
    await load(world, after, 3, b"b")
    await snapshot(world, after)
    await load(world, after, 3, b"c")
    await run_once(world, directory)
    await world.start(leader)
    await world.settled()
    return world.hosts[after].service.payloads


@pytest.mark.slow
async def test_any_end_of_a_batch_can_be_restored(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    backup = tmp_path / "backup"
    async with open_ledgers(tmp_path / "old") as world:
        payloads = await backed_up(world, backup)
    ends = [header.end for header in headers(backup)]
    counts: list[int] = []
    for end in ends[:: max(1, len(ends) // 6)]:
        plan = plan_restore(backup, position=end)
        assert plan.point.position == end
        found = await served(tmp_path / f"at-{end}", plan)
        assert found == payloads[: len(found)]
        counts.append(len(found))
    assert counts == sorted(set(counts))
    assert await served(tmp_path / "all", plan_restore(backup)) == payloads


async def test_a_position_inside_of_a_batch_becomes_the_end_of_the_one_before(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    backup = tmp_path / "backup"
    async with open_ledgers(tmp_path / "old") as world:
        await backed_up(world, backup)
    for header in headers(backup)[1:]:
        for asked in (header.position, header.position + 1, header.end - 1):
            assert plan_restore(backup, position=asked).point.position == header.position


async def test_a_time_is_that_of_the_last_batch_that_is_not_younger(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    backup = tmp_path / "backup"
    async with open_ledgers(tmp_path / "old") as world:
        await backed_up(world, backup)
    found = headers(backup)
    for header in found:
        end = max(each.end for each in found if each.timestamp_ms <= header.timestamp_ms)
        point = plan_restore(backup, timestamp_ms=header.timestamp_ms).point
        assert (point.position, point.timestamp_ms) == (end, header.timestamp_ms)
    with pytest.raises(PrunedError, match="can't be restored; from position 0 of 20"):
        plan_restore(backup, timestamp_ms=found[0].timestamp_ms - 1)
    with pytest.raises(PrunedError, match=f"to position {found[-1].end} of 20"):
        plan_restore(backup, timestamp_ms=found[-1].timestamp_ms + 1)


async def test_what_lies_before_the_oldest_snapshot_or_behind_the_end_is_refused(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    backup = tmp_path / "backup"
    async with open_ledgers(tmp_path / "old") as world:
        await world.start()
        leader = await world.settled()
        await load(world, leader, 10, b"a")
        first = await snapshot(world, leader)
        await load(world, leader, 3, b"b")
        await run_once(world, backup)
        payloads = world.hosts[leader].service.payloads
    end = headers(backup)[-1].end
    for position in (0, first - 1, end + 1):
        with pytest.raises(PrunedError, match=rf"from position {first} of .* to position {end} of"):
            plan_restore(backup, position=position)
    assert await served(tmp_path / "first", plan_restore(backup, position=first)) == payloads[:10]


async def test_the_directory_of_a_member_that_runs_will_do(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with open_ledgers(tmp_path / "old") as world:
        set_policy(world, PRUNING)
        await world.start()
        leader = await world.settled()
        await pruned(world, leader)
        await load(world, leader, 3, b"c")
        payloads = world.hosts[leader].service.payloads
        await world.kill(leader)  # LMDB opens a file once in each process
        plan = plan_restore(world.hosts[leader].config.directory)
    found = await served(tmp_path / "new", plan)
    assert found == payloads[: len(found)]
    assert len(found) >= len(payloads) - 1  # of the last batch it can't know


async def test_a_damaged_snapshot_is_passed_over_and_the_one_before_is_used(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    backup = tmp_path / "backup"
    async with open_ledgers(tmp_path / "old") as world:
        payloads = await backed_up(world, backup)
    (path,) = (backup / "snapshots").iterdir()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    plan = plan_restore(backup)
    assert plan.load is None
    assert "the checksum differs" in plan.damaged[0]
    assert await served(tmp_path / "new", plan) == payloads


async def test_damage_in_the_log_is_found_and_leaves_no_store(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    backup = tmp_path / "backup"
    async with open_ledgers(tmp_path / "old") as world:
        await backed_up(world, backup)
    data = bytearray((backup / "log" / "data.mdb").read_bytes())
    data[data.rindex(b"a-2-") + 50] ^= 1
    (backup / "log" / "data.mdb").write_bytes(data)
    plan = plan_restore(backup, position=headers_until_damage(backup))
    assert plan.load is None
    with pytest.raises((StorageError, BaseExceptionGroup)):
        await make(plan, tmp_path / "new", members=1)
    assert not (tmp_path / "new" / "member-0" / "log").exists()


def headers_until_damage(backup: Path) -> int:
    """Return a position in front of the snapshot and behind the damage."""
    with open_readonly(backup / "log") as store:
        return store.boundary(store.snapshots[0].position - 100)


async def test_a_restore_that_broke_off_is_done_again_and_a_store_is_never_replaced(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup, member = tmp_path / "backup", tmp_path / "new" / "member-0"
    async with open_ledgers(tmp_path / "old") as world:
        payloads = await backed_up(world, backup)
    plan = plan_restore(backup)

    def broken(_directory: Path) -> None:
        raise StorageError("broken off")

    with monkeypatch.context() as patched:
        patched.setattr("quorate.storage.tools.restore.verify", broken)
        with pytest.raises(StorageError, match="broken off"):
            await make(plan, tmp_path / "new", members=1)
    assert sorted(path.name for path in member.iterdir()) == ["log.restoring", "snapshots"]
    assert await served(tmp_path / "new", plan) == payloads
    assert verify(member / "log").ok
    with pytest.raises(StoreMismatchError, match="there is something already"):
        await make(plan, tmp_path / "new")


async def test_a_restore_goes_into_folders_that_are_volumes_or_links(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    backup, member, disk = tmp_path / "backup", tmp_path / "new" / "member-0", tmp_path / "disk"
    async with open_ledgers(tmp_path / "old") as world:
        payloads = await backed_up(world, backup)
    for name in ("log", "tables", "snapshots"):
        (disk / name / "lost+found").mkdir(parents=True)
    (disk / "log" / "restoring").mkdir()  # of one that broke off
    member.mkdir(parents=True)
    for name in ("log", "tables", "snapshots"):
        (member / name).symlink_to(disk / name)
    plan = plan_restore(backup)
    assert plan.load is not None
    assert await served(tmp_path / "new", plan) == payloads
    assert all((member / name).is_symlink() for name in ("log", "tables", "snapshots"))
    assert (disk / "log" / "data.mdb").exists()
    assert not (disk / "log" / "restoring").exists()
    assert (disk / "snapshots" / plan.load.name).exists()
    with pytest.raises(StoreMismatchError, match="there is something already"):
        await make(plan, tmp_path / "new", members=1)


async def test_a_cluster_of_another_name_takes_the_snapshot_for_its_own(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    backup = tmp_path / "backup"
    async with open_ledgers(tmp_path / "old") as world:
        await backed_up(world, backup)
    (old,) = (backup / "snapshots").iterdir()
    plan = plan_restore(backup)
    await restore(
        plan,
        tmp_path / "new",
        cluster="rescue",
        member_id=1,
        rng=random.Random(0),
        executor=InlineExecutor[Write],
    )
    (new,) = (tmp_path / "new" / "snapshots").iterdir()
    ours, theirs = check_snapshot(new), check_snapshot(old)
    assert ours.head == attrs.evolve(theirs.head, cluster="rescue")
    assert ours.digest == theirs.digest


async def test_a_lone_member_begins_a_term_above_all_in_its_restored_log(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    plan = await plan_of_a_lone_member(tmp_path / "old")
    await make(plan, tmp_path / "new", members=1)
    assert verify(tmp_path / "new" / "member-0" / "log").ok
    async with open_ledgers(tmp_path / "new", 1) as world:
        await world.start()
        await world.settled()
        await world.command(0, b"and on")
        assert [row.term for row in world.hosts[0].running.store.terms] == [0, 1]
    assert verify(tmp_path / "new" / "member-0" / "log").ok


async def test_so_does_one_that_has_promised_nothing_yet(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = await plan_of_a_lone_member(tmp_path / "old")
    forget_promises(monkeypatch)
    await make(plan, tmp_path / "new", members=1)
    async with open_ledgers(tmp_path / "new", 1) as world:
        await world.start()
        await world.settled()
        assert [row.term for row in world.hosts[0].running.store.terms] == [0, 1]


async def test_a_term_that_the_log_has_already_is_never_begun(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = await plan_of_a_lone_member(tmp_path / "old")
    forget_promises(monkeypatch)
    await make(plan, tmp_path / "new", members=1)

    def next_promise(ctx: ElectionContext) -> int:
        return ctx.promised_term + 1

    monkeypatch.setattr(ElectionContext, "next_term", property(next_promise))
    async with open_ledgers(tmp_path / "new", 1, contain=True) as world:
        await world.start()
        await world.until(lambda: bool(world.failures))
        (failure,) = leaves(world.failures[0])
        assert isinstance(failure, SafetyViolationError)
        assert "won term 0, but its log holds term 0" in str(failure)
    assert verify(tmp_path / "new" / "member-0" / "log").ok


async def plan_of_a_lone_member(directory: Path) -> RestorePlan:
    """Give the plan to restore a log of term 0 alone."""
    async with open_ledgers(directory, 1) as world:
        await world.start()
        await world.settled()
        await load(world, 0, 3, b"a")
        place = world.hosts[0].config.directory
    plan = plan_restore(place)
    assert plan.point.position > 0
    return plan


def forget_promises(patch: pytest.MonkeyPatch) -> None:
    """Have a restored store promise nothing, as those of earlier versions did."""

    def nothing(_term: int) -> NodeState:
        return NodeState()

    patch.setattr("quorate.storage.tools.restore.NodeState", nothing)
