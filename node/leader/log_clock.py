"""The log's time, and the entries that a leader records although nobody writes.

The log's time is what a leader stamps on the batches of its term. It follows the leader's clock, as
far as that is trusted (:mod:`..clocks`), and it never goes back. If a leader's clock was ahead, the
next leader's clock is behind the log. Log time must not stop until that clock catches up, because
keys would not expire. So it runs 10 % slow until it is caught up.

Two reasons make a leader record an entry without content:

- The service wants log time to advance at a certain moment, for a timer or an expiring key.
- The commit position of the last batch is in no batch until another one follows. A reader that has
  nothing but a member's directory would take that batch for uncommitted for hours. So one entry is
  recorded when the log becomes idle. That the entry's own commit is in no batch does no harm, since
  it has no content. There is one for each idle time, so an idle cluster writes nothing.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final, Never

import trio

from ...log_events import log_event
from ...storage import Entry, EntryKind
from ..protocol.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..state_machine.applier import Applier
    from .replication import Replication

log = logging.getLogger("quorate.node")

SLOW_MS_PER_SECOND: Final = 900
"""Pace of log time while the clock is behind it. If smaller, keys live longer after a leader whose
clock was ahead. If larger, it takes longer until log time is right; at 1000 it never is."""

LOGGED_SKEW_MS: Final = 1000
"""A clock that is further behind log time is logged. If smaller, harmless skew fills the log. If
larger, an operator hears of a wrong clock too late."""

IDLE_SECONDS: Final = 1.0
"""After this time without a batch the log is idle, which is noticed within the same time again. If
smaller, clients that pause between writes cost up to twice as many batches. If larger, readers of a
directory see the last batch later."""


class LogClock:
    """The log's time during one term of leadership.

    Args:
        clock_ms: the clock to follow, milliseconds since the epoch.
        last_ms: the time of the last batch in the log.
    """

    def __init__(self, clock_ms: Callable[[], int], last_ms: int) -> None:
        self._clock_ms = clock_ms
        self._last_ms = last_ms  # at `_last_at`
        self._now = trio.lowlevel.current_clock().current_time  # cheaper, per batch
        self._last_at = self._now()
        if (behind := last_ms - clock_ms()) > LOGGED_SKEW_MS:
            log_event(
                log,
                logging.WARNING,
                "log_clock_behind",
                "the clock is %(seconds).3g s behind the log's time, which goes on at "
                "%(percent)d %% of the pace",
                seconds=behind / 1000,
                percent=SLOW_MS_PER_SECOND / 10,
            )

    def now_ms(self) -> int:
        """Return milliseconds since the epoch; never less than before."""
        at, clock = self._now(), self._clock_ms()
        least = self._last_ms + int((at - self._last_at) * SLOW_MS_PER_SECOND)
        # The clock was set back, or an earlier leader's was ahead: log time must not go back with
        # it.
        if clock < least:
            return least
        self._last_ms, self._last_at = clock, at
        return clock


class TimerEntries:
    """Records the timer entries of a leadership.

    Args:
        clock: the log's time.
        applier: its service knows when log time must next advance.
        replication: appends the entries.
    """

    def __init__(self, clock: LogClock, applier: Applier, replication: Replication) -> None:
        self._clock = clock
        self._applier = applier
        self._replication = replication
        self._changed = Signal()
        self._due_ms: float = math.inf
        self._wake_on_commit = False  # the log is not known to grow: a commit must wake us
        # Where our last timer entry ends: a log that ends there needs none.
        self._own_end = -1
        self._log_end, self._idle_at = -1, math.inf  # the end of the log, and when it is idle

    def recheck(self) -> None:
        """Something was committed, or requests are taken again: check whether more is due."""
        if self._wake_on_commit:
            self._changed.notify()
            return
        due = self._applier.service.next_deadline_ms()
        if due is not None and due < self._due_ms:
            self._changed.notify()

    async def run(self) -> Never:
        """Record an entry whenever one is due and no batch is under way; until cancelled."""
        while True:
            # One reading of the clock for both: `until` from a later one might never be reached.
            now = trio.current_time()
            until = self._due_at(now)
            if until > now:
                await self._changed.wait(until)
            else:
                # A batch under way advances log time itself, when it is applied.
                if not self._replication.in_flight:
                    self._replication.append([Entry(EntryKind.TIMER)])
                    self._own_end = self._replication.end
                # Until it is applied the service still names the same time, so to look again would
                # only spin.
                await self._applier.progressed.wait()

    def _due_at(self, now: float) -> float:
        """Return when an entry is due (trio's clock); infinity for never."""
        due, self._due_ms = self._applier.service.next_deadline_ms(), math.inf
        # A handover or a termination waits for a log that does not grow.
        if not self._replication.accepting:
            self._wake_on_commit = True
            return math.inf
        if self._replication.end != self._log_end:
            self._log_end, self._idle_at = self._replication.end, now + IDLE_SECONDS
        # An entry for our own entry would keep an idle cluster writing for ever.
        idle_at = math.inf if self._log_end == self._own_end else self._idle_at
        # A timer of the service does not count here: it may be days away. A log that grows and
        # falls idle before that needs an entry, too, so a commit has to wake us.
        self._wake_on_commit = idle_at == math.inf
        if due is None:
            return idle_at
        self._due_ms = due
        return min(idle_at, now + max(due - self._clock.now_ms(), 0) / 1000)
