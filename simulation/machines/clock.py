"""The clocks of one simulated machine: they start wrong, run at their own rate, and jump.

A member measures its waits with one clock and reads the time of day from another. The second is a
function that is passed to the member, so it may return anything. The first is trio's, which all
machines of the world share. A member only compares differences of it with its own timeouts. So a
clock that runs a tenth fast is the same as timeouts that are a tenth shorter
(:meth:`Clock.stretch`). Constants of the code (pauses between dials, the grace of an orderly stop)
are not stretched.
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
        """Return the time of day, in milliseconds since the epoch."""
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
        """Return how far it may have been ahead of the world so far, in milliseconds."""
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
