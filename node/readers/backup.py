"""A backup: a snapshot of a cluster and the committed log behind it, in a directory elsewhere.

The directory is like a member's (``log`` and ``snapshots``), so the same tools read it; as a
member's it is refused, for it belongs to none. It begins with the cluster's newest snapshot, or
with the log's beginning if there is none, and goes on where it ended, whenever and from whichever
member. Before that the last batch here is compared with the cluster's: a log of another history,
of a cluster that was restored meanwhile, is never mixed in. (Aeron: ClusterBackup.)

A newer snapshot is fetched once there is as much log behind the one before as its file is long:
then a restore never replays much more than it loads, and half of the directory is log. Nothing is
ever removed from a backup.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from ...errors import StorageError, StoreMismatchError, TransportError, WireError
from ...storage import SnapshotFolder, Store, ThreadExecutor, decode_header_untrusted
from ...storage.log.term_table import term_at
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
    from .replay_client import Batch, Replay, ReplayClient

log = logging.getLogger("quorate.node")

BACKUP_MEMBER: Final = NULL_VALUE
"""Whose store a backup is: no member's."""

SAVE_BYTES: Final = 4 << 20
"""So much log is taken before it is waited for that it is durable."""

SNAPSHOT_SECONDS: Final = 3600.0
"""How often a backup that follows looks for a newer snapshot. (Aeron: the backup interval.)"""

RETRY_SECONDS: Final = 1.0
"""Pause after trouble with a member."""


