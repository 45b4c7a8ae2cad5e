"""The seam between the event loop, which never waits for a disk, and the one thread that does.

An executor takes jobs in order and hands those that wait together to one `write(group)`: one
durable commit for all of them (group commit). While one group is being synced the next one
gathers, so batching needs no timer. When a group is durable its jobs' `done` are called on the
trio thread, in order, and then `delivered` once.

`ThreadExecutor` is the real one: a dedicated writer thread, a `SimpleQueue` in, an eventfd out
that a single trio task awaits; about half of the round trip of a worker thread per commit.
`InlineExecutor` has no thread: it writes on the trio thread after a virtual latency. A task that
waits for a thread looks idle to a clock that jumps ahead, so simulated time needs this one.

When nothing has come for a second, and at an orderly end, `idle` is called where `write` is.

If `write` raises, nothing more is written and `run` raises what it raised. When `run` is
cancelled it first writes everything that was submitted: a job is written or never began. Jobs
that are submitted after the end are dropped, and their `done` is never called.

This is the only module of quorate that knows threads.
"""

from __future__ import annotations

import collections
import os
import queue
import threading
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Never

# Bounds one transaction, and thereby how long the first job of a group waits for the last one.
MAX_GROUP_JOBS: Final = 64

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
J_contra = TypeVar("J_contra", bound=Job, contravariant=True)
F = TypeVar("F", bound=Job)
T = TypeVar("T")


class Executor(Protocol[J_contra]):
    """Ordered writes in groups, and reads that are never behind them."""

    def submit(self, job: J_contra) -> None:
        """Queue a job; returns at once. May be called before `run` has begun."""
        ...

    async def read(self, fn: Callable[[], T]) -> T:
        """Call `fn` without holding up the event loop, and return what it returns."""
        ...

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Write until cancelled, once in an executor's life.

        Raises:
            BaseException: whatever `write` raised.
        """
        ...


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
    """Writes on one dedicated thread, reads on at most one more.

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
        self._submitted: queue.SimpleQueue[J | None] = queue.SimpleQueue()
        self._finished: collections.deque[Sequence[J]] = collections.deque()
        self._failure: BaseException | None = None
        self._thread_ended = False
        self._ended = False
        self._reader = trio.CapacityLimiter(1)

    def submit(self, job: J) -> None:
        """Queue a job for the writer thread."""
        if not self._ended:
            self._submitted.put(job)

    async def read(self, fn: Callable[[], T]) -> T:
        """Call `fn` on the reader's lane; a cancelled call still waits for `fn` to end."""
        return await trio.to_thread.run_sync(fn, limiter=self._reader)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Supervise the writer thread and deliver what it has finished."""
        wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        thread = threading.Thread(
            target=self._work, args=(wake,), name="quorate storage", daemon=True
        )
        thread.start()
        try:
            task_status.started()
            while True:
                await trio.lowlevel.wait_readable(wake)
                os.eventfd_read(wake)
                self._report()
        finally:
            # A commit that is under way cannot be called back; its outcome must be known.
            self._submitted.put(None)
            try:
                with trio.CancelScope(shield=True):
                    while not self._thread_ended:
                        await trio.lowlevel.wait_readable(wake)
                        os.eventfd_read(wake)
                self._report()
            finally:
                self._ended = True
                thread.join()
                os.close(wake)

    def _report(self) -> None:
        """Call back for every group that is durable, and raise what the writer thread met."""
        while self._finished:
            for job in self._finished.popleft():
                job.done()
            self._delivered()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _work(self, wake: int) -> None:
        """Write groups until told to stop (the writer thread)."""
        try:
            while group := self._next_group():
                self._write(group)
                self._finished.append(group)
                os.eventfd_write(wake, 1)
            self._idle()
        except BaseException as failure:  # noqa: BLE001 - handed to the trio task, which raises it
            self._failure = failure
        self._thread_ended = True
        os.eventfd_write(wake, 1)

    def _next_group(self) -> list[J]:
        """Wait for a job and take all that wait with it; an empty group is the end."""
        group: list[J] = []
        job = self._next_job()
        while job is not None:
            group.append(job)
            if len(group) == MAX_GROUP_JOBS or self._submitted.empty():
                return group
            job = self._submitted.get_nowait()  # this thread is the only one that takes
        if group:
            self._submitted.put(None)  # met behind jobs: end after them
        return group

    def _next_job(self) -> J | None:
        """Wait for a job; None is the end."""
        while True:
            try:
                return self._submitted.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                self._idle()


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
