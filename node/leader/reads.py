"""Linearizable reads on the leader, without touching the log.

A read may be answered from the applied state once the leader knows that it still led after the read
came. So it sends a number to all followers, and when a quorum has echoed that, the reads that
waited for it are answered (ReadIndex, Raft dissertation §6.4). All reads of a turn of the event
loop share one number. While a lease holds (:mod:`.lease`), the leader knows it without asking.

Answering takes turns with other tasks, in slices as applying does: otherwise a few dozen walks over
many keys would keep the leader silent.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Never

import attrs
import trio

from ..protocol.signal import Signal
from ..requests.request import still_allowed
from ..state_machine.applier import SLICE_SECONDS
from .follower_progress import CONFIRM_ID
from .lease import Lease

if TYPE_CHECKING:
    from ..requests.request import Request
    from ..state import MemberState
    from ..state_machine.applier import Applier
    from .follower_progress import Follower, Followers

MAX_ROUNDS = 2
"""Rounds under way at once. If 1, reads wait for the round before theirs. If larger, rounds are
smaller, and each costs every member a message."""


@attrs.frozen
class ReadRound:
    """Reads that share one number.

    Args:
        confirm_id: the number that a quorum must echo; 0 under a lease, which needs no echo.
        position: must be applied before they are answered.
        reads: the requests.
    """

    confirm_id: int
    position: int
    reads: list[Request]


class Reads:
    """The reads that wait on a leader.

    Args:
        state: of the member.
        applier: of the service that answers them.
        followers: the other members.

    Attributes:
        confirm_id: the newest number that followers are asked to echo.
        lease: while it holds, no number is needed.
        waiting: reads that are in no round yet.
        rounds: rounds that wait for a quorum.
    """

    def __init__(self, state: MemberState, applier: Applier, followers: Followers) -> None:
        self.confirm_id = 0
        self.lease = Lease(state.timeouts.leader_lease)
        self._state = state
        self._applier = applier
        self._followers = followers
        self.waiting: list[Request] = []
        self.rounds: deque[ReadRound] = deque()
        self._confirmed: deque[Request] = deque()
        self._left = Signal()
        self._asked_on = False  # clients that were just answered have sent more

    def submit(self, request: Request) -> None:
        """Take a read; the next round includes it."""
        self.waiting.append(request)

    def surrender(self) -> list[Request]:
        """Remove and return all reads; they have no effect and can be sent again."""
        in_rounds = (read for one in self.rounds for read in one.reads)
        given = [*self._confirmed, *in_rounds, *self.waiting]
        self._confirmed.clear()
        self.rounds.clear()
        self.waiting = []
        return given

    def start_round(self) -> bool:
        """Start a round if reads wait.

        Returns:
            Whether its number has to be sent to the followers.
        """
        if not self.waiting or len(self.rounds) >= MAX_ROUNDS:
            return False
        reads = [*still_allowed(self.waiting)]
        self.waiting = []
        # Asked once: a lease that ends between two looks would leave a round without a number.
        leased = self.lease_left > 0
        certain = self._state.alone or leased
        self._state.counts.reads["lease" if leased else "quorum"] += len(reads)
        # Made after the reads came: an older echo does not prove that we led when they came (H14).
        number = 0 if certain else self.make_number()
        # I-37: every write that was acknowledged before these reads is below the commit position of
        # now.
        self.rounds.append(ReadRound(number, self._applier.commit_position, reads))
        if certain:
            self.answer()
            # By `run`: our caller may be the task that makes rounds, which can't wake itself,
            # because a signal has no memory.
            if self.waiting:
                self._asked_on = True
                self._left.notify()
        return not certain

    @property
    def lease_left(self) -> float:
        """For how many seconds from now on no number is needed, 0 without a lease."""
        return self.lease.left(self._followers, self._state.quorums)

    def make_number(self) -> int:
        """Make a number for the followers to echo, and return it."""
        self.confirm_id += 1
        if self.lease.seconds:
            self.lease.make(self.confirm_id)
        return self.confirm_id

    def renew_lease(self) -> None:
        """Make a number if there are leases; the next message has the followers promise anew."""
        if self.lease.seconds:
            self.make_number()

    def echoed(self, follower: Follower, confirm_id: int) -> None:
        """Note the number in a follower's report."""
        follower.confirm_id = max(follower.confirm_id, confirm_id)
        # Only if it is READY: before, the length of the lease is not durable there, and a restart
        # would forget the promise.
        if self.lease.seconds and follower.ready:
            self.lease.echoed(follower, confirm_id)

    def answer(self) -> bool:
        """Answer the rounds that a quorum has echoed, for one slice of time.

        Returns:
            Whether more reads wait for a round.
        """
        if not self.rounds:
            return bool(self.waiting)
        # Our own echo is implied: we have not been deposed.
        echoed = self._followers.by_voter(self.confirm_id, CONFIRM_ID)
        confirmed = self._state.quorums.position(echoed)
        applied = self._applier.applied_position
        busy = bool(self._confirmed)
        while self.rounds and self.rounds[0].confirm_id <= confirmed:
            if applied < self.rounds[0].position:
                break  # not applied yet; the next report checks again
            self._confirmed += self.rounds.popleft().reads
        # If busy, `run` is in the middle of them, and goes on in order.
        if not busy:
            self._answer_confirmed()
            if self._confirmed:
                self._left.notify()
        return bool(self.waiting)

    async def run(self) -> Never:
        """Answer what one slice left, and what clients send upon an answer; until cancelled."""
        while True:
            if not (self._confirmed or self._asked_on):
                await self._left.wait()
            # Between two slices all other tasks have their turn, heartbeats above all.
            await trio.lowlevel.checkpoint()
            self._answer_confirmed()
            if self._asked_on:
                self._asked_on = False
                self.start_round()

    def _answer_confirmed(self) -> None:
        """Answer confirmed reads for one slice."""
        query = self._applier.service.query
        until = trio.current_time() + SLICE_SECONDS
        while self._confirmed:
            read = self._confirmed.popleft()
            # A request of many clients may need several calls; it keeps its place.
            if not read.answer(query):
                self._confirmed.appendleft(read)
            # After at least one read, so that each slice gets on, however late it begins.
            if trio.current_time() > until:
                break
