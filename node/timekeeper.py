"""The log's time of a leadership, which moves although nobody writes when the service asks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Never

import trio

from ..storage import Entry, EntryKind
from .log_time import LogTime
from .roles import Signal

if TYPE_CHECKING:
    from .leadership import Leadership


class Timekeeper:
    """Tells the log's time, and records the timer entries of a leadership.

    Args:
        leadership: whose log it is.

    Attributes:
        now_ms: the log's time by now: nothing is stamped with an earlier one from here on.
    """

    def __init__(self, leadership: Leadership) -> None:
        core = leadership.core
        self._leadership = leadership
        self.now_ms = LogTime(core.clocks.now_ms, core.store.last_timestamp_ms).now_ms
        self._changed = Signal()
        self._due_ms: float = math.inf

    def look_again(self) -> None:
        """The service may want time to move earlier than before, or entries are taken again."""
        due = self._leadership.core.applier.service.next_deadline_ms()
        if due is not None and due < self._due_ms:
            self._changed.notify()

    async def run(self) -> Never:
        """Record an entry whenever one is due and no other is on its way; until cancelled."""
        leadership = self._leadership
        applier = leadership.core.applier
        while True:
            due = applier.service.next_deadline_ms()
            now = self.now_ms()
            self._due_ms = math.inf if due is None or not leadership.accepting else due
            if due is None or not leadership.accepting:
                await self._changed.wait()
            elif due > now:
                await self._changed.wait(trio.current_time() + (due - now) / 1000)
            else:
                if not leadership.proposals.in_flight:
                    leadership.append([Entry(EntryKind.TIMER)])
                await applier.progressed.wait()
