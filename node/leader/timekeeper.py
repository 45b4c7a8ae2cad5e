"""The log's time of a leadership, and the entries that it records although nobody writes.

The service may want the log's time to move at some moment: then an entry without content is
recorded. And the commit position of the last batch is in no batch, as long as none follows: who
has nothing but the directory of a member takes that batch for uncommitted, for hours if nobody
writes. So one such entry is recorded when the log falls idle. That its own commit is in no batch
does no harm, since it says nothing else; so there is one for each idle time, and an idle cluster
does nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Never

import trio

from ...storage import Entry, EntryKind
from ..protocol.signal import Signal
from .log_clock import LogTime

if TYPE_CHECKING:
    from .leadership import Leadership

IDLE_SECONDS: Final = 1.0
"""After so long without a batch the log is idle, which is noticed within as much again. Shorter:
clients that pause between their writes cost up to twice as many batches. Longer: readers of a
directory have the last batch later."""


class Timekeeper:
    """Tells the log's time, and records the timer entries of a leadership.

    Args:
        leadership: whose log it is.

    Attributes:
        now_ms: the log's time by now: nothing is stamped with an earlier one from here on.
    """

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self.now_ms = LogTime(leadership.clocks.now_ms, leadership.store.last_timestamp_ms).now_ms
        self._changed = Signal()
        self._due_ms: float = math.inf
        self._resting = False  # nothing is due, before something is committed
        self._told_end = -1  # where our last entry ends: what is below is known to be committed
        self._log_end, self._idle_at = -1, math.inf  # the end of the log, and when it is idle

    def look_again(self) -> None:
        """Something was committed, or entries are taken again: something may be due earlier."""
        if self._resting:
            self._changed.notify()
            return
        due = self._leadership.applier.service.next_deadline_ms()
        if due is not None and due < self._due_ms:
            self._changed.notify()

    async def run(self) -> Never:
        """Record an entry whenever one is due and no other is on its way; until cancelled."""
        leadership = self._leadership
        applier = leadership.applier
        while True:
            # One reading of the clock: with a later one for `until` that would never have come.
            now = trio.current_time()
            until = self._due_at(now)
            if until > now:
                self._resting = until == math.inf
                await self._changed.wait(until)
            else:
                if not leadership.proposals.in_flight:
                    leadership.append([Entry(EntryKind.TIMER)])
                    self._told_end = leadership.publication_position
                await applier.progressed.wait()

    def _due_at(self, now: float) -> float:
        """When an entry is due, on trio's clock; infinity for never."""
        leadership = self._leadership
        due, self._due_ms = leadership.applier.service.next_deadline_ms(), math.inf
        if not leadership.accepting:
            return math.inf
        if leadership.publication_position != self._log_end:
            self._log_end, self._idle_at = leadership.publication_position, now + IDLE_SECONDS
        idle_at = math.inf if self._log_end == self._told_end else self._idle_at
        if due is None:
            return idle_at
        self._due_ms = due
        return min(idle_at, now + max(due - self.now_ms(), 0) / 1000)
