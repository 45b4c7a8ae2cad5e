"""The snapshots of one member: taken, kept, loaded at the start, and installed from another member.

Taking one
    A snapshot is a cluster action in the log. A member that applies it cuts its service's state at
    the end of that batch, which is the same place on all members. It then continues, while another
    thread writes the state of the cut. When the file is durable, its row goes into the recording
    log. Then the oldest snapshots are dropped, and the log that no remaining one needs.

Starting
    The service's own state is used if the log reaches back to it, else the newest intact snapshot.
    A damaged one is logged and skipped. If there is none, one is fetched from another member
    (:mod:`..follower.snapshot_install`), and nothing is applied before.

Installing
    A member whose log ends before the other members' logs begin installs a fetched snapshot: its
    log begins anew at the snapshot's position, and the service loads it. Once begun, this continues
    even if the role that wanted it ends; an election waits for it in INIT. A crash in the middle
    leaves a service that is behind the log's start, which the next start repairs.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
import trio

from ...errors import DamagedTablesError, StorageError, StoreFullError
from ...log_events import log_event
from ...metrics import Histogram
from ...storage import NO_STATE, SnapshotFolder, SnapshotReader, SnapshotWriter, head_of
from ...storage.lmdb.environment import free_bytes
from ...storage.tools.recovery_plan import candidates
from ..protocol.signal import Signal
from .service import SnapshotService
from .witness import LEAST_KEPT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Never

    from ...storage import BatchHeader, Executor, SnapshotHead, SnapshotRow, Store, Write
    from ..config.config import NodeConfig
    from ..configurations import Configurations
    from .applier import Applier

log = logging.getLogger("quorate.node")

T = TypeVar("T")

PAUSE: Final = 1.0
"""Rest after each piece, as a share of the time that it took to write. If smaller, a snapshot takes
more processor and disk from the clients. If larger, it is longer under way."""

SNAPSHOT_SECONDS: Final = 2.0**-6
"""Upper bound of the first bucket of durations, about 16 ms, so that the last bound is over four
hours. Smaller: long snapshots can't be told apart. Larger: short ones can't."""

MAX_HELD_BYTES: Final = 4 << 30
"""Log that is kept for members that install a snapshot, beyond what is kept anyway. If smaller, a
slow installation may have to begin again. If larger, a member that never finishes fills the disk.
"""


class Snapshots:
    """The snapshots of a member.

    Args:
        config: of the member.
        store: its recording log lists the snapshots.
        applier: of the service.
        lane: runs blocking file operations; only its `read` is used.
        configurations: of the log; each snapshot has that of its position.
        free: returns how many bytes are free on the disk of a directory.

    Attributes:
        folder: holds the files.
        position: of the last snapshot that was taken, begun, or met in the log.
        writing: bytes of state written of the snapshot being taken, None if none is.
        installing: a snapshot is being installed.
        arrived: bytes received and file size of the snapshot being fetched, None if none is.
        held: by member, the position from which log is kept while it installs a snapshot.
        changed: notified when a snapshot was finished, or failed.
        failure: why the last one that ended has failed, empty if it did not.
        outcomes: how many were taken, failed, were skipped, and were installed.
        duration: seconds that it took to take one.
    """

    def __init__(
        self,
        config: NodeConfig,
        store: Store,
        applier: Applier,
        lane: Executor[Write],
        *,
        configurations: Configurations,
        free: Callable[[Path], int] = free_bytes,
    ) -> None:
        self.folder = SnapshotFolder(config.directory / "snapshots")
        self.position = store.snapshots[-1].position if store.snapshots else 0
        self._entries = 0  # `applier.entries` at the last snapshot
        self.writing: int | None = None
        self.installing = False
        self.arrived: tuple[int, int] | None = None
        self.held: dict[int, int] = {}
        self.changed = Signal()
        self.failure = ""
        self.outcomes: dict[str, int] = {}
        self.outcomes |= dict.fromkeys(("taken", "failed", "skipped", "installed"), 0)
        self.duration = Histogram(SNAPSHOT_SECONDS)
        self._config = config
        self._store = store
        self._applier = applier
        self._lane = lane
        self._configurations = configurations
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
        """The newest snapshot that has a state, None without one."""
        if self._config.own.witness or not self._store.snapshots:
            return None
        return self._store.snapshots[-1]

    @property
    def activity(self) -> str:
        """What is being done with a snapshot, in words; empty if nothing."""
        if self.installing:
            return "installing a snapshot"
        if self.writing is not None:
            return f"taking a snapshot, {self.writing >> 20} MiB so far"
        if self.arrived is not None:
            return f"fetching a snapshot, {self.arrived[0] >> 20} of {self.arrived[1] >> 20} MiB"
        return ""

    @property
    def due(self) -> bool:
        """Whether the policy asks for a snapshot now."""
        policy = self._config.snapshot
        # While one is written `cut` skips the next, so its action in the log would be in vain.
        if self.service is None or self.writing is not None:
            return False
        grown = self._applier.applied_position - self.position
        entries = self._applier.entries - self._entries
        return grown >= policy.interval_bytes or entries >= policy.interval_entries > 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Clean up, load the state that the service needs, and start; then run until cancelled.

        Raises:
            StorageError: the log does not reach back to the service's state, no snapshot is intact,
                and there is no other member.
        """
        store = self._store
        cluster, terms = store.identity.cluster, store.terms
        missing = await self._lane.read(
            partial(self.folder.open, store.snapshots, cluster=cluster, terms=terms)
        )
        # Their rows go, or a start would count on a file that is not there.
        if missing:
            log_event(
                log,
                logging.ERROR,
                "snapshot_missing",
                "member %(member)d: snapshot files missing: %(names)s",
                member=self._config.member_id,
                names=", ".join(row.name for row in missing),
            )
            await self._store.remove_snapshots(*missing)
        if not self._config.own.witness:
            await self._remove_heads()
        # Before anything is applied: the service must have the state that the log goes on from
        # (H19).
        await self._recover()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()
        raise AssertionError("it sleeps for ever")  # pragma: no cover - never reached

    # --- at the start -----------------------------------------------------------------------------

    async def _remove_heads(self) -> None:
        """Remove snapshots from when this member was a witness: to load one would lose all."""
        for row in self._store.snapshots:
            head = await self._lane.read(partial(self.folder.head_in, row))
            if head is not None and head.service == NO_STATE:
                await self._store.remove_snapshots(row)
                await self._lane.read(partial(self.folder.remove, row))

    async def _recover(self) -> None:
        """Load a snapshot if the log does not reach back to the service's own state."""
        store, position = self._store, self._applier.applied_position
        for row in candidates(position, store.start_position, store.snapshots):
            try:
                await self._lane.read(partial(self.folder.check, row))
            except StorageError as error:
                log_event(
                    log,
                    logging.ERROR,
                    "snapshot_damaged",
                    "member %(member)d: skipping a damaged snapshot: %(why)s",
                    member=self._config.member_id,
                    why=str(error),
                )
                # An older one needs more log, which is kept for just this case (I-42).
                continue
            await self._load(row)
            return
        if position < store.start_position and (self._config.peers or store.memberships):
            # Other members have equal snapshots (I-24); INIT waits until one was fetched.
            self._applier.wanting = True
        elif position < store.start_position:
            raise StorageError(
                f"member {self._config.member_id}: the service's state ends at {position}, the log "
                f"begins at {store.start_position}, and there is no intact snapshot between; "
                "restore this member from a backup"
            )

    async def _load(self, row: SnapshotRow) -> None:
        service = self.service
        if service is None:
            raise StorageError(
                f"member {self._config.member_id}: the state must be loaded from the snapshot at "
                f"{row.position}, but this service has no snapshots: expected a SnapshotService"
            )
        with SnapshotReader(self.folder.path_of(row)) as reader:
            await service.load(reader.pieces(), row.position, row.timestamp_ms)
        # After the load, so that the applier never goes on from a state that is half loaded.
        self._applier.jump(row.position, row.timestamp_ms)
        self.position = row.position
        log_event(
            log,
            logging.DEBUG,
            "snapshot",
            "member %(member)d: %(what)s the snapshot at %(position)d",
            member=self._config.member_id,
            what="loaded",
            position=row.position,
        )

    # --- taking -----------------------------------------------------------------------------------

    async def cut(self, header: BatchHeader) -> None:
        """Begin a snapshot as of the end of a batch; returns when the state is cut."""
        if self.service is None:
            return
        if header.end <= self.position or self._nursery is None:
            return  # taken already, or the tasks are not running yet
        # Before the check below: a snapshot that is left out must not be asked for again at once.
        self.position, self._entries = header.end, self._applier.entries
        if self.writing is not None or self.installing:
            self.outcomes["skipped"] += 1
            log_event(
                log,
                logging.WARNING,
                "snapshot",
                "member %(member)d: no snapshot at %(position)d: the previous one is still being "
                "written",
                member=self._config.member_id,
                what="left out",
                position=header.end,
            )
            return
        # If the member ends right now, our nursery may be closed already.
        await trio.lowlevel.checkpoint_if_cancelled()
        self.writing = 0
        began = trio.current_time()
        # Waits for the cut only. A later cut would have entries that other members' snapshots do
        # not have (I-24).
        await self._nursery.start(self._take, header)
        pause = trio.current_time() - began
        log_event(
            log,
            logging.DEBUG,
            "snapshot",
            "member %(member)d: snapshot at %(position)d begun; nothing was applied for "
            "%(took).4f s",
            member=self._config.member_id,
            what="begun",
            position=header.end,
            took=pause,
        )

    async def _take(
        self, header: BatchHeader, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Write a snapshot as of the end of a batch; `started` once the state is cut."""
        cut = _RepeatableStatus(task_status)
        began = trio.current_time()
        try:
            head = head_of(
                self._config.cluster,
                self._store.terms,
                position=header.end,
                term=header.term,
                timestamp_ms=header.timestamp_ms,
                suspended=self._store.recorded.suspended,
                service=NO_STATE if self._config.own.witness else self._store.recorded.service,
                # As of the snapshot, not the newest: the log behind it brings the later ones.
                membership=self._configurations.payload_at(header.end),
            )
            assert self.service is not None
            pieces = await self.service.save(task_status=cut)
            size = await self._write(head, pieces)
            # The row comes last: a row must never name a file that a crash could take away.
            await self._store.add_snapshot(head.row)
            # Not when it began: until one succeeds, a monitor has to see that the last one failed.
            self.failure = ""
            self._taken(header.end, size, trio.current_time() - began)
        except DamagedTablesError:
            raise  # the next snapshot would fail too: the member must begin anew
        # A snapshot that fails, as on a full disk, is no reason to stop serving: the log is still
        # whole.
        except StorageError as error:
            self.failure = str(error)
            self.outcomes["failed"] += 1
            self._log_failed(header.end)
        finally:
            self.writing = None
            self.changed.notify()
            # Whatever failed, the applier must not wait for the cut any longer.
            cut.started()
        try:
            # After the new one is durable, never before: a crash between would leave one snapshot
            # too few.
            await self.clean()
        except StorageError:
            own, words = self._config.member_id, "member %(member)d: old snapshots were not removed"
            log_event(log, logging.ERROR, "snapshots_not_removed", words, exc_info=True, member=own)

    def _taken(self, position: int, size: int, took: float) -> None:
        """Count and log a snapshot that was taken."""
        self.outcomes["taken"] += 1
        self.duration.observe(took)
        log_event(
            log,
            logging.DEBUG,
            "snapshot",
            "member %(member)d: snapshot at %(position)d: %(bytes)d bytes in %(took).1f s",
            member=self._config.member_id,
            what="taken",
            position=position,
            bytes=size,
            took=took,
        )

    def _log_failed(self, position: int) -> None:
        log_event(
            log,
            logging.ERROR,
            "snapshot",
            "member %(member)d: no snapshot at %(position)d",
            exc_info=True,
            member=self._config.member_id,
            what="failed",
            position=position,
        )

    async def _write(self, head: SnapshotHead, pieces: Iterator[bytes]) -> int:
        """Write the file of a snapshot; return its size in bytes."""
        make = partial(SnapshotWriter, self.folder.directory, head, pieces)
        writer = await self._lane.read(make)
        try:
            while True:
                began = trio.current_time()
                if not await self._lane.read(writer.step):
                    break
                self.writing = writer.raw_bytes
                # Again for each piece: clients fill the same disk while we write.
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
        """Call a function that blocks on snapshot files, without blocking the event loop."""
        return await self._lane.read(fn)

    def check_room(self) -> None:
        """Check that a snapshot may use more disk space; the reserve is not for snapshots.

        Raises:
            StoreFullError: less than twice the reserve is free.
        """
        free, reserve = self._free(self.folder.directory), self._config.limits.reserve_bytes
        # Twice, so that what a snapshot leaves still holds the reserve for the log.
        if free < 2 * reserve:
            raise StoreFullError(
                f"{free} bytes are free: a snapshot needs {2 * reserve}, twice limits.reserve_bytes"
            )

    async def quiet(self) -> None:
        """Wait until no snapshot is being taken or installed."""
        while self.writing is not None or self.installing:
            await self.changed.wait()

    async def taken(self, position: int) -> SnapshotRow | None:
        """Wait for the snapshot at a position that the log asks for; return None if it failed."""
        while self.position < position or (self.position == position and self.writing is not None):
            await self.changed.wait()
        return next((row for row in self._store.snapshots if row.position == position), None)

    # --- dropping ---------------------------------------------------------------------------------

    async def clean(self) -> None:
        """Drop surplus snapshots, and the log that nobody needs any more."""
        async with self._cleaning:
            await self._clean()

    async def _clean(self) -> None:
        store, policy = self._store, self._config.snapshot
        keep = max(policy.keep, LEAST_KEPT) if self._config.own.witness else policy.keep
        surplus = store.snapshots[:-keep]
        if surplus:
            # The row first: a file without a row is a leftover, a row without a file is damage.
            await store.remove_snapshots(*surplus)
            for row in surplus:
                await self._lane.read(partial(self.folder.remove, row))
        if len(store.snapshots) < keep:
            # If the only snapshot is damaged, the log before it is what the state is made from.
            return
        end = store.snapshots[0].position - policy.margin_bytes
        # A member that never finishes its installation must not fill our disk.
        bound = end - MAX_HELD_BYTES
        # I-42: never beyond the oldest snapshot that is left, or a start from it would have a hole.
        await store.drop_prefix(max(bound, min([end, *self.held.values()])))

    # --- installing -------------------------------------------------------------------------------

    async def install(self, head: SnapshotHead) -> None:
        """Begin anew with a snapshot whose file has arrived; see "Installing" above."""
        assert self._nursery is not None
        self.installing = True
        # In our own nursery: the role that asked may end, and half an installation is no state.
        self._nursery.start_soon(self._install, head)
        await self.idle()

    async def keep_head(self, head: SnapshotHead) -> None:
        """Write the head of another member's snapshot into a file, as a witness keeps it."""
        await self._write(attrs.evolve(head, service=NO_STATE), iter(()))

    async def reload(self, head: SnapshotHead) -> None:
        """Load the service from a fetched snapshot that belongs to our own log."""
        async with self._applier.halted():
            await self._store.add_snapshot(head.row)
            await self._load(head.row)

    async def idle(self) -> None:
        """Wait until no snapshot is being installed."""
        while self.installing:
            await self.changed.wait()

    async def _install(self, head: SnapshotHead) -> None:
        """Replace the log's beginning and the service's state by a snapshot."""
        row = head.row
        while self.writing is not None:
            await self.changed.wait()
        async with self._applier.halted():
            gone = [old for old in self._store.snapshots if old != row]
            # The log first: after a crash in between, the tables are behind its start, which the
            # next start sees and repairs.
            await self._store.install(
                row,
                head.terms,
                suspended=head.suspended,
                membership=head.membership.encode(),
            )
            await self._load(row)
        self.outcomes["installed"] += 1
        # No `finally`: an error ends the member, and waiters must not take it for success.
        self.installing = False
        self.changed.notify()
        # Their files are of no use any more: the log does not continue from them.
        for old in gone:
            await self._lane.read(partial(self.folder.remove, old))


class _RepeatableStatus:
    """A task status on which `started` may be called more than once."""

    def __init__(self, status: trio.TaskStatus[None]) -> None:
        self._status: trio.TaskStatus[None] | None = status

    def started(self, value: None = None) -> None:
        """Report the start, the first time."""
        status, self._status = self._status, None
        if status is not None:
            status.started(value)
