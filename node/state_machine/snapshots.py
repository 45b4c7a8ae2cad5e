"""The snapshots of one member: taken, kept, loaded at the start, and installed from elsewhere.

A snapshot is a cluster action in the log: when a member applies it, it cuts its service's state at
the end of that batch, on all members the same place, and goes on while the state of the cut is
written by another thread. When it is durable its row goes into the recording log; then the oldest
ones are dropped, and after them the log that none of those left needs.

At the start the service's own state is taken if the log reaches back to it; else the newest
snapshot that is whole. One that is damaged is told and passed over. If none is left, one is fetched
from another member (see :mod:`.reloading`), before which nothing is applied.

A member whose log ends before the others' begin installs a snapshot that it has fetched (see
:mod:`.installing`): the log begins anew at its position, and the service is loaded. Once begun
this goes on whatever becomes of the role that wanted it: an election waits for it in INIT. A crash
in the middle leaves a service that is behind the log's start, which the next start mends.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from ...errors import DamagedTablesError, StorageError, StoreFullError
from ...storage import SnapshotFolder, SnapshotReader, SnapshotWriter, head_of
from ...storage.lmdb.environment import free_bytes
from ...storage.tools.recovery_plan import candidates
from ..protocol.signal import Signal
from .service import SnapshotService

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Never

    from ...storage import BatchHeader, Executor, SnapshotHead, SnapshotRow, Store, Write
    from ..config.config import NodeConfig
    from .applier import Applier

log = logging.getLogger("quorate.node")

T = TypeVar("T")

PAUSE: Final = 1.0
"""How long the writing of a snapshot rests after each piece, as a part of what that took: what the
members do meanwhile shares the processors and the disk with it."""

MAX_HELD_BYTES: Final = 4 << 30
"""Most log that is kept for members that install a snapshot, beyond what is kept anyhow."""


class Snapshots:
    """The snapshots of a member.

    Args:
        config: of the member.
        store: its recording log says which there are.
        applier: of the service.
        lane: where files are read and written; its `read` is all that is used.
        free: says how many bytes are free on the disk.

    Attributes:
        folder: where they lie.
        position: the last one taken or begun, or met in the log.
        writing: bytes of state written of the one that is being taken, None without one.
        installing: one is being installed.
        arrived: bytes that have come of one from elsewhere, and of its file; None without one.
        held: from where log is kept for members that install a snapshot, by member.
        changed: notified when one has come into being, or failed.
        failure: why the last one failed, empty if it did not.
    """

    def __init__(
        self,
        config: NodeConfig,
        store: Store,
        applier: Applier,
        lane: Executor[Write],
        free: Callable[[Path], int] = free_bytes,
    ) -> None:
        self.folder = SnapshotFolder(config.directory / "snapshots")
        self.position = store.snapshots[-1].position if store.snapshots else 0
        self._entries = 0  # applied before the last one
        self.writing: int | None = None
        self.installing = False
        self.arrived: tuple[int, int] | None = None
        self.held: dict[int, int] = {}
        self.changed = Signal()
        self.failure = ""
        self._config = config
        self._store = store
        self._applier = applier
        self._lane = lane
        self._free = free
        self._cleaning = trio.Lock()
        self._nursery: trio.Nursery | None = None

    @property
    def service(self) -> SnapshotService | None:
        """The service, if it has snapshots."""
        service = self._applier.service
        return service if isinstance(service, SnapshotService) else None

    @property
    def newest(self) -> SnapshotRow | None:
        """The newest one."""
        return self._store.snapshots[-1] if self._store.snapshots else None

    @property
    def activity(self) -> str:
        """What is being done, in words; empty if nothing is."""
        if self.installing:
            return "installing a snapshot"
        if self.writing is not None:
            return f"taking a snapshot, {self.writing >> 20} MiB so far"
        if self.arrived is not None:
            return f"fetching a snapshot, {self.arrived[0] >> 20} of {self.arrived[1] >> 20} MiB"
        return ""

    @property
    def due(self) -> bool:
        """Whether the rule asks for one."""
        policy = self._config.snapshot
        if self.service is None or self.writing is not None:
            return False
        grown = self._applier.applied_position - self.position
        entries = self._applier.entries - self._entries
        return grown >= policy.interval_bytes or entries >= policy.interval_entries > 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Clear up, load what the service lacks, and start; then take and install, until cancelled.

        Raises:
            StorageError: the log does not reach back to the service's state, no snapshot is whole,
                and there is no other member.
        """
        store = self._store
        cluster, terms = store.identity.cluster, store.terms
        missing = await self._lane.read(
            partial(self.folder.open, store.snapshots, cluster=cluster, terms=terms)
        )
        if missing:
            names = ", ".join(row.name for row in missing)
            log.error("member %d: missing snapshots: %s", self._config.member_id, names)
            await self._store.remove_snapshots(*missing)
        await self._recover()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()
        raise AssertionError("it sleeps for ever")  # pragma: no cover - never reached

    # --- at the start -----------------------------------------------------------------------------

    async def _recover(self) -> None:
        """Load a snapshot if the service's own state is none, or the log does not reach it."""
        store, position = self._store, self._applier.applied_position
        for row in candidates(position, store.start_position, store.snapshots):
            try:
                await self._lane.read(partial(self.folder.check, row))
            except StorageError as error:
                log.error(  # noqa: TRY400 - the words say it all
                    "member %d: a damaged snapshot is passed over: %s",
                    self._config.member_id,
                    error,
                )
                continue
            await self._load(row)
            return
        if position < store.start_position and self._config.peers:
            self._applier.wanting = True
        elif position < store.start_position:
            raise StorageError(
                f"member {self._config.member_id}: the service is at {position}, the log begins at "
                f"{store.start_position}, and there is no whole snapshot to begin with"
            )

    async def _load(self, row: SnapshotRow) -> None:
        service = self.service
        if service is None:
            raise StorageError(
                f"member {self._config.member_id}: there is a snapshot at {row.position}, but "
                "this service can't load any"
            )
        with SnapshotReader(self.folder.path_of(row)) as reader:
            await service.load(reader.pieces(), row.position, row.timestamp_ms)
        self._applier.jump(row.position, row.timestamp_ms)
        self.position = row.position
        log.info(
            "member %d: snapshot at %d is loaded; the log goes on to %d",
            self._config.member_id,
            row.position,
            self._store.append_position,
        )

    # --- taking -----------------------------------------------------------------------------------

    async def cut(self, header: BatchHeader) -> None:
        """Begin one as of the end of a batch; on return the batches behind it are applied."""
        if self.service is None:
            return
        if header.end <= self.position or self._nursery is None:
            return  # we have it
        self.position, self._entries = header.end, self._applier.entries
        if self.writing is not None or self.installing:
            log.warning(
                "member %d: no snapshot at %d: the one before is still being written",
                self._config.member_id,
                header.end,
            )
            return
        self.writing, self.failure = 0, ""
        began = trio.current_time()
        await self._nursery.start(self._take, header)
        pause = trio.current_time() - began
        log.info(
            "member %d: snapshot at %d begun, nothing was applied for %.1f ms",
            self._config.member_id,
            header.end,
            1000 * pause,
        )

    async def _take(
        self, header: BatchHeader, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Write a snapshot as of the end of a batch; started once the state is cut."""
        cut = _Once(task_status)
        began = trio.current_time()
        try:
            head = head_of(
                self._config.cluster,
                self._store.terms,
                position=header.end,
                term=header.term,
                timestamp_ms=header.timestamp_ms,
                suspended=self._store.recorded.suspended,
                service=self._store.recorded.service,
            )
            assert self.service is not None
            pieces = await self.service.save(task_status=cut)
            size = await self._write(head, pieces)
            await self._store.add_snapshot(head.row)
            log.info(
                "member %d: snapshot at %d: %d bytes in %.1f s",
                self._config.member_id,
                header.end,
                size,
                trio.current_time() - began,
            )
        except DamagedTablesError:
            raise  # it would not go better the next time
        except StorageError as error:
            self.failure = str(error)
            log.exception("member %d: no snapshot at %d", self._config.member_id, header.end)
        finally:
            self.writing = None
            self.changed.notify()
            cut.started()
        try:
            await self.clean()
        except StorageError:
            log.exception("member %d: not cleaned up", self._config.member_id)

    async def _write(self, head: SnapshotHead, pieces: Iterator[bytes]) -> int:
        """Write the file; give its bytes."""
        make = partial(SnapshotWriter, self.folder.directory, head, pieces)
        writer = await self._lane.read(make)
        try:
            while True:
                began = trio.current_time()
                if not await self._lane.read(writer.step):
                    break
                self.writing = writer.raw_bytes
                self.check_room()
                await trio.sleep(PAUSE * (trio.current_time() - began))
            summary = await self._lane.read(writer.finish)
        except StorageError:
            writer.abandon()
            raise
        finally:
            writer.close()
        return summary.file_bytes

    async def read(self, fn: Callable[[], T]) -> T:
        """Call what blocks on files of snapshots, without holding up the event loop."""
        return await self._lane.read(fn)

    def check_room(self) -> None:
        """Look whether there is room for more; the reserve is not for snapshots.

        Raises:
            StoreFullError: there is not.
        """
        free, reserve = self._free(self.folder.directory), self._config.limits.reserve_bytes
        if free < 2 * reserve:
            raise StoreFullError(f"{free} bytes are free, and the reserve is {reserve}")

    async def quiet(self) -> None:
        """Wait until none is being taken or installed."""
        while self.writing is not None or self.installing:
            await self.changed.wait()

    async def taken(self, position: int) -> SnapshotRow | None:
        """Wait for the snapshot at a position that the log asks for; None if it failed."""
        while self.position < position or (self.position == position and self.writing is not None):
            await self.changed.wait()
        return next((row for row in self._store.snapshots if row.position == position), None)

    # --- dropping ---------------------------------------------------------------------------------

    async def clean(self) -> None:
        """Drop the snapshots that are too many, and the log that nobody needs any more."""
        async with self._cleaning:
            await self._clean()

    async def _clean(self) -> None:
        store, policy = self._store, self._config.snapshot
        surplus = store.snapshots[: -policy.keep]
        if surplus:
            await store.remove_snapshots(*surplus)
            for row in surplus:
                await self._lane.read(partial(self.folder.remove, row))
        if len(store.snapshots) < policy.keep:
            return  # the next older one is no help without the log behind it
        end = store.snapshots[0].position - policy.margin_bytes
        bound = end - MAX_HELD_BYTES
        await store.drop_prefix(max(bound, min([end, *self.held.values()])))

    # --- installing -------------------------------------------------------------------------------

    async def install(self, head: SnapshotHead) -> None:
        """Begin anew with a snapshot whose file has come; see the top of this page."""
        assert self._nursery is not None
        self.installing = True
        self._nursery.start_soon(self._install, head)
        await self.idle()

    async def reload(self, head: SnapshotHead) -> None:
        """Load the service with a snapshot that has come from elsewhere and is of our own log."""
        async with self._applier.halted():
            await self._store.add_snapshot(head.row)
            await self._load(head.row)

    async def idle(self) -> None:
        """Wait until none is being installed."""
        while self.installing:
            await self.changed.wait()

    async def _install(self, head: SnapshotHead) -> None:
        row = head.row
        while self.writing is not None:
            await self.changed.wait()
        async with self._applier.halted():
            gone = [old for old in self._store.snapshots if old != row]
            await self._store.install(row, head.terms, suspended=head.suspended)
            await self._load(row)
        self.installing = False
        self.changed.notify()
        for old in gone:
            await self._lane.read(partial(self.folder.remove, old))


class _Once:
    """A task status of which one may say `started` more than once."""

    def __init__(self, status: trio.TaskStatus[None]) -> None:
        self._status: trio.TaskStatus[None] | None = status

    def started(self, value: None = None) -> None:
        """Say it, the first time."""
        status, self._status = self._status, None
        if status is not None:
            status.started(value)
