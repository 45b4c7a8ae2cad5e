"""A restored log has the configurations of its source: by the snapshot's head and by batches."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from quorate.storage import MembershipRow, SnapshotReader, Write, head_of, open_readonly, verify
from quorate.storage.snapshots.folder import write_whole
from quorate.storage.testing import InlineExecutor
from quorate.storage.tools.restore import make_source, plan_restore, restore
from tests.support.storage_world import begin_term, configuration_at, fill, open_store, running

if TYPE_CHECKING:
    from pathlib import Path


async def make(source: Path, *, prune: bool) -> tuple[MembershipRow, ...]:
    """Make a log with a snapshot between two configurations, all of it committed."""
    async with running(open_store(source / "log", InlineExecutor)) as store:
        await begin_term(store, 0)
        await store.append_durably(configuration_at(store.append_position, b'{"version": 1}'))
        await fill(store, 1)
        cut = store.append_position
        (row,) = store.memberships
        head = head_of(
            "testing",
            store.terms,
            position=cut,
            term=0,
            timestamp_ms=0,
            membership=row.payload.decode(),
        )
        (source / "snapshots").mkdir()
        write_whole(source / "snapshots", head, iter([b"state"]))
        await store.add_snapshot(head.row)
        await store.append_durably(configuration_at(cut, b'{"version": 2}'))
        await fill(store, 1)
        await store.save_committed(store.append_position)
        if prune:
            await store.drop_prefix(cut)
        return store.memberships


@pytest.mark.parametrize("prune", [True, False])
async def test_a_restored_log_has_the_configurations_of_its_source(
    tmp_path: Path,
    prune: bool,  # noqa: FBT001
) -> None:
    first, second = await make(tmp_path / "source", prune=prune)
    plan = plan_restore(tmp_path / "source")
    target = tmp_path / "target"
    kind = InlineExecutor[Write]
    await restore(plan, target, cluster="new", member_id=3, rng=Random(1), executor=kind)
    assert plan.load is not None
    with open_readonly(target / "log") as store:
        at_snapshot = MembershipRow(plan.load.term, plan.load.position, first.payload)
        assert store.memberships == (at_snapshot, second)
    with SnapshotReader(target / "snapshots" / plan.load.name) as reader:
        assert reader.head.membership == first.payload.decode()
    assert verify(target / "log").ok


async def test_the_log_of_a_single_snapshot_has_its_configuration(tmp_path: Path) -> None:
    await make(tmp_path / "source", prune=False)
    with open_readonly(tmp_path / "source" / "log") as store:
        (snapshot,) = store.snapshots
    with SnapshotReader(tmp_path / "source" / "snapshots" / snapshot.name) as reader:
        (tmp_path / "made" / "snapshots").mkdir(parents=True)
        write_whole(tmp_path / "made" / "snapshots", reader.head, reader.pieces())
        await make_source(tmp_path / "made", reader.head, rng=Random(1))
    with open_readonly(tmp_path / "made" / "log") as store:
        assert store.memberships == (
            MembershipRow(snapshot.term, snapshot.position, b'{"version": 1}'),
        )
