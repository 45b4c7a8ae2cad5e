"""The seam between the event loop, which does not wait for a disk, and the one thread that does.

An executor takes jobs in order and hands those that wait together to one `write(group)`: one
durable commit for all of them (group commit). While one group is being synced the next one
gathers, so batching needs no timer. When a group is durable its jobs' `done` are called on the
trio thread, in order, and then `delivered` once.

`ThreadExecutor` is the real one: a dedicated writer thread, a `SimpleQueue` in, an eventfd out
that the trio thread waits for. A group that only needs bytes written to a file goes to a second
thread, which never waits for the interpreter (:mod:`.journal_writer`). At any time only one of the
two threads is at work.
`InlineExecutor` has no thread: it writes on the trio thread after a virtual latency. A task that
waits for a thread looks idle to a clock that jumps ahead, so simulated time needs this one.

When nothing has come for a second or two, and at an orderly end, `idle` is called where `write` is.

If a write fails, nothing more is written and `run` raises what was raised. When `run` is
cancelled it first writes everything that was submitted: a job is written or never began. Jobs
that are submitted after the end are dropped, and their `done` is never called.

This and :mod:`.journal_writer` are the only modules of quorate that know threads.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import os
import queue
import threading
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

import trio

from .journal_writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Never

    from .journal_writer import Span

# Bounds one transaction in number (who appends bounds the bytes), and thereby how long the first
# job of a group waits for the last one.
MAX_GROUP_JOBS: Final = 256

IDLE_SECONDS: Final = 1.0

Lock = threading.Lock
"""For the few places that both the writer thread and a reader come to."""


class Job(Protocol):
    """Something to write; what, is between whoever submits it and `write`."""

    @property
    def done(self) -> Callable[[], None]:
        """Called on the trio thread once the job is durable; it must not raise."""
        ...


J = TypeVar("J", bound=Job)
F = TypeVar("F", bound=Job)
T = TypeVar("T")


class Executor(Protocol[J]):
    """Ordered writes in groups, and reads that are never behind them."""

    def submit(self, job: J) -> None:
        """Queue a job; returns at once. May be called before `run` has begun."""
        ...

    def by_spans(
        self, begin: Callable[[Sequence[J]], Span | None], end: Callable[[int], None]
    ) -> None:
        """Allow that what is only written to a file goes by without `write`.

        Args:
            begin: returns what must be written to make a group durable, if that is all it takes,
                else None; called on the trio thread while no group is being written.
            end: called there with 0 if that is durable; else with an errno, and raises for `run`.
        """
        ...

    async def read(self, fn: Callable[[], T]) -> T:
        """Call `fn` without holding up the event loop, and return what it returns."""
        ...

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Write until cancelled, once in an executor's life.

        Raises:
            BaseException: whatever `write`, or `end` of spans, raised.
        """
        ...


class _Word(enum.Enum):
    """What the writer thread is told besides jobs."""

    REST = enum.auto()
    WAKE = enum.auto()
    END = enum.auto()


class ExecutorFactory(Protocol[F]):
    """How a store gets its executor: `ThreadExecutor`, or `InlineExecutor` for virtual time."""

    def __call__(
        self,
        write: Callable[[Sequence[F]], None],
        *,
        delivered: Callable[[], None],
        idle: Callable[[], None] = ...,
    ) -> Executor[F]:
        """Return an executor that hands groups to `write`."""
        ...


def nothing() -> None:
    """Stand in for a callback that nobody needs."""


