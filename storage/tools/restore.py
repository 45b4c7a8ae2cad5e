"""Restoring a member's store from a backup, or from another member's directory, as of any point.

A restore loads the newest whole snapshot at or before the point, and copies the log from there to
the point. The point is the end of a batch, since a batch is committed as a whole. The result is
verified, and gets its name last. So a crash in the middle leaves a directory without a log.

Everything here blocks, except for the writing of the new store. It is for tools.
"""

from __future__ import annotations

import logging
import shutil
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path  # noqa: TC003 - as below
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ...errors import PrunedError, StorageError, StoreMismatchError
from ..lmdb.environment import content_of, sync_directory, translating_errors
from ..lmdb.file_check import DATA_FILE
from ..log.batch import Entry, decode_header_untrusted, encode_batch
from ..log.journal import JOURNAL_FILE
from ..log.readonly import ReadOnlyStore, open_readonly
from ..log.store import Store
from ..rows.identity import Identity  # noqa: TC001 - resolved at run time by serialisers
from ..rows.log_end import LogEnd
from ..rows.term_table import SnapshotRow  # noqa: TC001 - resolved at run time, as above
from ..rows.vote import NodeState
from ..rows.voting_status import VotingRight, VotingStatus
from ..snapshots.file import NO_STATE, SnapshotHead, SnapshotReader
from ..snapshots.folder import SnapshotFolder, write_whole
from ..tables.disk import tables_position
from ..writing.group_commit import ThreadExecutor
from .verify import VerifyReport, verify

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from random import Random

    from ..log.recorder import Write
    from ..writing.executor import ExecutorFactory

log = logging.getLogger("quorate.storage")

SETTLE_BYTES: Final = 4 << 20
"""Log that is submitted before it is waited for to be durable. With more, memory; with less, more
syncs."""

NO_MEMBER: Final = -1
"""The member id of a store that belongs to no member."""

_RESTORING: Final = "restoring"


@attrs.frozen
class Point:
    """The end of a batch, or the beginning of the log: its position, and log time there in ms."""

    position: int
    timestamp_ms: int

    def __str__(self) -> str:
        return f"position {self.position} of {moment(self.timestamp_ms)}"


def moment(timestamp_ms: int) -> str:
    """Format log time as the command line takes it: ``2026-11-21T20:55:10.123+00:00``."""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")


@attrs.frozen
class RestorePlan:
    """What a restore will do.

    Args:
        source: directory of the backup, or of a member.
        identity: of the store there.
        first: the earliest point that can be restored.
        last: the latest one.
        point: the one that will be restored.
        load: the snapshot to load; None to begin with the beginning of the log.
        damaged: why snapshots were passed over.
    """

    source: Path
    identity: Identity
    first: Point
    last: Point
    point: Point
    load: SnapshotRow | None
    damaged: tuple[str, ...] = ()

    @property
    def start(self) -> int:
        """Where the log begins that will be copied."""
        return 0 if self.load is None else self.load.position


def plan_restore(
    source: Path, *, position: int | None = None, timestamp_ms: int | None = None
) -> RestorePlan:
    """Work out how to restore the state at a position, or at a moment of log time.

    Args:
        source: directory of a backup, or of a member, which may be running.
        position: restore up to the batch that ends there, or else the last one before.
        timestamp_ms: restore up to the last batch that is not younger. Without it and without a
            position: up to the last batch that is known to be committed.

    Raises:
        PrunedError: that can't be restored; the message names the range that can.
        StorageError: there is nothing to restore from, or no snapshot is whole.
    """
    folder = SnapshotFolder(source / "snapshots")
    with open_readonly(source / "log") as store:
        reach = _Reach(store, tables_position(source / "tables"))
        point = reach.point(position, timestamp_ms)
        damaged: list[str] = []
        for row in reversed(reach.snapshots):
            if row.position > point.position:
                continue
            try:
                summary = folder.check(row)
            except StorageError as error:
                damaged.append(str(error))
                continue
            if summary.head.service == NO_STATE:
                damaged.append(f"{row.name} is of a witness, which keeps no state")
            else:
                return RestorePlan(
                    source, store.identity, reach.first, reach.last, point, row, tuple(damaged)
                )
        if store.start_position:
            raise StorageError("; ".join(damaged))
        return RestorePlan(
            source, store.identity, reach.first, reach.last, point, None, tuple(damaged)
        )


