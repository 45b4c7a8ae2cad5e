"""Group commit: ordered durable writes off the event loop, on one of two paths.

The idea
--------
Jobs are written in the order of `submit`. Jobs that wait together become one group: one durable
commit for all of them. While one group is being synced the next one gathers, so groups need no
timer, and a slow disk only makes them larger. When a group is durable, its jobs' `done` are called
on the trio thread, in order, and then `delivered` once.

Two paths
---------
::

    submit -->  waiting  --+--> JournalPath    the journal writer: one write to a file
                           +--> WriterThread   a Python thread: one LMDB transaction
    <-- done, delivered ---+

The function `begin` that `by_spans` was given decides which path a group takes: it returns the span
to write to the journal, or None for LMDB. Only one path is ever at work, since the order of the
jobs has to be the order of the disk. So nothing begins on either path until the group before is
reported. A journal write never waits for the interpreter's lock; LMDB needs it anyway.

The naive way, and why it fails
-------------------------------
``trio.to_thread.run_sync`` per commit takes about twice as long as this thread and its eventfd
(measured). It has no queue either: each job would be a commit of its own, or somebody would have to
gather jobs by a timer, which is always too long or too short.

Ends
----
- If a write fails, nothing more is written, and `run` raises the error.
- If `run` is cancelled, everything submitted is written first: a job is written or never began.
- Jobs submitted after that are dropped, and their `done` is never called.

What we do not do
-----------------
Nothing slows down callers that submit faster than the disk writes: they bound that themselves, by
`Store.unsynced` for example.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Generic

import trio

from ...metrics import Histogram
from .executor import J, T, nothing
from .journal_path import JournalPath
from .journal_writer import Writer
from .lane import Lane
from .writer_thread import WriterThread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Never

    from .journal_writer import Span


class GroupCommit(Generic[J]):
    """Ordered durable writes on a thread of their own.

    Args:
        write: makes a group durable; called on the writer thread.
        delivered: called on the trio thread after the `done` of each group.
        idle: called on the writer thread when there is nothing to write, and at an orderly end. The
            code calls that a *rest* (:mod:`.writer_thread`).

    Attributes:
        syncs: how many seconds each durable group took on its thread.
    """

    def __init__(
        self,
        write: Callable[[Sequence[J]], None],
        *,
        delivered: Callable[[], None] = nothing,
        idle: Callable[[], None] = nothing,
    ) -> None:
        self._delivered = delivered
        self._thread = WriterThread[J](write, idle)
        self._journal: JournalPath[J] | None = None
        self._spans: tuple[Callable[[Sequence[J]], Span | None], Callable[[int], None]] | None
        self._spans = None
        self.syncs = Histogram()
        self._quiet = False  # nothing was submitted since the thread last asked for a rest
        self._ended = False

    def submit(self, job: J) -> None:
        """Queue a job; returns at once."""
        # Dropped: `run` is over, so nobody would write the job or report it.
        if self._ended:
            return
        self._quiet = False
        if self._journal is None:  # before `run`, or without spans
            self._thread.hand(job)
            return
        self._journal.waiting.append(job)
        self._begin_next()

    def by_spans(
        self, begin: Callable[[Sequence[J]], Span | None], end: Callable[[int], None]
    ) -> None:
        """See `Executor`; to be called before `run`."""
        self._spans = begin, end

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Run the threads, and report what they have written; see `Executor`."""
        # One eventfd for both paths: it can be written without the interpreter's lock.
        wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread.start(wake)
        try:
            if self._spans is not None:
                with contextlib.suppress(OSError):  # no more threads: the one there is does all
                    self._journal = JournalPath(Writer(wake), *self._spans)
            task_status.started()
            while True:
                await self._woken(wake)
        finally:
            try:
                # A write that is under way can't be called back, so its outcome must be known.
                with trio.CancelScope(shield=True):
                    await self._drain(wake)
                self._report()
            finally:
                self._ended = True
                # Before `wake` is closed: the thread writes to it, and the kernel may give its
                # number to the next file.
                self._thread.join()
                if self._journal is not None:
                    self._journal.close()
                os.close(wake)

    async def _drain(self, wake: int) -> None:
        """Wait until everything submitted is written, and the writer thread has ended."""
        journal = self._journal
        while journal is not None and (journal.waiting or journal.busy):
            await self._woken(wake)
        # Only after the journal is idle: a last rest carries its batches over, so none may be under
        # way.
        self._thread.end()
        while not self._thread.ended:
            await self._woken(wake)

    async def _woken(self, wake: int) -> None:
        await trio.lowlevel.wait_readable(wake)
        # One read takes all wake-ups so far, so `_report` looks at both paths each time.
        os.eventfd_read(wake)
        self._report()

    def _begin_next(self) -> None:
        """Begin to write what waits, unless a path is at work."""
        journal = self._journal
        # Not while a path is at work: its group is older, and LMDB must never have a change without
        # the changes before it.
        if journal is None or not journal.waiting or self._thread.busy or journal.busy:
            return
        if journal.begin():
            self._thread.wake()  # it may sleep without a timeout; new batches need a rest later
            return
        # All that waits, not one group: the thread makes groups itself, and the order stays.
        for job in journal.waiting:
            self._thread.hand(job)
        journal.waiting.clear()

    def _report(self) -> None:
        """Call back for every group that is durable, and raise what a thread met."""
        # In each case the next group is begun before the callbacks, so that the disk works while
        # they run.
        if self._journal is not None:
            self._report_journal(self._journal)
        for group, took in self._thread.finished():
            self._begin_next()
            if group:
                self._call_back(group, took)
        try:
            self._thread.raise_failure()
        except BaseException:
            # Nothing behind a failed write may be written, and `_drain` must not wait for it.
            if self._journal is not None:
                self._journal.waiting.clear()
            raise
        if self._thread.asks_rest():
            self._grant_rest()

    def _report_journal(self, journal: JournalPath[J]) -> None:
        try:
            group = journal.finished()
        except BaseException:
            # A rest would put batches into LMDB behind the failed write.
            self._thread.skip_last_rest()
            raise
        if group:
            took = journal.took  # before the next write begins
            self._begin_next()
            self._call_back(group, took)

    def _grant_rest(self) -> None:
        """Let the thread rest if nothing was submitted since it last asked."""
        # The thread asks after a second without jobs of its own. Jobs of the journal path never
        # pass by it, so one request is not enough. It rests at the second request in a row without
        # a job in between.
        at_work = self._thread.busy or (self._journal is not None and self._journal.busy)
        if self._quiet and not at_work:
            self._thread.rest()
        self._quiet = True

    def _call_back(self, group: Sequence[J], took: float) -> None:
        self.syncs.observe(took)
        # In the order of `submit`: each `done` sets the state that is durable, which must never go
        # back.
        for job in group:
            job.done()
        self._delivered()


class ThreadExecutor(GroupCommit[J]):
    """Group commit on threads, with a lane for reads that never wait for it.

    See `GroupCommit` for the arguments.
    """

    def __init__(
        self,
        write: Callable[[Sequence[J]], None],
        *,
        delivered: Callable[[], None] = nothing,
        idle: Callable[[], None] = nothing,
    ) -> None:
        super().__init__(write, delivered=delivered, idle=idle)
        self._lane = Lane()

    async def read(self, fn: Callable[[], T]) -> T:
        """Call `fn` on the lane; see `Lane.read`."""
        return await self._lane.read(fn)
