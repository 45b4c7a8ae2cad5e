"""The log's time: what a leader stamps on the batches of its term.

It follows the leader's clock, as far as that is believed (:mod:`.clocks`), and never goes back. A
leader whose clock lies behind what the log says already (its predecessor's lay ahead) must not wait
until its clock gets there: keys would not expire until then. So the log's time goes on from where
it was, at nine tenths of the pace, until the clock has caught up with it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("quorate.node")

SLOW_MS_PER_SECOND = 900
SKEW_TO_TELL_MS = 1000


class LogTime:
    """The time of one term of leadership.

    Args:
        clock_ms: the clock to follow, milliseconds since the epoch.
        last_ms: the time of the last batch in the log.
    """

    def __init__(self, clock_ms: Callable[[], int], last_ms: int) -> None:
        self._clock_ms = clock_ms
        self._last_ms = last_ms  # ...at
        self._now = trio.lowlevel.current_clock().current_time  # each batch asks
        self._last_at = self._now()
        if (behind := last_ms - clock_ms()) > SKEW_TO_TELL_MS:
            log.warning(
                "the clock is %.3g s behind the log's time, which goes on at %d %% of the pace",
                behind / 1000,
                SLOW_MS_PER_SECOND / 10,
            )

    def now_ms(self) -> int:
        """Milliseconds since the epoch; never less than before."""
        at, clock = self._now(), self._clock_ms()
        least = self._last_ms + int((at - self._last_at) * SLOW_MS_PER_SECOND)
        if clock < least:
            return least
        self._last_ms, self._last_at = clock, at
        return clock
