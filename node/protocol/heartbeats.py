"""What is heard of another member on its link to us: heartbeats, and those that did not come."""

from __future__ import annotations

import math

import trio


class Pulse:
    """The heartbeats of one member: of a leader its commit positions, of a follower its reports.

    Args:
        interval: seconds in which one is due.

    Attributes:
        heard_at: when something was last heard of it (trio's clock); minus infinity before.
        heartbeats: how many came.
    """

    def __init__(self, interval: float) -> None:
        self.heard_at = -math.inf
        self.heartbeats = 0
        self._interval = interval
        self._missed = 0
        self._now = trio.lowlevel.current_clock().current_time

    def beat(self) -> None:
        """A heartbeat, or what stands for one, has come."""
        self.sign()
        self.heartbeats += 1

    def sign(self) -> None:
        """It is alive: a part of a message has come, which may take long to come whole."""
        now = self._now()
        if now - self.heard_at > self._interval:
            self._missed += self._overdue(now)
        self.heard_at = now

    @property
    def missed(self) -> int:
        """How many intervals passed without a sign of life, but for that in which one is due."""
        return self._missed + self._overdue(self._now())

    def _overdue(self, now: float) -> int:
        if self.heard_at < 0:
            return 0
        return max(int((now - self.heard_at) / self._interval) - 1, 0)
