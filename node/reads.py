"""Linearizable reads on the leader, without touching the log.

A read may be answered from the applied state once the leader knows that it still led after the
read came. So a number is sent to all followers, and when a quorum has echoed it, whoever waited
for that number is answered (ReadIndex, Raft dissertation §6.4). All reads of a turn of the loop
share one number.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import attrs

from . import rules

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .core import Core
    from .gateway import Request

# Rounds on their way at once: a second one may start while the first is answered.
MAX_ROUNDS = 2


@attrs.frozen
class Round:
    """Reads that wait for a quorum to echo `confirm_id`, and for `position` to be applied."""

    confirm_id: int
    position: int
    reads: list[Request]


class Reads:
    """The reads that wait on a leader.

    Attributes:
        confirm_id: the newest number that followers are asked to echo.
    """

    def __init__(self, core: Core) -> None:
        self.confirm_id = 0
        self._core = core
        self._waiting: list[Request] = []
        self._rounds: deque[Round] = deque()

    def submit(self, request: Request) -> None:
        """Take a read; it is part of the next round."""
        self._waiting.append(request)

    def surrender(self) -> list[Request]:
        """Give up all reads; they have no effect and can be asked anew."""
        given = [*self._waiting, *(read for one in self._rounds for read in one.reads)]
        self._waiting = []
        self._rounds.clear()
        return given

    def start_round(self) -> bool:
        """Start a round if reads wait; whether its number has to be sent to the followers."""
        if not self._waiting or len(self._rounds) >= MAX_ROUNDS:
            return False
        reads = [request for request in self._waiting if not request.cancelled]
        self._waiting = []
        self.confirm_id += 1
        self._rounds.append(Round(self.confirm_id, self._core.applier.commit_position, reads))
        if self._core.size == 1:
            self.answer(())
            return False
        return True

    def answer(self, echoed: Iterable[int]) -> bool:
        """Answer the rounds that a quorum has echoed; whether more reads wait for a round.

        Args:
            echoed: the highest number that each follower has echoed.
        """
        if not self._rounds:
            return bool(self._waiting)
        confirmed = rules.quorum_position([self.confirm_id, *echoed], self._core.size)
        applier = self._core.applier
        while self._rounds and self._rounds[0].confirm_id <= confirmed:
            if applier.applied_position < self._rounds[0].position:
                break  # still being read back; the next report looks again
            for request in self._rounds.popleft().reads:
                request.answer(applier.service.query)
        return bool(self._waiting)
