"""Pauses after failures, so that a member that keeps failing disturbs nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from random import Random

    from ..state import MemberState

MAX_DOUBLINGS: Final = 4
"""Refused pre-votes in a row that make the pause longer: up to 8 election timeouts. Smaller: a
member that cannot win asks more often. Larger: it stands later once it could win."""


class Backoff:
    """Makes INIT wait when an attempt fails for the same reason as the one before.

    Args:
        state: has the timeouts.
    """

    def __init__(self, state: MemberState) -> None:
        self._state = state
        self._failure = ""
        self._seconds = 0.0
        self._due = 0.0  # seconds that INIT still has to wait

    def reset(self) -> None:
        """Note that an election was completed."""
        self._failure, self._seconds = "", 0.0

    def failed(self, failure: str) -> None:
        """Note a failure. The first of its kind costs no pause, each further one a longer one."""
        timeouts = self._state.timeouts
        first, longest = timeouts.leader_heartbeat_interval, timeouts.leader_heartbeat_timeout
        # Only a repetition waits: another failure shows that something has changed.
        again = failure == self._failure
        self._seconds = min(self._seconds * 2 or first, longest) if again else 0.0
        self._due, self._failure = self._seconds, failure

    async def wait(self) -> None:
        """Wait for what is due."""
        due, self._due = self._due, 0.0
        await trio.sleep(due)


class HoldBack:
    """Keeps a member from standing for a while after its pre-vote has failed.

    Args:
        state: has the timeouts.
        rng: spreads the pauses of several members.

    Attributes:
        until: when it may stand again (trio's clock).
    """

    def __init__(self, state: MemberState, rng: Random) -> None:
        self._state = state
        self._rng = rng
        self._refusals = 0
        self.until = 0.0

    def reset(self) -> None:
        """Note that an election was completed."""
        self._refusals, self.until = 0, 0.0

    def failed(self, *, refused: bool) -> None:
        """Note a pre-vote that failed; the pause grows only if it was really refused."""
        # Bounded, since a member whose log has become the longest is needed as a leader soon.
        self._refusals = min(self._refusals + refused, MAX_DOUBLINGS)
        pause = self._state.timeouts.election_timeout * 2.0 ** max(self._refusals - 1, 0)
        # Spread by chance: members that were refused together must not come back together.
        self.until = trio.current_time() + pause * self._rng.uniform(0.5, 1.5)
