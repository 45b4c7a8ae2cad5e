"""The heartbeats of one other member, and those that did not come."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from ..counts import Counts


class Heartbeats:
    """What was heard of a member: of a leader its commit positions, of a follower its reports.

    Args:
        interval: seconds within which one is due.
        counts: of this member, which missed ones are added to; None for nowhere.

    Attributes:
        heard_at: when something was last heard of the member (trio's clock); minus infinity before.
        count: heartbeats heard.
    """

    def __init__(self, interval: float, counts: Counts | None = None) -> None:
        self.heard_at = -math.inf
        self.count = 0
        self._interval = interval
        self._missed = 0
        self._counts = counts
        self._now = trio.lowlevel.current_clock().current_time

    def heartbeat(self) -> None:
        """Note a heartbeat, or a message that stands for one."""
        self.alive()
        self.count += 1

    def alive(self) -> None:
        """Note that the member lives: a part of a message came, the rest of which may take long."""
        now = self._now()
        if now - self.heard_at > self._interval:
            self._note_missed(self._overdue(now))
        self.heard_at = now

    def lost(self) -> None:
        """Note that the member was given up: nothing more is awaited of it."""
        # What is overdue is otherwise counted only once the member is heard again.
        self._note_missed(self._overdue(self._now()))

    def _note_missed(self, count: int) -> None:
        self._missed += count
        if self._counts is not None:
            self._counts.heartbeats_missed += count

    @property
    def missed(self) -> int:
        """Heartbeat intervals missed, not counting the current one."""
        return self._missed + self._overdue(self._now())

    def _overdue(self, now: float) -> int:
        if self.heard_at < 0:
            return 0
        return max(int((now - self.heard_at) / self._interval) - 1, 0)
