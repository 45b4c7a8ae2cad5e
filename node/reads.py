"""Linearizable reads on the leader, without touching the log.

A read may be answered from the applied state once the leader knows that it still led after the
read came. So a number is sent to all followers, and when a quorum has echoed it, whoever waited
for that number is answered (ReadIndex, Raft dissertation §6.4). All reads of a turn of the loop
share one number. Answering takes turns with the other tasks, in slices as applying does: a few
dozen walks over many keys must not keep the leader silent.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Never

import attrs
import trio

from . import rules
from .applier import SLICE_SECONDS
from .gateway import still_wanted
from .roles import Signal

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
        waiting: for a round.
        rounds: that wait for a quorum.
    """

    def __init__(self, core: Core) -> None:
        self.confirm_id = 0
        self._core = core
        self.waiting: list[Request] = []
        self.rounds: deque[Round] = deque()
        self._confirmed: deque[Request] = deque()
        self._left = Signal()

    def submit(self, request: Request) -> None:
        """Take a read; it is part of the next round."""
        self.waiting.append(request)

    def surrender(self) -> list[Request]:
        """Give up all reads; they have no effect and can be asked anew."""
        in_rounds = (read for one in self.rounds for read in one.reads)
        given = [*self._confirmed, *in_rounds, *self.waiting]
        self._confirmed.clear()
        self.rounds.clear()
        self.waiting = []
        return given

    def start_round(self) -> bool:
        """Start a round if reads wait; whether its number has to be sent to the followers."""
        if not self.waiting or len(self.rounds) >= MAX_ROUNDS:
            return False
        reads = [*still_wanted(self.waiting)]
        self.waiting = []
        self.confirm_id += 1
        self.rounds.append(Round(self.confirm_id, self._core.applier.commit_position, reads))
        if self._core.size == 1:
            self.answer(())
            return False
        return True

    def answer(self, echoed: Iterable[int]) -> bool:
        """Answer the rounds that a quorum has echoed, as far as a slice goes.

        Args:
            echoed: the highest number that each follower has echoed.

        Returns:
            Whether more reads wait for a round.
        """
        if not self.rounds:
            return bool(self.waiting)
        confirmed = rules.quorum_position([self.confirm_id, *echoed], self._core.size)
        applied = self._core.applier.applied_position
        busy = bool(self._confirmed)
        while self.rounds and self.rounds[0].confirm_id <= confirmed:
            if applied < self.rounds[0].position:
                break  # still being read back; the next report looks again
            self._confirmed += self.rounds.popleft().reads
        if not busy:
            self._answer_confirmed()
            if self._confirmed:
                self._left.notify()
        return bool(self.waiting)

    async def run(self) -> Never:
        """Answer what one slice left; until cancelled."""
        while True:
            if not self._confirmed:
                await self._left.wait()
            await trio.lowlevel.checkpoint()
            self._answer_confirmed()

    def _answer_confirmed(self) -> None:
        """Answer for one slice."""
        query = self._core.applier.service.query
        until = trio.current_time() + SLICE_SECONDS
        while self._confirmed:
            read = self._confirmed.popleft()
            if not read.answer(query):
                self._confirmed.appendleft(read)
            if trio.current_time() > until:
                break
