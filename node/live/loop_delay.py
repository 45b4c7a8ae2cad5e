"""How late the event loop is: what else runs in this process holds up heartbeats as well.

A timer that fires late was late because tasks before it took long, or because the process stood
still: it was stopped, its machine was suspended, or another program had the processor. A process
can't tell these apart, and for the other members they are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Never

import trio

if TYPE_CHECKING:
    from ..counts import Counts

TICK_SECONDS: Final = 0.05
"""How long the timer sleeps. Shorter: an idle member wakes up more often. Longer: short delays fall
between two looks."""

STALL_SHARE: Final = 0.25
"""The share of a heartbeat timeout from which on a delay counts as a stall. Smaller: delays count
that harm nobody. Larger: the next one may already cost the lead."""


async def watch_loop(counts: Counts, heartbeat_timeout: float) -> Never:
    """Count how late a timer fires, until cancelled.

    Args:
        counts: of the member.
        heartbeat_timeout: seconds after which others give up a member that is silent.
    """
    while True:
        due = trio.current_time() + TICK_SECONDS
        await trio.sleep_until(due)
        late = max(trio.current_time() - due, 0.0)
        counts.loop_delay.observe(late)
        counts.delays.append(late)
        counts.clock_stalls += late >= STALL_SHARE * heartbeat_timeout
