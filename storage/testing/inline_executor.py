"""An executor without threads, for virtual time.

A task that waits for a thread looks idle to a clock that jumps ahead, such as trio's `MockClock`.
So simulated time needs writes that take place on the trio thread, after a latency of that clock. It
is here and not in `writing`, since no member of a real cluster uses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic

import trio

from ...metrics import Histogram
from ..writing.executor import MAX_GROUP_JOBS, J, T, nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Never

    from ..writing.journal_writer import Span


class InlineExecutor(Generic[J]):
    """Writes groups on the trio thread, each after a latency of trio's clock.

    Args:
        write: makes a group durable.
        delivered: called after the `done` of each group.
        idle: called at an orderly end.
        latency: seconds; may be changed at any time.

    Attributes:
        syncs: how many seconds each group took.
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
        self.syncs = Histogram()

    def submit(self, job: J) -> None:
        """Queue a job for the next group."""
        if not self._ended:
            self._waiting.append(job)
            self._arrived.set()

    def by_spans(
        self, begin: Callable[[Sequence[J]], Span | None], end: Callable[[int], None]
    ) -> None:
        """Do nothing: `write` writes every group."""

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
                began = trio.current_time()
                await self._turn(size)
                self.syncs.observe(trio.current_time() - began)
                self._write_first(size)
                if not self._waiting:
                    self._arrived = trio.Event()
        finally:
            self._write_first(len(self._waiting))
            if not self._ended:
                self._ended = True
                self._idle()

    async def _turn(self, size: int) -> None:  # noqa: ARG002 - for subclasses
        """Wait as long as writing a group of `size` jobs takes."""
        await trio.sleep(self.latency)

    def cut_power(self) -> None:
        """Lose everything that is not written yet, and write nothing more."""
        self._ended = True
        self._waiting.clear()

    def _write_first(self, size: int) -> None:
        """Write the first `size` waiting jobs, and call back."""
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
