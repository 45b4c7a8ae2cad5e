"""The materialised tables: what the log's commands have made so far, as keys and records.

A memtable over LMDB. Applying a command touches a dictionary and nothing else; a flush, in the
background, writes the changes since the last one *and the log position they belong to* in one
transaction. A member that restarts applies the log again from exactly there. So the tables may
outgrow memory, and nothing here waits for a disk, except a read of a record that is neither in
the memtable nor in the page cache.

**Layers.** ``get`` looks at the memtable, then at the frozen memtable that is being flushed, then
at LMDB as of the last flush. Flushing freezes the memtable, puts an empty one on top, and hands
the frozen one to the executor's writer; when that is durable, the frozen one is dropped. Deleted
keys are entries too, for they hide what is below; ``clear`` is an empty layer that hides
everything below, so it costs nothing until it is flushed.

**Cuts.** A flush may only freeze the memtable where the log has a batch boundary:
:meth:`Tables.advance` names these points, and puts and deletes between two of them belong to the
second one.

**Counting.** A put does not look whether LMDB has the key already. ``len`` does, once for each key
of the memtable, and from then on each batch does for its own keys, until nobody has asked between
two cuts: the count is exact, paid for only where somebody counts, and at once only by the first.

A record's expiry is data here: :attr:`Tables.deadlines` knows when which key is due, across
restarts too, and whoever owns the tables acts on it.

Caveat: memory is bounded by about twice ``flush_bytes`` plus what arrives during a flush; by
`PATIENCE` times as much for as long as its owner wants the tables to be patient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from ...errors import StorageError
from ..lmdb.environment import INITIAL_MAP_BYTES
from ..writing.group_commit import ThreadExecutor, nothing
from .deadlines import Deadlines
from .disk import TablesDisk
from .flush import Cut
from .layers import LayeredTables
from .memtable import Layer, stored_key
from .notes import Notes
from .stream import Step, TablesLoader, TablesView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import Never, Self

    from ..writing.group_commit import ExecutorFactory

FLUSH_BYTES: Final = 64 << 20
FLUSH_INTERVAL_S: Final = 30.0
FLUSH_LOG_BYTES: Final = 320 << 20
"""What is written over again and again takes no memory, but a restart has to replay it all. A
snapshot flushes as well, usually after 256 MiB and a little: a flush shortly before it would be in
vain."""

REST: Final = 2.0
"""How long a loading of patient tables rests after each step, as a part of what that took: others
share the processors and the disk with it, and serve the clients meanwhile."""

PATIENCE: Final = 4
"""So many times as much memory may fill while a member fetches log that it lacks. A flush writes
each page that it touches, which are nearly all if the keys are spread: so the fewer the better, and
the log comes so fast that there would be one after the other."""

LOG_PATIENCE: Final = 8
"""Likewise of log, which a restart would apply again."""


@attrs.frozen(eq=False)
class FlushJob:
    """A job of the executor: a cut to write, and what to do then."""

    cut: Cut
    done: Callable[[], None]


class Tables(LayeredTables):
    """Keys and records, complete up to a log position. Everything runs on the trio thread.

    Attributes:
        patient: let more gather before a flush than usual, and rest again and again in `load`.
    """

    def __init__(
        self,
        disk: TablesDisk,
        executor: ExecutorFactory[FlushJob],
        *,
        flush_bytes: int,
        flush_interval_s: float,
    ) -> None:
        super().__init__(disk)
        self._executor = executor(self._write, delivered=nothing)
        self._flush_bytes = flush_bytes
        self._flush_interval_s = flush_interval_s
        self._applied = (disk.position, disk.timestamp_ms)
        self.patient = False
        self._fits = True  # what the last write said
        self._cut_wanted = False
        self._cuts = 0
        self._durable_cuts = 0
        self._flushes = trio.lowlevel.ParkingLot()
        self._changed = trio.Event()
        self._full = trio.Event()
        self._ended = False
        self._view_wanted: frozenset[bytes] | None = None
        self._view: TablesView | None = None

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        cluster: str,
        member_id: int,
        executor: ExecutorFactory[FlushJob] = ThreadExecutor,
        flush_bytes: int = FLUSH_BYTES,
        flush_interval_s: float = FLUSH_INTERVAL_S,
        map_bytes: int = INITIAL_MAP_BYTES,
    ) -> Self:
        """Open the tables in `directory`; make them when there are none.

        Args:
            directory: theirs alone.
            cluster: name of the cluster.
            member_id: which member of it.
            executor: what writes them.
            flush_bytes: memory that the memtable may take before it is flushed.
            flush_interval_s: how long a change may stay in memory only, in seconds.
            map_bytes: address space to begin with.

        Raises:
            StoreMismatchError: they are another cluster's or member's, or of another format.
            StoreBusyError: they are open already.
            StoreFullError: there is no room to make them.
            StorageError: they are damaged.
        """
        disk = TablesDisk.open(directory, cluster=cluster, member_id=member_id, map_bytes=map_bytes)
        try:
            return cls(
                disk,
                executor,
                flush_bytes=flush_bytes,
                flush_interval_s=flush_interval_s,
            )
        except BaseException:
            disk.close()
            raise

    def close(self) -> None:
        """Close them, after `run` has ended; idempotent. What is not flushed is lost."""
        self._disk.close()

    @property
    def position(self) -> int:
        """Log position up to which everything is applied, durably."""
        return self._disk.position

    @property
    def timestamp_ms(self) -> int:
        """Log time at `position`."""
        return self._disk.timestamp_ms

    def reset(self) -> None:
        """Delete everything and forget the log position, to be built again from the log's start."""
        self.clear()
        for key in list(self.notes.rows):
            self.delete_note(key)
        self.advance(0, 0)

    def advance(self, position: int, timestamp_ms: int) -> None:
        """Everything up to `position`, a batch boundary of the log, is applied."""
        self._applied = (position, timestamp_ms)
        self._settled = True
        layer = self._layer
        layer.settle()
        if self._counted:
            self._check()
        memory, log = (PATIENCE, LOG_PATIENCE) if self.patient else (1, 1)
        if layer.bytes > self._flush_bytes * memory:
            self._full.set()
        log_bytes = position - self._disk.position
        if self._frozen is None and log_bytes > FLUSH_LOG_BYTES * log:
            self._full.set()
        if not self._changed.is_set() and (layer.records or layer.cleared or self.notes.changed):
            self._changed.set()
        if self._cut_wanted and self._frozen is None:
            self._freeze()

    # --- flushing

    async def flush(self) -> None:
        """Make everything up to now durable, or up to the next batch boundary if amidst a batch.

        Raises:
            StorageError: nothing is being written any more.
        """
        cut = self._cuts + 1
        self._cut_wanted = True
        if self._settled and self._frozen is None:
            self._freeze()
        while self._durable_cuts < cut:
            await self._flushed()

    # --- snapshots

    async def save(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> Iterator[bytes]:
        """Cut, started from then on; return the contents as of the cut, as a stream of pieces.

        The pieces may be taken on another thread. Only a flush that is under way delays the cut.

        Raises:
            StorageError: nothing is being written any more; or, from the pieces, that the file had
                to grow, or the tables were closed.
        """
        while self._frozen is not None:
            await self._flushed()
        assert self._settled, "amidst a batch"
        now, deadlines = self._applied[1], self.deadlines
        due: frozenset[bytes] = frozenset()
        if deadlines.count_due(now):
            due = frozenset(stored_key(key) for key, at in deadlines.by_key.items() if at <= now)
        self._freeze()
        cut, self._view_wanted = self._cuts, due
        task_status.started()
        while self._durable_cuts < cut:
            await self._flushed()
        assert self._view is not None
        view, self._view = self._view, None
        return view.pieces()

    async def load(self, pieces: Iterator[bytes], position: int, timestamp_ms: int) -> None:
        """Replace the contents by those of another member's tables at a log position.

        Raises:
            StorageError: the pieces are damaged, or the disk failed: the tables are incomplete,
                and empty when they are opened again.
        """
        while self._frozen is not None:
            await self._flushed()
        self._settled = False  # nothing of the old contents is flushed any more
        loader = TablesLoader(self._disk, pieces, position, timestamp_ms)
        while True:
            began = trio.current_time()
            step = await self._executor.read(loader.step)
            if step is Step.DONE:
                break
            if step is Step.FULL:
                self._disk.grow()
            if self.patient:
                await trio.sleep(REST * (trio.current_time() - began))
        self._disk.refresh()
        self._unused += [self._layer, self.deadlines]
        self._layer, self.deadlines = Layer(), Deadlines(self._disk.deadlines())
        self._expiring = self.deadlines.by_key
        self.notes = Notes(self._disk.notes())
        self._applied = (position, timestamp_ms)
        self._settled, self._counted = True, False

    async def _flushed(self) -> None:
        if self._ended:
            raise StorageError("the tables are not being written any more")
        await self._flushes.park()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Flush now and then until cancelled, and at the end once more.

        At the end a flush that is under way is completed, and no other one begins: what it does
        not hold will be applied again from the log.

        Raises:
            StoreFullError: the disk has no room; nothing of the last flush was written.
            StorageError: the disk failed.
        """
        try:
            async with trio.open_nursery() as nursery:
                writing: trio.CancelScope = await nursery.start(self._write_jobs)
                writing.shield = True  # not sooner: a start that is cancelled would never end
                task_status.started()
                try:
                    await self._flush_for_ever()
                finally:
                    if self._settled and self._frozen is None:
                        self._freeze()
                    writing.cancel()  # what was submitted is written first
        finally:
            self._flushes.unpark_all()

    async def _flush_for_ever(self) -> Never:
        while True:
            cuts = self._cuts
            await self._changed.wait()
            if cuts == self._cuts:
                with trio.move_on_after(self._flush_interval_s):
                    await self._full.wait()
            if cuts == self._cuts:
                await self.flush()
            await self._free_memory()

    async def _write_jobs(self, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        """Run the executor, which `run` shields from its own end, for its last flush."""
        try:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self._executor.run)
                    task_status.started(scope)
        finally:
            self._ended = True

    def _freeze(self) -> None:
        """Cut: from here on changes go into an empty memtable, and the full one is written."""
        assert self._frozen is None, "one flush at a time"
        self._frozen, self._layer = self._layer, Layer()
        self._cut_wanted = False
        self._counted, self._asked = self._asked, False
        self._cuts += 1
        for event in (self._changed, self._full):
            event.set()  # a snapshot cuts, too: who waits for them has to look again
        self._changed = trio.Event()
        self._full = trio.Event()
        self._frozen.runs()  # sorted here, for the writer only reads
        changes = self.deadlines.take_changes(), self.notes.take_changes()
        self._submit(Cut(self._frozen, *changes, *self._applied))

    def _submit(self, cut: Cut) -> None:
        self._executor.submit(FlushJob(cut, lambda: self._written(cut)))

    def _write(self, group: Sequence[FlushJob]) -> None:
        """Write (on the writer's thread)."""
        for job in group:  # only ever one
            self._fits = self._disk.write(job.cut)

    def _written(self, cut: Cut) -> None:
        """Let go of the frozen memtable: what it held can be read from the disk."""
        if not self._fits:
            self._disk.grow()
            self._submit(cut)
            return
        self._disk.refresh()
        if self._view_wanted is not None:  # before anything else is written
            self._view, self._view_wanted = self._disk.open_view(self._view_wanted), None
        self._unused.append(cut.layer)
        self._frozen = None
        self._durable_cuts += 1
        if self._cut_wanted and self._settled:
            self._freeze()
        self._flushes.unpark_all()

    async def _free_memory(self) -> None:
        while self._unused:
            for _ in self._unused.pop().dispose():
                await trio.lowlevel.checkpoint()
