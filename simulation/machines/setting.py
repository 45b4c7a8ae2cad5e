"""What a simulated world is made of."""

from __future__ import annotations

import attrs

from ...node import Timeouts
from ...node.config.config import SnapshotPolicy

TIMEOUTS = Timeouts(
    startup_canvass=2.0,
    leader_heartbeat_timeout=0.5,
    leader_heartbeat_interval=0.05,
    election_timeout=0.25,
    canvass_interval=0.02,
)


@attrs.frozen
class Setting:
    """What a world is made of; times are seconds.

    Args:
        members: how many.
        standbys: how many of them, the last ones, are standbys.
        witnesses: how many of the members with a vote, the last ones, have no tables.
        seed: of everything in it that is left to chance.
        timeouts: of the members.
        latency: that bytes take from one member to another.
        jitter: that they take longer, at most.
        fsync: that a write takes to become durable.
        fsync_jitter: that it takes longer, at most.
        snapshot: when members take snapshots, and what they keep.
        founded: the cluster stands already; else all members must run for it to begin.
        contain: a member that fails leaves its error in `World.failures`, instead of ending it all.
    """

    members: int = 3
    standbys: int = 0
    witnesses: int = 0
    seed: object = 0
    timeouts: Timeouts = TIMEOUTS
    latency: float = 0.0005
    jitter: float = 0.0
    fsync: float = 0.001
    fsync_jitter: float = 0.0
    snapshot: SnapshotPolicy = attrs.field(factory=SnapshotPolicy)
    founded: bool = True
    contain: bool = False

    @property
    def voters(self) -> range:
        """The members that are no standbys."""
        return range(self.members - self.standbys)

    @property
    def without_tables(self) -> range:
        """The witnesses."""
        return self.voters[len(self.voters) - self.witnesses :]
