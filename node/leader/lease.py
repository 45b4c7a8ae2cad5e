"""Reads without a round: the lease of a leader, and what its followers promise for it.

Whoever echoes a confirmation number helps nobody else to lead for as long as the term's lease is:
it neither stands nor votes (Raft dissertation, section 6.4.1). So once a quorum has echoed a number
nobody else leads until a lease has passed since the leader made that number, and until then it
answers reads at once. Two clocks are compared by how fast they go, never by what they show.

A promise outlives the role in which it was given, and a restart: how long one may last is durable
before the first is counted, and a member that starts waits for so long. Only the leader can release
from it: by what it says when it leads no more, and whom it asks to take over. What had been
promised before it asked does not count for it any more.

With no lease (`Timeouts.leader_lease` is 0) nothing is promised, and each read waits for a round.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import trio

from ..protocol import quorum

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .follower_progress import Follower

HELD_SHARE: Final = 0.9
"""What a leader takes of the lease: its clock may be slower than a follower's by a tenth."""


class Lease:
    """What a leader knows of the promises of its followers.

    Args:
        seconds: that they are given for, 0 for never.
        members: of the cluster, the leader included.
    """

    def __init__(self, seconds: float, members: int) -> None:
        self.seconds = seconds
        self._members = members
        self._made: dict[int, float] = {}

    def make(self, confirm_id: int) -> None:
        """Note that a number is made, and nobody has heard it yet."""
        now = trio.current_time()
        self._made = {each: at for each, at in self._made.items() if at + self.seconds > now}
        self._made[confirm_id] = now

    def echoed(self, follower: Follower, confirm_id: int) -> None:
        """A follower that is ready has echoed a number, and so has promised later than it."""
        follower.promised_at = max(follower.promised_at, self._made.get(confirm_id, -math.inf))

    def void(self, followers: Iterable[Follower]) -> None:
        """Count nothing any more of what was promised up to now."""
        self._made.clear()
        for follower in followers:
            follower.promised_at = -math.inf

    def left(self, followers: Iterable[Follower]) -> float:
        """For how many seconds from now on nobody else can lead, 0 without a lease."""
        if not self.seconds:
            return 0.0
        now = trio.current_time()
        voters = (each.promised_at for each in followers if each.votes)
        promised_at = quorum.quorum_time([now, *voters], self._members)
        return max(promised_at + HELD_SHARE * self.seconds - now, 0.0)
