"""Asks the leader for signs of life, and measures how long an answer takes.

A follower that votes has its reports answered by commits. A standby only listens: its leader's
heartbeats show that one direction works, and nothing shows the other one. So it asks the leader
once in each heartbeat interval, as Aeron's standby does (``HeartbeatRequest``). The answers decide
nothing; `quorate status` shows them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ...transport import HeartbeatRequest, HeartbeatResponse

if TYPE_CHECKING:
    from collections.abc import Callable


class LeaderProbe:
    """The questions of one role, and what came of them.

    Args:
        send: sends a question to the leader.

    Attributes:
        heard_at: when the last answer came (trio's clock); None before the first.
        round_trip: seconds from its question to it.
    """

    def __init__(self, send: Callable[[HeartbeatRequest], object]) -> None:
        self.heard_at: float | None = None
        self.round_trip = 0.0
        self._send = send
        self._number = 0
        self._asked_at = 0.0

    def ask(self) -> None:
        """Ask the leader; an answer to an earlier question does not count any more."""
        # Only the last one: an answer that takes longer than an interval is one that is late.
        self._number += 1
        self._asked_at = trio.current_time()
        self._send(HeartbeatRequest(self._number))

    def on_answer(self, message: HeartbeatResponse) -> None:
        """Note the answer to the last question."""
        if message.correlation_id == self._number:
            self.heard_at = trio.current_time()
            self.round_trip = self.heard_at - self._asked_at

    @property
    def heard_ms(self) -> int:
        """How long ago the last answer came, in milliseconds; -1 if none has come."""
        if self.heard_at is None:
            return -1
        return int((trio.current_time() - self.heard_at) * 1000)

    @property
    def round_trip_ms(self) -> float:
        """How long the last answer took, in milliseconds; -1 if none has come."""
        return -1.0 if self.heard_at is None else self.round_trip * 1000
