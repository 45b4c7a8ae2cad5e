"""Hashing passwords off the event loop.

A scrypt hash takes 80 ms of a processor, which is most of a heartbeat interval. So it runs on a
worker thread, and the client that waits for it is answered later. Two at once, at most: more would
compete with the event loop for the processors of a small machine. The queue is bounded, because
anybody may send AUTH.

The queue is fair by address. Addresses take turns, and when the queue is full, one that has much
less in it than another takes a place of that one. Otherwise whoever sends AUTH without an end would
lock out everybody. Work of a client that has left is not done.

Where the work runs is injected. Virtual time has no threads: there it runs on the trio thread,
after a latency of that clock.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeVar

import attrs
import trio

from ...log_events import log_event
from ...storage.writing.lane import Lane

__all__ = ["BUSY", "MAX_WAITING", "WORKERS", "Offload", "Verifier"]

T = TypeVar("T")

WORKERS: Final = 2

MAX_WAITING: Final = 64
"""Passwords that wait for a thread. Fewer, and clients that reconnect together are refused; more,
and a client waits for longer than its timeout, which is seconds."""

BUSY: Final = b"-BUSY too many passwords are being checked; nothing was done, try again\r\n"
_FAILED: Final = b"-ERR internal error while a password was checked, see the member's log\r\n"

_log = logging.getLogger("quorate.keyvalue")


@attrs.frozen
class _Job:
    work: Callable[[], bytes]
    done: Callable[[bytes], None]
    wanted: Callable[[], bool]


class Offload(Protocol):
    """Runs blocking calls one after the other; `Lane` does so on a thread."""

    def read(self, fn: Callable[[], T]) -> Awaitable[T]:
        """Call `fn` without holding up the event loop; return its result."""
        ...


class Verifier:
    """Runs work on a few threads, and keeps a bounded queue of it.

    Args:
        lanes: where it runs, one piece in each at a time; None for threads.
    """

    def __init__(self, lanes: Sequence[Offload] | None = None) -> None:
        self._lanes = [Lane() for _ in range(WORKERS)] if lanes is None else [*lanes]
        # By address, the one whose turn is next first; none is empty.
        self._queues: dict[str, deque[_Job]] = {}
        self._jobs = trio.Semaphore(0)

    def submit(
        self,
        work: Callable[[], bytes],
        done: Callable[[bytes], None],
        *,
        address: str = "",
        wanted: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Queue work; False if there is too much already.

        Args:
            work: called on another thread; it must not touch what the event loop uses.
            done: called on the trio thread with the result, or with an encoded error: `BUSY` if the
                work made room for that of another address.
            address: whose work it is.
            wanted: whether anybody still waits for the result.
        """
        job = _Job(work, done, wanted)
        if self.waiting >= MAX_WAITING:
            self._forget_unwanted()
        own = self._queues.get(address)
        if self.waiting < MAX_WAITING:
            self._queues.setdefault(address, deque()).append(job)
            self._jobs.release()
            return True
        longest = max(self._queues.values(), key=len)
        # One more, so that two addresses with as much do not push out each other for ever.
        if len(longest) <= (len(own) if own else 0) + 1:
            return False
        # The newest: what has waited longest is done first.
        pushed_out = longest.pop()
        self._queues.setdefault(address, deque()).append(job)
        pushed_out.done(BUSY)
        return True

    @property
    def waiting(self) -> int:
        """Pieces of work that wait."""
        return sum(map(len, self._queues.values()))

    async def run(self) -> None:
        """Work until cancelled."""
        async with trio.open_nursery() as nursery:
            for lane in self._lanes:
                nursery.start_soon(self._work, lane)

    async def _work(self, lane: Offload) -> None:
        while True:
            await self._jobs.acquire()
            job = self._take()
            if job is None or not job.wanted():
                continue
            try:
                result = await lane.read(job.work)
            except Exception:  # noqa: BLE001 - no memory for scrypt must not end the member
                words = "a password could not be checked"
                log_event(_log, logging.ERROR, "password_check_failed", words, exc_info=True)
                result = _FAILED
            job.done(result)

    def _forget_unwanted(self) -> None:
        for address, jobs in [*self._queues.items()]:
            if kept := deque(job for job in jobs if job.wanted()):
                self._queues[address] = kept
            else:
                del self._queues[address]

    def _take(self) -> _Job | None:
        """Take the oldest work of the address whose turn it is; None if it was forgotten."""
        if not self._queues:
            return None
        address = next(iter(self._queues))
        jobs = self._queues.pop(address)
        job = jobs.popleft()
        if jobs:
            self._queues[address] = jobs  # the last in turn
        return job
