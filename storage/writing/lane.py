"""A lane for blocking reads: one call at a time, on a worker thread, off the event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Lane:
    """Runs blocking calls one after the other; each lane is independent of the others.

    A lane is for reads. Writes need an order and groups, see `group_commit`.
    """

    def __init__(self) -> None:
        # One at a time: more threads that wait for the same disk gain little, and each of them
        # competes with the event loop for the interpreter.
        self._limiter = trio.CapacityLimiter(1)

    async def read(self, fn: Callable[[], T]) -> T:
        """Call `fn`, and return its result; a cancelled call still waits for `fn` to end."""
        return await trio.to_thread.run_sync(fn, limiter=self._limiter)
