"""Faults of clocks: the time of day is set, forward and back.

That clocks run at different rates, and are hours off from the start, is part of each run's setting.
All of it the cluster must survive: the time of day says when leases end, and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..nemesis import Nemesis

JUMPS_MS = (50, 5_000, 600_000)


async def set_clock(n: Nemesis) -> None:
    """Set a machine's time of day."""
    jump = n.rng.choice(JUMPS_MS) * (1 if n.rng.random() < 0.5 else -1)
    n.world.hosts[n.anyone()].clock.jump(jump)
