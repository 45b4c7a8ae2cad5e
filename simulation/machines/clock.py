"""The clocks of one simulated machine: they start wrong, run at their own rate, and jump.

A member measures how long it waits with one clock and tells the time of day with another. The
second one is a function that the member is given, so it may say anything. The first is trio's,
which all machines of the world share; but all that a member does with it is to compare its
differences with its own timeouts, so a machine whose clock runs fast by a tenth is one whose
timeouts are shorter by a tenth (:meth:`Clock.stretch`). What comes from constants of the code
(pauses between dials, the grace of an orderly stop) is not stretched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import trio

if TYPE_CHECKING:
    from random import Random

    from ...node import Timeouts

EPOCH_MS: Final = 1_700_000_000_000
"""The time of day when a run begins, in milliseconds since the epoch."""


@attrs.define
class Clock:
    """How a machine's clocks differ from the world's.

    Args:
        rate: how fast they run; 1.1 is a tenth too fast.
        offset_ms: how far the time of day was off when the run began, in milliseconds.
        leap_ms: how far it is ahead for a moment, in milliseconds.

    Attributes:
        furthest_ms: how far it was ahead at most.
    """

    rate: float = 1.0
    offset_ms: int = 0
    leap_ms: int = 0
    furthest_ms: int = attrs.field(
        init=False, default=attrs.Factory(lambda self: self.offset_ms, takes_self=True)
    )

    def now_ms(self) -> int:
        """Tell the time of day, in milliseconds since the epoch."""
        passed_ms = int(trio.current_time() * self.rate * 1000)
        return EPOCH_MS + self.offset_ms + self.leap_ms + passed_ms

    def jump(self, ms: int) -> None:
        """Have somebody set the time of day, forward or back."""
        self.offset_ms += ms
        self.furthest_ms = max(self.furthest_ms, self.offset_ms)

    def leap(self, ms: int) -> None:
        """Be ahead for a moment."""
        self.leap_ms = ms
        self.furthest_ms = max(self.furthest_ms, self.offset_ms + ms)

    def come_back(self) -> None:
        """End a leap."""
        self.leap_ms = 0

    def ahead_ms(self) -> int:
        """Tell how far it may have been ahead of the world at any time up to now."""
        fast = max(self.rate - 1, 0.0)
        return self.furthest_ms + int(trio.current_time() * fast * 1000) + 1

    def stretch(self, timeouts: Timeouts) -> Timeouts:
        """Give timeouts as this machine's clock measures them, in seconds of the world."""
        return attrs.evolve(
            timeouts, **{name: value / self.rate for name, value in attrs.asdict(timeouts).items()}
        )


def draw_clock(rng: Random) -> Clock:
    """Draw a clock: mostly a good one, now and then one that is hours off or a twentieth fast."""
    rate = rng.choice((1.0, 1.0, rng.uniform(0.999, 1.001), rng.uniform(0.95, 1.05)))
    offset_ms = rng.choice((0, 0, rng.randint(-50, 50), rng.randint(-36_000_000, 36_000_000)))
    return Clock(rate, offset_ms)
