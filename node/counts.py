"""What a member counts of itself, beyond the parts that come and go with its elections.

Parts that live as long as the member count for themselves: the store, the applier, the snapshots,
the repair. A leader, a follower and an election do not, so they count into the one object here,
which `MemberState` holds. Counts begin with the process and never decrease.
:mod:`.live.figures` makes families of them at a scrape.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

import attrs

from ..metrics import Histogram

MILLISECOND: Final = 2.0**-10
"""Upper bound of the first bucket of what takes long: about a millisecond, so that the last bound
is 17 minutes. Smaller: long elections can't be told from endless ones. Larger: short elections fall
into one bucket."""


def _long() -> Histogram:
    return Histogram(MILLISECOND)


@attrs.define(eq=False)
class Counts:
    """The counts of one member; plain data, with one writer for each.

    Attributes:
        commit_duration: seconds from the append of a batch to its commit, while this member leads;
            one observation for each entry.
        elections: by cause and outcome, see :class:`.protocol.causes.Cause`.
        election_duration: seconds from the end of the last role to the end of the election.
        leader_changes: how often a leader of another term was found than the one before.
        heartbeats_missed: heartbeat intervals in which nothing came from the leader, or from a
            follower that was heard again.
        reads: read requests by the way in which they were answered.
        forwarded: requests that were sent to the leader.
        unknown_outcomes: requests that were lost here, and may or may not take effect.
        loop_delay: seconds by which a timer fired late.
        delays: the delays of the last second, see :mod:`.live.loop_delay`.
        clock_stalls: how often it was so late that heartbeats were at risk.
    """

    commit_duration: Histogram = attrs.field(factory=Histogram)
    elections: Counter[tuple[str, str]] = attrs.field(factory=Counter[tuple[str, str]])
    election_duration: Histogram = attrs.field(factory=_long)
    leader_changes: int = 0
    heartbeats_missed: int = 0
    reads: dict[str, int] = attrs.field(
        factory=lambda: dict.fromkeys(("lease", "quorum", "forwarded"), 0)
    )
    forwarded: int = 0
    unknown_outcomes: int = 0
    loop_delay: Histogram = attrs.field(factory=Histogram)
    delays: deque[float] = attrs.field(factory=lambda: deque[float](maxlen=20))
    clock_stalls: int = 0