class _Reach:
    """What the log of a source allows to restore."""

    def __init__(self, store: ReadOnlyStore, applied: int) -> None:
        self.store = store
        self.committed = max(store.last_commit_position, min(applied, store.append_position))
        self.snapshots: Sequence[SnapshotRow] = [
            row for row in store.snapshots if store.start_position <= row.position <= self.committed
        ]
        if store.start_position == 0:
            self.first = Point(0, self._timestamp_ms(0) if self.committed else 0)
        elif self.snapshots:
            self.first = Point(self.snapshots[0].position, self.snapshots[0].timestamp_ms)
        else:
            raise StorageError(
                f"the log begins at {store.start_position}, and there is no snapshot to load; "
                "expected one in the folder snapshots"
            )
        self.last = self.before(self.committed)

    def point(self, position: int | None, timestamp_ms: int | None) -> Point:
        """Return the point that is asked for.

        Raises:
            PrunedError: it is out of range.
        """
        point = self.last
        if position is not None:
            if not self.first.position <= position <= self.last.position:
                raise self._out_of_range(f"position {position}")
            point = self.before(position)
        elif timestamp_ms is not None:
            if not self.first.timestamp_ms <= timestamp_ms <= self.last.timestamp_ms:
                raise self._out_of_range(moment(timestamp_ms))
            point = self._not_younger(timestamp_ms)
        return point

    def _out_of_range(self, what: str) -> PrunedError:
        return PrunedError(f"{what} can't be restored; from {self.first} to {self.last} can")

    def before(self, position: int) -> Point:
        """Return the last point at or before a position of the range."""
        begin = self.store.boundary(position) if position < self.committed else position
        if begin <= self.first.position:
            return self.first
        before = self.store.boundary(begin - 1)
        return Point(begin, self._timestamp_ms(before))

    def _timestamp_ms(self, begin: int) -> int:
        return decode_header_untrusted(next(self.store.scan(begin, begin + 1))).timestamp_ms

    def _not_younger(self, timestamp_ms: int) -> Point:
        """Return the last point of the range that is not younger, by bisection."""
        low, high = self.first.position, self.last.position
        while low < high:
            begin = self.store.boundary((low + high) // 2)
            header = decode_header_untrusted(next(self.store.scan(begin, begin + 1)))
            if header.timestamp_ms > timestamp_ms:
                high = begin
            else:
                low = header.end
        return self.before(low)


async def restore(
    plan: RestorePlan,
    target: Path,
    *,
    cluster: str,
    member_id: int,
    rng: Random,
    recovering: bool = False,
    last: Entry | None = None,
    executor: ExecutorFactory[Write] = ThreadExecutor,
) -> int:
    """Make the store of a member, with its own identity; return how many batches it holds.

    Args:
        plan: what to restore.
        target: directory of the member, without a store; made if absent.
        cluster: name of the new store's cluster.
        member_id: which member of it.
        rng: draws the instance id.
        recovering: the cluster runs on without this member, so the store has no vote until the
            cluster admits it.
        last: an entry to end the log with, the same one for all members of the cluster. It gets
            the term and the time of what is before it; an empty log stays empty.
        executor: runs the writes; on a thread unless given.

    Raises:
        StorageError: there is a store; the disk failed or is full; something is damaged.
    """
    assert last is None or not recovering, "the cluster that runs on does not have the entry"
    store = Store.open(
        _prepare(target), cluster=cluster, member_id=member_id, rng=rng, executor=executor
    )
    with closing(store):
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            await _fill(store, plan, target)
            if last is not None and store.append_position:
                await store.append_durably(_encoded(last, store, plan.point))
            await _vote(store, recovering=recovering)
            nursery.cancel_scope.cancel()
    return _finish(target).batches


async def _fill(store: Store, plan: RestorePlan, target: Path) -> None:
    if plan.load is not None:
        await _load(plan, plan.load, target, store)
    with open_readonly(plan.source / "log") as source:
        if source.recorded.service:
            await store.save_service(source.recorded.service)
        await _copy(source.scan(plan.start, plan.point.position), store)


async def _vote(store: Store, *, recovering: bool) -> None:
    """Record that the whole log is committed, and whether the store has a vote."""
    await store.save_committed(store.append_position)
    if store.terms:  # so that it never votes or leads in a term that its log has
        await store.save_node_state(NodeState(store.log_term))
    if recovering:
        await store.save_voting_status(VotingStatus(VotingRight.RECOVERING))
    else:
        # The configurations in it are of the cluster before; the new one begins behind.
        floor = LogEnd(store.log_term, store.append_position)
        await store.save_voting_status(VotingStatus(floor=floor))


def _encoded(entry: Entry, store: Store, point: Point) -> bytes:
    """Return the batch of an entry behind the log of a store."""
    position = store.append_position
    return encode_batch(
        [entry],
        term=store.log_term,
        position=position,
        timestamp_ms=point.timestamp_ms,
        commit_position=position,
    )


async def make_source(directory: Path, head: SnapshotHead, *, rng: Random) -> None:
    """Make the log of a directory that holds only one snapshot to restore from.

    Args:
        directory: has the snapshot's file in its folder, and no store.
        head: of the snapshot.
        rng: draws the instance id.

    Raises:
        StorageError: there is a store; the disk failed or is full; something is damaged.
    """
    store = Store.open(_prepare(directory), cluster=head.cluster, member_id=NO_MEMBER, rng=rng)
    with closing(store):
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            await _install(store, head)
            if head.service:
                await store.save_service(head.service)
            nursery.cancel_scope.cancel()
    _finish(directory)


def check_empty(target: Path) -> None:
    """Refuse a directory that has a store.

    Raises:
        StoreMismatchError: it has one.
    """
    for name in ("log", "tables"):
        place = target / name
        there = content_of(place) if place.is_dir() else [place] * place.exists()
        if any(path.name != _RESTORING for path in there):
            raise StoreMismatchError(f"{place}: there is something already; move it away")


def _unfinished(target: Path) -> Path:
    """Return where to make a store that has no name yet.

    It is renamed to `log`. If `log` exists, being the root of a volume or a link, the store's files
    are moved into it.
    """
    log = target / "log"
    return log / _RESTORING if log.is_dir() else target / f"log.{_RESTORING}"


def _prepare(target: Path) -> Path:
    """Check that there is no store, and return where to make one."""
    check_empty(target)
    unfinished = _unfinished(target)
    with translating_errors(target):
        shutil.rmtree(unfinished, ignore_errors=True)
    SnapshotFolder(target / "snapshots").open([])
    return unfinished


def _finish(target: Path) -> VerifyReport:
    """Verify the new store, and give it its name."""
    unfinished = _unfinished(target)
    report = verify(unfinished)
    if not report.ok:
        raise StorageError(f"{unfinished}: {report.findings[0]}")
    with translating_errors(target):
        if unfinished.parent == target:
            unfinished.rename(target / "log")
            sync_directory(target)
        else:
            _move_up(unfinished, SnapshotFolder(target / "snapshots"))
    return report


def _move_up(unfinished: Path, snapshots: SnapshotFolder) -> None:
    """Move a store into the folder around it."""
    with open_readonly(unfinished) as store:
        for row in store.snapshots:  # `verify` looks for them next to the folder
            snapshots.check(row)
    for name in (JOURNAL_FILE, DATA_FILE):  # data.mdb last: with it there is a store
        if (unfinished / name).exists():
            (unfinished / name).rename(unfinished.parent / name)
    sync_directory(unfinished.parent)
    shutil.rmtree(unfinished)


async def _load(plan: RestorePlan, row: SnapshotRow, target: Path, store: Store) -> None:
    """Copy the snapshot, with the new cluster's name in it; the log begins behind it."""
    with SnapshotReader(SnapshotFolder(plan.source / "snapshots").path_of(row)) as reader:
        head = attrs.evolve(reader.head, cluster=store.identity.cluster)
        write_whole(target / "snapshots", head, reader.pieces())
    await _install(store, head)


async def _install(store: Store, head: SnapshotHead) -> None:
    """Begin the log of a store behind a snapshot."""
    await store.install(
        head.row,
        head.terms,
        suspended=head.suspended,
        membership=head.membership.encode(),
    )


async def _copy(batches: Iterator[bytes], store: Store) -> None:
    """Append batches, and wait until they are durable."""
    unsettled = 0
    for batch in batches:
        header = decode_header_untrusted(batch)
        store.append(batch, header=header)
        unsettled += header.length
        if unsettled >= SETTLE_BYTES:
            await store.settled()
            unsettled = 0
    await store.settled()