class ThreadExecutor(Generic[J]):
    """Writes on one dedicated thread or in C, and reads on at most one more.

    Args:
        write: makes a group durable; called on the writer thread.
        delivered: called on the trio thread after the `done` of each group.
        idle: called on the writer thread when there is nothing to write.
    """

    def __init__(
        self,
        write: Callable[[Sequence[J]], None],
        *,
        delivered: Callable[[], None] = nothing,
        idle: Callable[[], None] = nothing,
    ) -> None:
        self._write = write
        self._delivered = delivered
        self._idle = idle
        self._begin: Callable[[Sequence[J]], Span | None] = lambda _group: None
        self._end: Callable[[int], None] = lambda _error: None
        # How many jobs and rests the thread was handed that are not reported.
        self._handed = 0
        self._submitted: queue.SimpleQueue[J | _Word] = queue.SimpleQueue()
        self._finished: collections.deque[Sequence[J]] = collections.deque()  # empty: a rest
        self._failure: BaseException | None = None
        self._thread_ended = False
        self._writer: Writer | None = None
        self._writing: Sequence[J] = ()
        self._waiting: list[J] = []
        self._spans = self._broken = False
        self._may_rest = self._asked = self._rested = False
        self._ended = False
        self._reader = trio.CapacityLimiter(1)

    def submit(self, job: J) -> None:
        """Queue a job for the one of the threads that it is for."""
        if self._ended:
            return
        self._may_rest = False
        if self._writer is None:
            self._hand(job)
            return
        self._waiting.append(job)
        self._begin_next()

    def by_spans(
        self, begin: Callable[[Sequence[J]], Span | None], end: Callable[[int], None]
    ) -> None:
        """Leave spans to what is in C, where there is that; to be called before `run`."""
        self._begin, self._end, self._spans = begin, end, True

    async def read(self, fn: Callable[[], T]) -> T:
        """Call `fn` on the reader's lane; a cancelled call still waits for `fn` to end."""
        return await trio.to_thread.run_sync(fn, limiter=self._reader)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Supervise the threads and deliver what they have finished."""
        wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        thread = threading.Thread(
            target=self._work, args=(wake,), name="quorate storage", daemon=True
        )
        thread.start()
        try:
            if self._spans:
                with contextlib.suppress(OSError):  # no more threads: one does all
                    self._writer = Writer(wake)
            task_status.started()
            while True:
                await self._woken(wake)
        finally:
            try:
                # A write that is under way cannot be called back; its outcome must be known.
                with trio.CancelScope(shield=True):
                    while self._waiting or self._writing:
                        await self._woken(wake)
                    self._hand(_Word.END)
                    while not self._thread_ended:
                        await self._woken(wake)
                self._report()
            finally:
                self._ended = True
                self._submitted.put(_Word.END)  # if a failure came before the one above
                thread.join()
                if self._writer is not None:
                    self._writer.close()
                os.close(wake)

    async def _woken(self, wake: int) -> None:
        await trio.lowlevel.wait_readable(wake)
        self._hear(wake)

    def _hear(self, wake: int) -> None:
        os.eventfd_read(wake)
        self._report()

    def _hand(self, job: J | _Word) -> None:
        self._handed += 1
        self._submitted.put(job)

    def _begin_next(self) -> None:
        """Begin to write what waits, in C if no more is needed, unless a thread is at work."""
        if not self._waiting or self._handed or self._writing:
            return
        assert self._writer is not None, "jobs wait for a thread that there is not"
        group = self._waiting[:MAX_GROUP_JOBS]
        span = self._begin(group)
        if span is not None:
            del self._waiting[: len(group)]
            self._writing = group
            self._writer.write(span.file, span.offset, span.data)
            if self._rested:
                self._rested = False
                self._submitted.put(_Word.WAKE)  # there will be something to rest from
            return
        for job in self._waiting:
            self._hand(job)
        self._waiting.clear()

    def _report(self) -> None:
        """Call back for every group that is durable, and raise what a thread met."""
        if self._writer is not None and (error := self._writer.outcome()) is not None:
            group, self._writing = self._writing, ()
            if error:
                self._broken = True
                self._waiting.clear()
            self._end(error)
            self._begin_next()
            self._tell(group)
        while self._finished:
            group = self._finished.popleft()
            self._handed -= len(group) or 1
            self._begin_next()
            if group:
                self._tell(group)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._waiting.clear()
            raise failure
        if self._asked:
            self._asked = False
            if self._may_rest and not (self._handed or self._writing):
                self._hand(_Word.REST)
            self._may_rest = True

    def _tell(self, group: Sequence[J]) -> None:
        for job in group:
            job.done()
        self._delivered()

    def _work(self, wake: int) -> None:
        """Write groups until told to end (the writer thread)."""
        try:
            while (group := self._next_group(wake)) is not None:
                if group:
                    self._write(group)
                else:
                    self._idle()
                    self._rested = True
                self._finished.append(group)
                os.eventfd_write(wake, 1)
            if not self._broken:
                self._idle()
        except BaseException as failure:  # noqa: BLE001 - handed to the trio task, which raises it
            self._failure = failure
        self._thread_ended = True
        os.eventfd_write(wake, 1)

    def _next_group(self, wake: int) -> list[J] | None:
        """Wait for a job and take all that wait with it; an empty group is a rest, None the end."""
        group: list[J] = []
        job = self._next_job(wake)
        while not isinstance(job, _Word):
            group.append(job)
            if len(group) == MAX_GROUP_JOBS or self._submitted.empty():
                return group
            job = self._submitted.get_nowait()  # this thread is the only one that takes
        if group:
            self._submitted.put(job)  # met behind jobs: end after them
            return group
        return [] if job is _Word.REST else None

    def _next_job(self, wake: int) -> J | _Word:
        """Wait for a job, and ask now and then whether to rest: there may be jobs that go by us."""
        job: J | _Word = _Word.WAKE
        while job is _Word.WAKE:
            try:
                job = self._submitted.get(timeout=None if self._rested else IDLE_SECONDS)
                self._rested = False
            except queue.Empty:
                self._asked = True
                os.eventfd_write(wake, 1)
        return job


class InlineExecutor(Generic[J]):
    """Writes on the trio thread, `latency` seconds after a group was taken up: for virtual time.

    Args:
        write: makes a group durable.
        delivered: called after the `done` of each group.
        idle: called at an orderly end.
        latency: seconds of trio's clock; may be changed at any time.
    """

    def __init__(
        self,
        write: Callable[[Sequence[J]], None],
        *,
        delivered: Callable[[], None] = nothing,
        idle: Callable[[], None] = nothing,
        latency: float = 0.0,
    ) -> None:
        self.latency = latency
        self._write = write
        self._delivered = delivered
        self._idle = idle
        self._waiting: list[J] = []
        self._arrived = trio.Event()
        self._ended = False

    def submit(self, job: J) -> None:
        """Queue a job for the next group."""
        if not self._ended:
            self._waiting.append(job)
            self._arrived.set()

    def by_spans(
        self, begin: Callable[[Sequence[J]], Span | None], end: Callable[[int], None]
    ) -> None:
        """Change nothing: `write` does all."""

    async def read(self, fn: Callable[[], T]) -> T:
        """Call `fn` here, after a checkpoint."""
        await trio.lowlevel.checkpoint()
        return fn()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Write group after group."""
        task_status.started()
        try:
            while True:
                await self._arrived.wait()
                size = min(len(self._waiting), MAX_GROUP_JOBS)
                await self._turn(size)
                self._write_first(size)
                if not self._waiting:
                    self._arrived = trio.Event()
        finally:
            self._write_first(len(self._waiting))
            if not self._ended:
                self._ended = True
                self._idle()

    async def _turn(self, size: int) -> None:  # noqa: ARG002 - for those that know more of a disk
        """Wait as long as it takes to write a group of `size` jobs."""
        await trio.sleep(self.latency)

    def cut_power(self) -> None:
        """Lose everything that is not written yet, and write nothing any more."""
        self._ended = True
        self._waiting.clear()

    def _write_first(self, size: int) -> None:
        """Write the first `size` of the jobs that wait, and call back."""
        group, self._waiting = self._waiting[:size], self._waiting[size:]
        if group and not self._ended:
            try:
                self._write(group)
            except BaseException:
                self.cut_power()
                raise
            for job in group:
                job.done()
            self._delivered()
