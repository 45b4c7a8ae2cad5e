"""Faults of clocks: the time of day jumps forward or back, or is years ahead for a moment.

Different clock rates, and clocks that are hours off from the start, belong to each run's setting.
The cluster must survive all of it: the time of day decides when keys expire, and nothing else.
Only one machine of a run is ever years ahead, since log time follows the clocks of a quorum,
however wrong these are.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .context import FaultContext

JUMPS_MS = (50, 5_000, 600_000)
LEAP_MS = 10 * 365 * 86_400_000
LEAPS = 0.5


async def set_clock(n: FaultContext) -> None:
    """Set a machine's time of day."""
    jump = n.rng.choice(JUMPS_MS) * (1 if n.rng.random() < 0.5 else -1)
    n.world.hosts[n.anyone()].clock.jump(jump)
    _leap(n, Random(f"{n.world.setting.seed}/leap/{n.counts['set clock']}"))


def _leap(n: FaultContext, rng: Random) -> None:
    """Have a clock be years ahead for a moment; a member that is alone must believe its own."""
    setting = n.world.setting
    if rng.random() < LEAPS and len(setting.voters) > 1:
        leaper = Random(f"{setting.seed}/leaper").choice(setting.voters)
        clock = n.world.hosts[leaper].clock
        clock.leap(LEAP_MS)
        n.later(n.unit * rng.choice((0.1, 1.0, 10.0)), clock.come_back)
