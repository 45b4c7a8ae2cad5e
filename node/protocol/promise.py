"""The promise of a follower to a leader with a lease: to help nobody else to lead for a while.

It outlives the role in which it was given, and a restart: how long a promise may last is durable
before the first one counts, and a member that starts waits for as long. Only the leader can release
us from it: by a message that shows that it leads no more, or by asking us to take over.
"""

from __future__ import annotations

from typing import Final

import trio

MAX_LEASE_MS: Final = 600_000
"""The longest lease. Larger: a failed leader could block elections for more than ten minutes."""


class Promise:
    """The promise of one member; it lasts through all its roles.

    Args:
        seconds: how long a promise from before the start may still last.
    """

    def __init__(self, seconds: float) -> None:
        self._until = trio.current_time() + seconds

    def give(self, seconds: float) -> None:
        """Promise for that many seconds from now on; 0 promises nothing."""
        if seconds:
            self._until = max(self._until, trio.current_time() + seconds)

    def release(self) -> None:
        """End the promise: its leader leads no more, or wants us to lead."""
        self._until = trio.current_time()

    @property
    def binds(self) -> bool:
        """Whether the promise still holds."""
        return trio.current_time() < self._until
