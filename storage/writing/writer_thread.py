"""The LMDB path of a group commit: one thread that writes groups, and rests when there are none.

The event loop puts jobs into a queue. The thread takes what has gathered there, up to a group,
writes it, and reports by an eventfd. While it writes, the next group gathers; so groups need no
timer.

::

    event loop                                writer thread
    hand(job) ------- queue -------------->   write(group)
    finished() <----- deque, eventfd ------   group is durable

A rest is an empty group: the thread calls `idle` for it, in the order of the groups. The thread
asks for a rest after a second without jobs, and the event loop grants it or not. Only the event
loop knows whether jobs went by the journal path in that second.
"""

from __future__ import annotations

import collections
import enum
import os
import queue
import threading
import time
from typing import TYPE_CHECKING, Final, Generic

from .executor import MAX_GROUP_JOBS, J

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

IDLE_SECONDS: Final = 1.0
"""Time without jobs after which the thread asks for a rest. With less, a store with little to do
carries its journal over all the time; with more, its newest batches stay in the journal for
longer.

It must be far longer than a pause of the thread by the system. `SimpleQueue.get` of CPython 3.11
computes what is left of the timeout after its first look at the lock, and takes a negative rest for
no timeout. Then the thread asks for no rest until it has the next job.
"""


class _Signal(enum.Enum):
    """What the queue carries besides jobs."""

    REST = enum.auto()
    WAKE = enum.auto()
    END = enum.auto()


class WriterThread(Generic[J]):
    """One thread that writes groups in the order of `hand`.

    Args:
        write: makes a group durable; called on the thread.
        idle: called on the thread for each rest, and at an orderly end.
    """

    def __init__(self, write: Callable[[Sequence[J]], None], idle: Callable[[], None]) -> None:
        self._write = write
        self._idle = idle
        self._queue: queue.SimpleQueue[J | _Signal] = queue.SimpleQueue()
        # A deque: both threads use it, and its appends and pops need no lock.
        self._groups: collections.deque[tuple[Sequence[J], float]] = collections.deque()
        self._pending = 0  # jobs and rests that were handed over and are not reported
        self._failure: BaseException | None = None
        # The flags below are written by one thread and read by the other; a late read does no harm.
        self._asks_rest = False
        self._rested = False
        self._skip_last_rest = False
        self.ended = False

    @property
    def busy(self) -> bool:
        """Whether something that was handed over is not reported yet."""
        return self._pending > 0

    def start(self, wake: int) -> None:
        """Start the thread, which writes to the eventfd `wake` after each group."""
        # A daemon: if the owner's own end fails, the process must still be able to exit.
        self._thread = threading.Thread(
            target=self._work, args=(wake,), name="quorate storage", daemon=True
        )
        self._thread.start()

    # --- called on the trio thread

    def hand(self, job: J) -> None:
        """Queue a job."""
        self._put(job)

    def rest(self) -> None:
        """Grant a rest, behind everything that was handed over."""
        self._put(_Signal.REST)

    def wake(self) -> None:
        """Have a thread that has rested ask again later: the other path has new jobs."""
        if self._rested:
            self._rested = False
            self._queue.put(_Signal.WAKE)

    def skip_last_rest(self) -> None:
        """Do not call `idle` at the end: it would write what comes behind a failed write."""
        self._skip_last_rest = True

    def end(self) -> None:
        """End the thread behind everything that was handed over."""
        self._put(_Signal.END)

    def join(self) -> None:
        """Wait for the thread; `end` may not have been reached."""
        # Once more, since after an error `end` was perhaps never called. A second signal does no
        # harm.
        self._queue.put(_Signal.END)
        self._thread.join()

    def finished(self) -> Iterator[tuple[Sequence[J], float]]:
        """Yield the groups that became durable, in order, with the seconds that each took.

        An empty one is a rest.
        """
        while self._groups:
            group, took = self._groups.popleft()
            # A rest counts as one: `busy` must hold during it, because it writes to LMDB.
            self._pending -= len(group) or 1
            yield group, took

    def raise_failure(self) -> None:
        """Raise what `write` or `idle` raised, once."""
        if self._failure is not None:
            # Once: while `run` ends it looks here again, and must not raise the same error a second
            # time.
            failure, self._failure = self._failure, None
            raise failure

    def asks_rest(self) -> bool:
        """Whether the thread has asked for a rest since the last call."""
        asks, self._asks_rest = self._asks_rest, False
        return asks

    def _put(self, item: J | _Signal) -> None:
        self._pending += 1
        self._queue.put(item)

    # --- the thread

    def _work(self, wake: int) -> None:
        try:
            while (group := self._next_group(wake)) is not None:
                began = time.perf_counter()
                if group:
                    self._write(group)
                else:
                    self._idle()
                    self._rested = True
                # First the group, then the wake-up: woken too soon, the event loop would find
                # nothing.
                self._groups.append((group, time.perf_counter() - began))
                os.eventfd_write(wake, 1)
            # So that an orderly end leaves nothing in the journal, where damage and a torn write
            # look alike.
            if not self._skip_last_rest:
                self._idle()
        except BaseException as failure:  # noqa: BLE001 - handed to the trio task, which raises it
            self._failure = failure
        # Last: the event loop asks for the failure once it sees this.
        self.ended = True
        os.eventfd_write(wake, 1)

    def _next_group(self, wake: int) -> list[J] | None:
        """Wait for a job, and take those that wait with it; empty for a rest, None at the end."""
        group: list[J] = []
        job = self._next_job(wake)
        while not isinstance(job, _Signal):
            group.append(job)
            # Nothing more has gathered. Waiting for more would make the first job late.
            if len(group) == MAX_GROUP_JOBS or self._queue.empty():
                return group
            job = self._queue.get_nowait()  # never empty: only this thread takes
        if group:
            # A signal behind jobs goes back to the end of the queue. It may take effect later than
            # it was put, and never earlier.
            self._queue.put(job)
            return group
        return [] if job is _Signal.REST else None

    def _next_job(self, wake: int) -> J | _Signal:
        """Wait for a job; ask for a rest now and then."""
        job: J | _Signal = _Signal.WAKE
        while job is _Signal.WAKE:
            try:
                # After a rest there is nothing to rest from, so an idle member never wakes up.
                job = self._queue.get(timeout=None if self._rested else IDLE_SECONDS)
                self._rested = False
            except queue.Empty:
                self._asks_rest = True
                os.eventfd_write(wake, 1)
        return job
