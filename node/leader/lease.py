"""Reads without a round: the lease of a leader, from the promises of its followers.

A follower that echoes a confirmation number promises to help no other member to lead, by standing
or voting, for the length of the term's lease (Raft dissertation, section 6.4.1;
:mod:`..protocol.promise`). Once a quorum has echoed a number, no other member can lead until a
lease has passed since the leader made that number. Until then the leader answers reads at once.

Clocks are compared by their rate, never by what they show. Only the leader can release followers
from a promise: when it leads no more, and when it asks a member to take over. What was promised
before it asked does not count for it any more.

Without a lease (`Timeouts.leader_lease` is 0) nothing is promised, and each read waits for a round.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import trio

from .follower_progress import PROMISED_AT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..protocol.quorum import Quorums, VoterId
    from .follower_progress import Follower, Followers

HELD_SHARE: Final = 0.9
"""The share of a lease that the leader uses. If larger, a leader whose clock is slower than a
follower's may answer stale reads; 0.9 allows for a tenth. If smaller, more reads wait for a round.
"""


class Lease:
    """What a leader knows of its followers' promises.

    Args:
        seconds: for how long each is given, 0 for never.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._made: dict[int, float] = {}

    def make(self, confirm_id: int) -> None:
        """Note that a number was made; no follower has heard it yet."""
        now = trio.current_time()
        # Numbers whose lease is over prove nothing any more; without this the table would only
        # grow.
        self._made = {each: at for each, at in self._made.items() if at + self.seconds > now}
        self._made[confirm_id] = now

    def echoed(self, follower: Follower, confirm_id: int) -> None:
        """Note a follower's echo of a number: it has promised after that was made."""
        # Counted from when the number was made, not from its echo: the follower promised in
        # between, so our count ends first.
        follower.promised_at = max(follower.promised_at, self._made.get(confirm_id, -math.inf))

    def void(self, followers: Iterable[Follower]) -> None:
        """Count no promise any more that was given up to now."""
        # Echoes on their way must not count either: the follower may have been released since.
        self._made.clear()
        for follower in followers:
            follower.promised_at = -math.inf

    def left(self, followers: Followers, quorums: Quorums[VoterId]) -> float:
        """Return for how many seconds from now on no other member can lead, 0 without a lease."""
        if not self.seconds:
            return 0.0
        now = trio.current_time()
        # A store without a vote promises nothing of worth: it elects nobody anyway.
        promised = followers.by_voter(now, PROMISED_AT)
        # The quorum-th newest: any quorum that could elect another leader has one of these members
        # in it.
        promised_at = quorums.time(promised)
        return max(promised_at + HELD_SHARE * self.seconds - now, 0.0)
