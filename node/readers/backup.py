"""A backup: a snapshot of a cluster and the committed log after it, in a directory elsewhere.

The directory is laid out like a member's (``log`` and ``snapshots``), so the same tools read it; no
member accepts it, because it belongs to none. It begins with the cluster's newest snapshot, or with
the beginning of the log. Any later run continues it, from any member. Before that, its last batch
is compared with the cluster's, so logs of two histories are never mixed. (Aeron: ClusterBackup.)

A newer snapshot is fetched once the log after the last one is as long as the newer one's file. So a
restore never replays much more than it loads, and half of the directory is log. Nothing is ever
removed from a backup.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from ...errors import StorageError, StoreMismatchError, TransportError, WireError
from ...log_events import log_event
from ...storage import SnapshotFolder, Store, ThreadExecutor, decode_header_untrusted
from ...storage.rows.term_table import term_at
from ...transport import CONNECTION_ERRORS, NULL_VALUE
from ...transport.streams import describe
from ..follower.snapshot_install import fetch_snapshot
from ..one_error import one_error
from .replay_client import END_OF_TIME, PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from pathlib import Path
    from random import Random

    from ...storage import ExecutorFactory, SnapshotHead, Write
    from ...transport import BackupResponse
    from .replay_client import Batch, ReplayClient, ReplayStream

log = logging.getLogger("quorate.node")

BACKUP_MEMBER: Final = NULL_VALUE
"""The member id in a backup's store: no member has it."""

SAVE_BYTES: Final = 4 << 20
"""Log bytes received before they are made durable. If smaller, a backup waits for its disk more
often. If larger, a crash loses more, which is fetched again."""

SNAPSHOT_SECONDS: Final = 3600.0
"""How often a backup that follows looks for a newer snapshot (Aeron: the backup interval). If
smaller, members are asked more often. If larger, a restore may replay more log."""

RETRY_SECONDS: Final = 1.0
"""Pause after a failure of a member. If smaller, a dead cluster is asked more often. If larger, a
backup resumes later."""


