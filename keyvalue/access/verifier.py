"""Hashing passwords off the event loop.

A scrypt hash takes 80 ms of a processor, which is most of a heartbeat interval. So it runs on a
worker thread, and the client that waits for it is answered later. Two at once, at most: more would
compete with the event loop for the processors of a small machine. The queue is bounded, because
anybody may send AUTH.

Where the work runs is injected. Virtual time has no threads: there it runs on the trio thread,
after a latency of that clock.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

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

_Job: TypeAlias = tuple[Callable[[], bytes], Callable[[bytes], None]]


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
        self._send, self._receive = trio.open_memory_channel[_Job](MAX_WAITING)

    def submit(self, work: Callable[[], bytes], done: Callable[[bytes], None]) -> bool:
        """Queue work; False if there is too much already.

        Args:
            work: called on another thread; it must not touch what the event loop uses.
            done: called on the trio thread with the result, or with an encoded error.
        """
        try:
            self._send.send_nowait((work, done))
        except trio.WouldBlock:
            return False
        return True

    @property
    def waiting(self) -> int:
        """Pieces of work that wait."""
        return self._send.statistics().current_buffer_used

    async def run(self) -> None:
        """Work until cancelled."""
        async with trio.open_nursery() as nursery:
            for lane in self._lanes:
                nursery.start_soon(self._work, lane)

    async def _work(self, lane: Offload) -> None:
        async for work, done in self._receive:
            try:
                result = await lane.read(work)
            except Exception:  # noqa: BLE001 - no memory for scrypt must not end the member
                words = "a password could not be checked"
                log_event(_log, logging.ERROR, "password_check_failed", words, exc_info=True)
                result = _FAILED
            done(result)