class Backup:
    """A backup that is open; made by :func:`open_backup`.

    Attributes:
        store: its log.
        directory: of the store and the snapshots.
    """

    def __init__(
        self, directory: Path, store: Store, client: ReplayClient, tell: Callable[[str], None]
    ) -> None:
        self.store = store
        self.directory = directory
        self._folder = SnapshotFolder(directory / "snapshots")
        self._client = client
        self._tell = tell
        self._told = ""
        self._source: int | None = None
        self._level = False

    async def run(self, *, follow: bool = False) -> None:
        """Bring it to what is committed now; if it is to follow, keep it there until cancelled.

        Raises:
            TransportError, OSError, trio's errors of streams: no member could be reached, or each
                was lost again and again; never if it follows.
            PrunedError: the cluster's log does not reach back to where this one ends.
            StoreMismatchError: the cluster's log is not the one that is here.
            StorageError: the disk failed or is full; or a snapshot is damaged.
        """
        await self.store.executor.read(self._clear_up)
        failures, stop = 0, END_OF_TIME
        while True:
            before = self.store.append_position
            try:
                answers = await self._client.ask()
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
                self._say(f"{describe(trouble)}: trying again")
                self._source = None
                await trio.sleep(RETRY_SECONDS)
            else:
                if not follow:
                    return

    def _say(self, words: str) -> None:
        """Tell something, once in a row."""
        if words != self._told:
            self._told = words
            self._tell(words)

    def _clear_up(self) -> None:
        store = self.store
        missing = self._folder.open(
            store.snapshots, cluster=store.identity.cluster, terms=store.terms
        )
        if missing:
            names = ", ".join(row.name for row in missing)
            raise StorageError(f"{self._folder.directory}: missing snapshots: {names}")

    async def _check_service(self, answers: Sequence[BackupResponse]) -> None:
        """Note of what kind of service the log is.

        Raises:
            StoreMismatchError: the cluster's is another one than the one that is here.
        """
        known = self.store.recorded.service
        for kind in {said.service: None for said in answers if said.service}:
            if known and kind != known:
                raise StoreMismatchError(
                    f"{self.directory}: a backup of a {known}, the cluster runs a {kind}"
                )
            if not known:
                await self.store.save_service(kind)
                known = kind

    # --- snapshots --------------------------------------------------------------------------------

    async def _begin(self, answers: Sequence[BackupResponse]) -> None:
        """Begin with the newest snapshot, if nothing is here and there is one."""
        if self.store.append_position or self.store.snapshots:
            return
        newest = max(said.snapshot_position for said in answers)
        if newest != NULL_VALUE:
            head = await self._fetch(newest)
            await self.store.install(head.row, head.terms, suspended=head.suspended)

    async def _refresh(self) -> None:
        """Fetch a newer snapshot if there is one that is worth it; see the top of this page."""
        store = self.store
        since = store.snapshots[-1].position if store.snapshots else store.start_position
        for said in await self._client.ask():
            if since < said.snapshot_position <= store.append_position:
                if store.append_position - since >= said.snapshot_bytes:
                    head = await self._fetch(said.snapshot_position)
                    await store.add_snapshot(head.row)
                return

    async def _fetch(self, position: int) -> SnapshotHead:
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
        """Refuse a snapshot that is not what was asked for, or not of the log that is here.

        Raises:
            TransportError: the member has a newer one by now.
            StorageError: it is of another log.
        """
        if (head.cluster, head.position) != (self._client.cluster, position):
            raise TransportError(
                f"a snapshot of cluster {head.cluster!r} at {head.position}, expected one of "
                f"{self._client.cluster!r} at {position}"
            )
        row = term_at(self.store.terms, position - 1)
        if row is not None and row.term != head.term:
            raise StorageError(f"a snapshot of term {head.term}, the log there is of {row.term}")

    # --- the log ----------------------------------------------------------------------------------

    async def _record(self, answers: Sequence[BackupResponse], stop: int) -> None:
        """Record the committed log up to `stop`."""
        last = await self.store.last_batch()
        position = self.store.append_position
        if last is not None:
            begin = decode_header_untrusted(last).position
            if min(said.start_position for said in answers) <= begin:
                position = begin  # to compare it
            else:
                last = None
        async with await self._client.replay(position, max(stop, position + 1)) as replay:
            if replay.member_id != self._source:
                self._source, self._level = replay.member_id, False
                self._say(f"recording from member {replay.member_id}")
            try:
                if last is not None:
                    await self._compare(replay, last)
                await self._take(replay, stop)
            except CONNECTION_ERRORS:
                self._client.avoid(replay.address)
                raise

    async def _compare(self, replay: Replay, last: bytes) -> None:
        """Look whether the last batch here is the cluster's too.

        Raises:
            StoreMismatchError: it is not.
        """
        while (batch := await replay.receive()) is None:
            pass
        if batch.data != last:
            raise StoreMismatchError(
                f"{self.directory}: the last batch here, at {batch.header.position}, is not that "
                f"of cluster {self._client.cluster!r}: its log is of another history, and needs a "
                "backup in a directory of its own"
            )

    async def _take(self, replay: Replay, stop: int) -> None:
        """Record what comes until `stop`, or until the member has become the leader."""
        unsaved = 0
        while self.store.appended_position < stop:
            batch = await replay.receive()
            if batch is not None:
                self._append_untrusted(batch)
                unsaved += batch.header.length
            if batch is None or unsaved >= SAVE_BYTES:
                await self._save()
                unsaved = 0
            if batch is None and not self._level:
                self._level = True
                self._say(f"level with member {replay.member_id}, at {replay.position}")
            if batch is None and replay.turned:
                self._client.avoid(replay.address)
                break
        await self._save()

    def _append_untrusted(self, batch: Batch) -> None:
        """Record a batch behind the others.

        Raises:
            WireError: it does not go on from them.
        """
        header, submitted = batch.header, self.store.submitted
        known = submitted.terms[-1].term if submitted.terms else -1
        if header.term < known or header.timestamp_ms < submitted.last_timestamp_ms:
            raise WireError(f"{header} does not go on from term {known}")
        self.store.append(batch.data, header=header)

    async def _save(self) -> None:
        """Wait until what came is durable, and note that all of it is committed."""
        await self.store.settled()
        if self.store.last_commit_position < self.store.append_position:
            await self.store.save_committed(self.store.append_position)


@one_error
@asynccontextmanager
async def open_backup(
    directory: Path,
    client: ReplayClient,
    *,
    rng: Random,
    executor: ExecutorFactory[Write] = ThreadExecutor,
    tell: Callable[[str], None] = log.info,
) -> AsyncGenerator[Backup, None]:
    """Open a backup for the length of the block; begin one if there is none.

    Args:
        directory: of the backup.
        client: of the cluster.
        rng: draws the instance id of a new one.
        executor: writes to disk on a thread unless given.
        tell: is told, in words, what is being done.

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
            yield Backup(directory, store, client, tell)
            nursery.cancel_scope.cancel()
