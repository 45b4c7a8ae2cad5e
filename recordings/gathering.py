"""Writes lines to a ring without holding up those that have something to say.

Lines gather while the event loop turns, and a thread writes all of them at once. What a disk can't
take, or takes too slowly, is counted and dropped: the next line that can be written says how much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Never, Protocol, TypeVar

import attrs
import trio

from ..storage.writing.lane import Lane

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .ring import Ring

T = TypeVar("T")

HELD_SECONDS: Final = 1.0
"""How often it is looked whether lines need not wait any more. Shorter: more work for nothing.
Longer: they are in memory alone for longer."""


class Offload(Protocol):
    """Runs blocking calls, as `Lane` does."""

    def read(self, fn: Callable[[], T]) -> Awaitable[T]:
        """Call `fn` without holding up the event loop; return its result."""
        ...


@attrs.frozen
class _Batch:
    """Lines to write at once, and how many there are, lost ones included."""

    data: bytes = b""
    count: int = 0


class Gatherer:
    """Lines on their way to a ring.

    Args:
        ring: where they are written.
        most_waiting: bytes that wait for the disk; more are dropped.
        lost: makes the line that says how many were dropped.
        failed: called once when the disk begins to fail, on the thread that writes.
        lane: where they are written; a thread unless given.
        held: whether lines must wait, as on a disk that is nearly full.
        prepare: called before each write, on the thread that writes.
    """

    def __init__(
        self,
        ring: Ring,
        *,
        most_waiting: int,
        lost: Callable[[int], bytes],
        failed: Callable[[OSError], None],
        lane: Offload | None = None,
        held: Callable[[], bool] = lambda: False,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self.ring = ring
        self._held = held
        self._prepare = prepare
        self.lane = Lane() if lane is None else lane
        self._most_waiting = most_waiting
        self._lost_line = lost
        self._failed = failed
        self._waiting: list[bytes] = []
        self._waiting_bytes = self._lost = 0
        self._arrived = trio.Event()
        self._batch = _Batch()
        self._failing = False

    def put(self, line: bytes, *, soon: bool = True) -> None:
        """Take a line; never waits, and never raises.

        Args:
            line: with its end.
            soon: write it now; else with the next one that is written soon.
        """
        if self._waiting_bytes + len(line) > self._most_waiting:
            self._lost += 1
            return
        self._waiting.append(line)
        self._waiting_bytes += len(line)
        if soon:
            self._arrived.set()

    def hurry(self) -> None:
        """Write what waits."""
        if self._waiting:
            self._arrived.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Write lines until cancelled, and then those that are left."""
        task_status.started()
        try:
            while True:
                await self._arrived.wait()
                # Looked at again and again: the disk does not say when there is room.
                while self._held():  # noqa: ASYNC110
                    await trio.sleep(HELD_SECONDS)
                self._arrived = trio.Event()
                self._batch = self._taken()
                lost = await self.lane.read(self._write_batch)
                self._lost += lost
        finally:
            self.finish()

    def finish(self) -> None:
        """Write what is left, in this thread, and close the file."""
        # What the lane had not begun when we were cancelled, and what came since.
        self._write_batch()
        self._batch = self._taken()
        self._write_batch()
        self.ring.close()

    def _taken(self) -> _Batch:
        """Take the lines that wait."""
        lines, lost = self._waiting, self._lost
        self._waiting, self._waiting_bytes, self._lost = [], 0, 0
        count = len(lines) + lost
        if lost:
            lines.insert(0, self._lost_line(lost))
        return _Batch(b"".join(lines), count)

    def _write_batch(self) -> int:
        """Write the lines that were taken, on the thread; return how many were lost."""
        batch, self._batch = self._batch, _Batch()
        if not batch.data:
            return 0
        try:
            self._prepare()
            self.ring.write(batch.data)
        except OSError as error:
            self.ring.close()
            if not self._failing:
                self._failed(error)
            self._failing = True
            return batch.count
        self._failing = False
        return 0