class Backup:
    """An open backup; made by :func:`open_backup`.

    Attributes:
        store: its log.
        directory: of the store and the snapshots.
        trouble: why nothing more is recorded now, in words; empty if something is.
    """

    def __init__(
        self, directory: Path, store: Store, client: ReplayClient, report: Callable[[str], None]
    ) -> None:
        self.store = store
        self.directory = directory
        self._folder = SnapshotFolder(directory / "snapshots")
        self._client = client
        self._report = report
        self.trouble = ""
        self._last_said = ""
        self._source: int | None = None
        self._caught_up = False

    async def run(self, *, follow: bool = False) -> None:
        """Bring the backup up to what is committed now; if it follows, keep it so until cancelled.

        Raises:
            TransportError, OSError, trio's stream errors: no member could be reached, or each was
            lost repeatedly; never if it follows.
            PrunedError: the cluster's log does not reach back to where the backup ends.
            StoreMismatchError: the cluster's log is another one than the backup's.
            StorageError: the disk failed or is full, or a snapshot is damaged.
        """
        await self.store.executor.read(self._clear_up)
        failures, stop = 0, END_OF_TIME
        while True:
            before = self.store.append_position
            try:
                answers = await self._client.ask()
                self.trouble = ""
                if not follow and stop == END_OF_TIME:
                    stop = max(said.commit_position for said in answers)
                await self._check_service(answers)
                await self._begin(answers)
                with trio.move_on_after(SNAPSHOT_SECONDS):
                    await self._record(answers, stop)
                await self._refresh()
            except (*CONNECTION_ERRORS, TransportError) as trouble:
                failures = 1 if self.store.append_position > before else failures + 1
                if not follow and failures > len(self._client.addresses):
                    raise
                self.trouble = describe(trouble)
                # Who does not follow gets the reason in the end, as the error.
                self._say(f"{self.trouble if follow else 'no member could be read'}; retrying")
                self._source = None
                await trio.sleep(RETRY_SECONDS)
            else:
                if not follow:
                    return

    def _say(self, words: str) -> None:
        """Report a message, unless it repeats the last one."""
        if words != self._last_said:
            self._last_said = words
            self._report(words)

    def _clear_up(self) -> None:
        store = self.store
        missing = self._folder.open(
            store.snapshots, cluster=store.identity.cluster, terms=store.terms
        )
        if missing:
            names = ", ".join(row.name for row in missing)
            raise StorageError(f"{self._folder.directory}: snapshot files are missing: {names}")

    async def _check_service(self, answers: Sequence[BackupResponse]) -> None:
        """Record the kind of service that the log belongs to.

        Raises:
            StoreMismatchError: the cluster runs another kind than the backup's.
        """
        known = self.store.recorded.service
        for kind in {said.service: None for said in answers if said.service}:
            if known and kind != known:
                raise StoreMismatchError(
                    f"{self.directory}: a backup of a {known}, but the cluster runs a {kind}"
                )
            if not known:
                await self.store.save_service(kind)
                known = kind

    # --- snapshots --------------------------------------------------------------------------------

    async def _begin(self, answers: Sequence[BackupResponse]) -> None:
        """Begin with the newest snapshot, if the backup is empty and the cluster has one."""
        if self.store.append_position or self.store.snapshots:
            return
        newest = max(said.snapshot_position for said in answers)
        if newest != NULL_VALUE:
            head = await self._fetch(newest)
            membership = head.membership.encode()
            await self.store.install(
                head.row, head.terms, suspended=head.suspended, membership=membership
            )

    async def _refresh(self) -> None:
        """Fetch a newer snapshot if that is worth it; see the top of this file."""
        store = self.store
        since = store.snapshots[-1].position if store.snapshots else store.start_position
        for said in await self._client.ask():
            if since < said.snapshot_position <= store.append_position:
                if store.append_position - since >= said.snapshot_bytes:
                    head = await self._fetch(said.snapshot_position)
                    await store.add_snapshot(head.row)
                return

    async def _fetch(self, position: int) -> SnapshotHead:
        """Fetch the snapshot at a position into the backup's folder."""
        self._say(f"fetching the snapshot at {position}")
        try:
            async with await self._client.open_snapshot(position) as stream:
                return await fetch_snapshot(
                    stream,
                    self._folder,
                    judge=partial(self._judge, position),
                    read=self.store.executor.read,
                    arrived=lambda _offset, _file_bytes: None,
                    patience=PATIENCE_SECONDS,
                )
        except CONNECTION_ERRORS:
            if self._client.snapshot_source is not None:
                self._client.avoid(self._client.snapshot_source)
            raise

    def _judge(self, position: int, head: SnapshotHead) -> None:
        """Refuse a snapshot that was not requested, or that belongs to another log.

        Raises:
            TransportError: the member has a newer one by now.
            StorageError: it belongs to another log.
        """
        if (head.cluster, head.position) != (self._client.cluster, position):
            raise TransportError(
                f"a snapshot of cluster {head.cluster!r} at {head.position}, expected one of "
                f"{self._client.cluster!r} at {position}"
            )
        row = term_at(self.store.terms, position - 1)
        if row is not None and row.term != head.term:
            raise StorageError(
                f"the snapshot at {position} is of term {head.term}, but the log there is of term "
                f"{row.term}: they belong to different histories"
            )

    # --- the log ----------------------------------------------------------------------------------

    async def _record(self, answers: Sequence[BackupResponse], stop: int) -> None:
        """Record the committed log up to `stop`."""
        last = await self.store.last_batch()
        position = self.store.append_position
        if last is not None:
            begin = decode_header_untrusted(last).position
            if min(said.start_position for said in answers) <= begin:
                # Fetched once more, to compare it.
                position = begin
            else:
                last = None
        async with await self._client.replay(position, max(stop, position + 1)) as replay:
            if replay.member_id != self._source:
                self._source, self._caught_up = replay.member_id, False
                self._say(f"recording from member {replay.member_id}")
            try:
                if last is not None:
                    await self._compare(replay, last)
                await self._take(replay, stop)
            except CONNECTION_ERRORS:
                self._client.avoid(replay.address)
                raise

    async def _compare(self, replay: ReplayStream, last: bytes) -> None:
        """Check that the last batch of the backup is the cluster's too.

        Raises:
            StoreMismatchError: it is not.
        """
        while (batch := await replay.receive()) is None:
            pass
        if batch.data != last:
            raise StoreMismatchError(
                f"{self.directory}: its last batch, at {batch.header.position}, is not that of "
                f"cluster {self._client.cluster!r}, whose log is of another history now: expected "
                "the same batch; begin a backup in a new directory"
            )

    async def _take(self, replay: ReplayStream, stop: int) -> None:
        """Record what comes until `stop`, or until the member has become the leader."""
        unsaved = 0
        while self.store.submitted_position < stop:
            batch = await replay.receive()
            if batch is not None:
                self._append_untrusted(batch)
                unsaved += batch.header.length
            if batch is None or unsaved >= SAVE_BYTES:
                await self.save()
                unsaved = 0
            if batch is None and not self._caught_up:
                self._caught_up = True
                self._say(f"caught up with member {replay.member_id}, at {replay.position}")
            # Leave the leader alone; the next round finds a follower.
            if batch is None and replay.turned:
                self._client.avoid(replay.address)
                break
        await self.save()

    def _append_untrusted(self, batch: Batch) -> None:
        """Append a batch to the backup's log.

        Raises:
            WireError: it does not continue the log.
        """
        header, submitted = batch.header, self.store.submitted
        known = submitted.terms[-1].term if submitted.terms else -1
        if header.term < known or header.timestamp_ms < submitted.last_timestamp_ms:
            raise WireError(f"{header} does not continue the log, which ends in term {known}")
        self.store.append(batch.data, header=header)

    async def save(self) -> None:
        """Wait until everything received is durable, and record that all of it is committed.

        Call it after :meth:`run` was cancelled: a write of that moment ends later.

        Raises:
            StorageError: the disk failed or is full.
        """
        await self.store.settled()
        if self.store.last_commit_position < self.store.append_position:
            await self.store.save_committed(self.store.append_position)


def _log_step(what: str) -> None:
    log_event(log, logging.INFO, "backup", "%(what)s", what=what)


@one_error
@asynccontextmanager
async def open_backup(
    directory: Path,
    client: ReplayClient,
    *,
    rng: Random,
    executor: ExecutorFactory[Write] = ThreadExecutor,
    report: Callable[[str], None] = _log_step,
) -> AsyncGenerator[Backup, None]:
    """Open a backup for the duration of the block; begin one if there is none.

    Args:
        directory: of the backup.
        client: of the cluster.
        rng: draws the instance id of a new backup.
        executor: writes to disk on a thread unless given.
        report: called with a text for each step.

    Raises:
        StoreMismatchError: the directory is a member's, or the backup is of another cluster.
        StorageError: it is in use, or damaged.
    """
    store = Store.open(
        directory / "log",
        cluster=client.cluster,
        member_id=BACKUP_MEMBER,
        rng=rng,
        executor=executor,
    )
    with closing(store):
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            yield Backup(directory, store, client, report)
            nursery.cancel_scope.cancel()
