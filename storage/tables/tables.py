"""The materialised tables: what the log's commands have made so far, as keys and records.

The idea
--------
A memtable over LMDB. Applying a command changes a dictionary and nothing else. A flush in the
background writes the changes since the last flush *and the log position they belong to*, in one
transaction. A member that restarts applies the log again from exactly that position. So the tables
may outgrow memory, and applying never waits for a disk. Only a read waits, of a record that is
neither in the memtable nor in the page cache.

A flush
-------
::

    memtable                 changes since the last cut
       | cut at a batch boundary (`_freeze`)
    frozen memtable          read only; the executor's writer puts it into LMDB
       | durable (`_written`)
    disk                     the frozen memtable is dropped, its memory freed step by step

Only one flush is under way at a time. A flush may cut the memtable only where the log has a batch
boundary: :meth:`Tables.advance` names these, and puts between two of them belong to the later one.

When to flush
-------------
After `flush_interval_s`, or once the memtable has `flush_bytes`, or once `FLUSH_LOG_BYTES` of log
would have to be replayed.

Expiry is data here. :attr:`Tables.deadlines` knows, across restarts too, which key is due when; the
owner of the tables deletes it.

What we do not do
-----------------
Nothing slows the log down if flushes are slower. So memory has no hard bound: it is about twice
`flush_bytes`, `PATIENCE` times that while the tables are patient, plus what arrives during a flush.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

from ...errors import StorageError
from ..lmdb.environment import INITIAL_MAP_BYTES
from ..writing.executor import nothing
from ..writing.group_commit import ThreadExecutor
from .deadlines import Deadlines
from .disk import TablesDisk
from .flush import Cut
from .layers import LayeredTables
from .loader import Step, TablesLoader
from .memtable import Layer
from .notes import Notes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import Never, Self

    from ..writing.executor import ExecutorFactory
    from .view import TablesView

FLUSH_BYTES: Final = 64 << 20
"""Memory of the memtable at which it is flushed. With less there are more flushes, each of which
writes every page that it touches; with more, memory."""
FLUSH_INTERVAL_S: Final = 30.0
"""Longest time that a change stays in memory only. With more, a restart replays more log."""
FLUSH_LOG_BYTES: Final = 320 << 20
"""Log after which to flush although memory is small: keys that are overwritten again and again take
no memory, but a restart replays all of that log. A snapshot flushes too, usually after a little
more than 256 MiB; a smaller figure would flush in vain shortly before it."""

REST: Final = 2.0
"""Rest after each step of loading patient tables, as a multiple of the step's time. Without it,
clients of the other members feel the load on processors and disks that they share with this one."""

PATIENCE: Final = 4
"""How many times `flush_bytes` the memtable may take while a member catches up. The log then comes
so fast that one flush would follow another, and each writes nearly all pages if keys are spread.
Smaller: more writing. Larger: more memory."""

LOG_PATIENCE: Final = 8
"""The same factor for log, which a restart would apply again."""


@attrs.frozen(eq=False)
class FlushJob:
    """A job of the executor.

    Args:
        cut: what to write.
        done: called on trio's thread once it is durable.
    """

    cut: Cut
    done: Callable[[], None]


class Tables(LayeredTables):
    """Keys and records, complete up to a log position. Everything runs on the trio thread.

    Attributes:
        patient: gather more before a flush than usual, and rest between the steps of `load`.
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
        self._fits = True  # whether the last write fitted the map
        self._cut_wanted = False
        # Two counters: a cut is taken here, and is durable only when the writer has reported it.
        self._cuts = 0
        self._durable_cuts = 0
        self._flushes = trio.lowlevel.ParkingLot()
        self._changed = trio.Event()
        self._full = trio.Event()
        self._ended = False
        self._view_wanted = False
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
        """Open the tables in `directory`; make them if there are none.

        Args:
            directory: of the tables; nothing else is in it.
            cluster: name of the cluster.
            member_id: which member of it.
            executor: runs the writes.
            flush_bytes: memory of the memtable at which it is flushed.
            flush_interval_s: longest time that a change stays in memory only, in seconds.
            map_bytes: address space to begin with.

        Raises:
            StoreMismatchError: they are of another cluster, member or format.
            StoreBusyError: another handle has them open.
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
        """Close them, after `run` has ended; idempotent. Changes that are not flushed are lost."""
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
        """Delete everything, log position included: to be rebuilt from the start of the log."""
        self.clear()
        for key in list(self.notes.rows):
            self.delete_note(key)
        for key in [key for key, _ in self.all_rows()]:
            self.delete_row(key)
        # Position 0 goes to the disk with the empty tables, so a crash leaves the old state or this
        # one.
        self.advance(0, 0)

    def advance(self, position: int, timestamp_ms: int) -> None:
        """Note that everything up to `position`, a batch boundary of the log, is applied."""
        # Called once per batch: it must stay cheap, so conditions are checked and events set, no
        # more.
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
        # Not during a flush: `position` moves only at its end, and a second one would come at once.
        if self._frozen is None and log_bytes > FLUSH_LOG_BYTES * log:
            self._full.set()
        if not self._changed.is_set() and (
            layer.records or layer.rows or layer.cleared or self.notes.changed
        ):
            self._changed.set()
        if self._cut_wanted and self._frozen is None:  # `flush` was called inside a batch
            self._freeze()

    # --- flushing

    async def flush(self) -> None:
        """Make everything so far durable; inside a batch, everything up to the next boundary.

        Raises:
            StorageError: writing has ended.
        """
        # Counted, not flagged: a cut that is already being written misses the latest changes.
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
        """Take a cut, and return its content as a stream of pieces; `started` once it is cut.

        The pieces may be read on another thread. Only a flush that is under way delays the cut.

        Raises:
            StorageError: writing has ended; or, from the pieces, the file had to grow, or the
                tables were closed.
        """
        # One flush at a time, and the cut of a snapshot is a flush.
        while self._frozen is not None:
            await self._flushed()
        # Within a batch the tables are those of no log position, so two members' snapshots would
        # differ (I-24).
        assert self._settled, "amidst a batch"
        self._freeze()
        # Before anything is awaited: `_written` opens the view at the moment at which this cut is
        # on disk.
        cut, self._view_wanted = self._cuts, True
        task_status.started()
        while self._durable_cuts < cut:
            await self._flushed()
        assert self._view is not None
        view, self._view = self._view, None
        return view.pieces()

    async def load(self, pieces: Iterator[bytes], position: int, timestamp_ms: int) -> None:
        """Replace the content by a stream of another member's tables at a log position.

        Raises:
            StorageError: the pieces are damaged, or the disk failed. The tables are incomplete
                then, and empty when they are opened again.
        """
        # The writer may still put older changes on disk, which would end up above the loaded
        # content.
        while self._frozen is not None:
            await self._flushed()
        self._settled = False  # so that no flush writes old content over the new
        loader = TablesLoader(self._disk, pieces, position, timestamp_ms)
        while True:
            began = trio.current_time()
            # Off the event loop: one step writes and syncs megabytes, and heartbeats have to go on.
            step = await self._executor.read(loader.step)
            if step is Step.DONE:
                break
            # Here, on the event loop's thread: its own read transaction has to end first, or LMDB
            # refuses.
            if step is Step.FULL:
                self._disk.grow()
            if self.patient:
                await trio.sleep(REST * (trio.current_time() - began))
        # The transaction that was open until now still shows the old content.
        self._disk.refresh()
        self._unused += [self._layer, self.deadlines]
        self._layer, self.deadlines = Layer(), Deadlines(self._disk.deadlines())
        self._expiring = self.deadlines.by_key
        self.notes = Notes(self._disk.notes())
        self._applied = (position, timestamp_ms)
        self._settled, self._counted = True, False

    async def _flushed(self) -> None:
        # Checked before parking: `run` wakes everybody once, and nobody would wake a later one.
        if self._ended:
            raise StorageError("the tables are not being written any more")
        await self._flushes.park()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Flush until cancelled, and once more at the end.

        At the end a flush that is under way is completed, and no other begins: the log will be
        applied again from there.

        Raises:
            StoreFullError: the disk is full; nothing of the last flush was written.
            StorageError: the disk failed.
        """
        try:
            async with trio.open_nursery() as nursery:
                writing: trio.CancelScope = await nursery.start(self._write_jobs)
                writing.shield = True  # not before `start`: cancelled there, it would never end
                task_status.started()
                try:
                    await self._flush_for_ever()
                finally:
                    # Only at a batch boundary: in the middle of a batch the rows would belong to no
                    # log position.
                    if self._settled and self._frozen is None:
                        self._freeze()
                    writing.cancel()  # ends it once everything submitted is written
        finally:
            # Without this, a call of `flush` that waits when the member stops would wait for ever.
            self._flushes.unpark_all()

    async def _flush_for_ever(self) -> Never:
        while True:
            # A snapshot may cut while this waits. Then there is nothing old to flush, and the time
            # starts anew.
            cuts = self._cuts
            await self._changed.wait()
            if cuts == self._cuts:
                with trio.move_on_after(self._flush_interval_s):
                    await self._full.wait()
            if cuts == self._cuts:
                await self.flush()
            await self._free_memory()

    async def _write_jobs(self, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        """Run the executor, which `run` shields from cancellation until its last flush."""
        try:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self._executor.run)
                    task_status.started(scope)
        finally:
            self._ended = True

    def _freeze(self) -> None:
        """Take a cut: from here on changes go into an empty memtable; the full one is written."""
        assert self._frozen is None, "one flush at a time"
        # Exchanged, not copied: a cut takes the same time for any number of keys.
        self._frozen, self._layer = self._layer, Layer()
        self._cut_wanted = False
        # If nobody has asked since the last cut, batches stop looking up their keys.
        self._counted, self._asked = self._asked, False
        self._cuts += 1
        for event in (self._changed, self._full):
            event.set()  # `_flush_for_ever` may be waiting for a cut that a snapshot just took
        self._changed = trio.Event()
        self._full = trio.Event()
        self._frozen.runs()  # sorts; the writer's thread must find it unchangeable
        # At the same moment as the layer: all three have to be of one log position.
        changes = self.deadlines.take_changes(), self.notes.take_changes()
        self._submit(Cut(self._frozen, *changes, *self._applied))

    def _submit(self, cut: Cut) -> None:
        self._executor.submit(FlushJob(cut, lambda: self._written(cut)))

    def _write(self, group: Sequence[FlushJob]) -> None:
        """Write (on the writer's thread)."""
        for job in group:  # only ever one
            # The result goes by an attribute: `done` is called without arguments, on the other
            # thread.
            self._fits = self._disk.write(job.cut)

    def _written(self, cut: Cut) -> None:
        """Drop the frozen memtable: its content can be read from the disk now."""
        if not self._fits:  # only this thread may change the map, see `disk`
            self._disk.grow()
            self._submit(cut)
            return
        self._disk.refresh()
        if self._view_wanted:  # before the next flush: the view must show this cut
            self._view, self._view_wanted = self._disk.open_view(), False
        # Freed later, step by step: dropping a million records at once takes tens of milliseconds.
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
