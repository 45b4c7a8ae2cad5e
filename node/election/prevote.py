"""Scouting: before a member raises its term it asks whether it would be voted for in it.

A round of questions inside of NOMINATE, which binds nobody and writes nothing (BlazingMQ's elector;
the Raft dissertation, section 9.6, calls it a pre-vote). So who can't win disturbs nobody: a member
that was cut off and returns brings no higher term with it, and one that alone has lost the leader
is told by the others that they hear it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from ...storage import NodeState
from ...transport import Message, Scout, ScoutReply, VoteReason
from ..protocol import ballots
from ..protocol.states import State

if TYPE_CHECKING:
    from .context import Election


NOT_WAITED_FOR: Final = {VoteReason.NO_VOTE, VoteReason.PROMISED}
"""Why a member does not vote that has nothing against the candidate: it vetoes nothing."""


def next_term(e: Election) -> int:
    """Return the term to stand in: above all that we know or have heard of."""
    return max(e.state.known_term, e.highest_term_heard) + 1


async def scout(e: Election) -> State | None:
    """Ask all that have a vote; raise the term, durably, if a quorum would vote for us.

    Returns:
        CANDIDATE_BALLOT, or CANVASS if the answer is no; another state if something else came up
        meanwhile; None if we gave way to another member that scouts as well.
    """
    scouting = Round(e)
    e.scouting = True
    try:
        while e.scouting:
            supported = scouting.verdict()
            if supported is not None:
                return await scouting.conclude() if supported else scouting.withdraw()
            scouting.ask()
            event = await e.inbox.receive(scouting.wakes_at)
            if event is not None and (state := await scouting.hear(*event)) is not None:
                return state
        return None
    finally:
        e.scouting = False


async def stand(e: Election, term: int) -> State:
    """Raise the term: the vote for ourselves is durable before anyone hears of it."""
    assert not e.voter.lease_promise.binds, "a promise is to be kept still"
    await e.voter.promise(NodeState(term, e.state.member_id))
    e.because(f"candidate for term {term}")
    return State.CANDIDATE_BALLOT


class Round:
    """One round of questions, and the answers so far."""

    def __init__(self, e: Election) -> None:
        self._e = e
        self._ends_at = trio.current_time() + e.state.timeouts.election_timeout / 2
        self._restart()

    def _restart(self) -> None:
        e, end, term = self._e, self._e.state.log_end, next_term(self._e)
        nonce = e.rng.getrandbits(62)
        mandate = e.mandate
        self._question = Scout(
            term,
            end.term,
            end.position,
            e.state.member_id,
            nonce,
            force=mandate is not None,
            even_if_behind=mandate is not None and mandate.even_if_behind,
        )
        self._answers: dict[int, VoteReason] = {}
        self._ask_at = trio.current_time()

    @property
    def _silent(self) -> list[int]:
        return [peer for peer in self._e.state.voters if peer not in self._answers]

    @property
    def wakes_at(self) -> float:
        """When the question is repeated, or the round is over."""
        return min(self._ask_at, self._ends_at)

    def verdict(self) -> bool | None:
        """Say whether a quorum would vote for us; None means that we wait for more answers."""
        if self._question.force and VoteReason.LEADER_ALIVE in self._answers.values():
            return False  # the leader does not wait for us any more
        over = trio.current_time() >= self._ends_at
        absent = self._silent if over else self._e.absent
        return ballots.is_supported(self._answers, self._e.state.voters, absent)

    def ask(self) -> None:
        """Ask those that have not answered, now and then."""
        now = trio.current_time()
        if now >= self._ask_at:
            for peer in self._silent:
                self._e.links.send(peer, self._question)
            self._ask_at = now + self._e.state.timeouts.canvass_interval

    async def hear(self, sender: int, message: Message) -> State | None:
        """Take an answer, or whatever else comes; the state that follows from it, if any."""
        e = self._e
        state = None
        if isinstance(message, ScoutReply):
            if message.nonce == self._question.nonce and sender in e.state.voters:
                self._take(sender, message)
        else:
            state = await e.react(sender, message)
        if max(e.promised_term, e.highest_term_heard) >= self._question.proposed_term_id:
            self._restart()  # nobody would vote in that term any more
        return state

    def _take(self, sender: int, reply: ScoutReply) -> None:
        e = self._e
        self._answers[sender] = reply.reason
        e.highest_term_heard = max(e.highest_term_heard, reply.candidate_term_id)
        if ballots.is_supported(self._answers, e.state.voters, absent=e.state.voters):
            # A quorum will do: who is still silent is not waited for long.
            patience = trio.current_time() + e.state.timeouts.canvass_interval
            self._ends_at = min(self._ends_at, patience)

    async def conclude(self) -> State:
        """A quorum would vote for us."""
        without = [m for m, why in self._answers.items() if why in NOT_WAITED_FOR]
        self._e.silent = (*self._silent, *without)
        return await stand(self._e, self._question.proposed_term_id)

    def withdraw(self) -> State:
        """Leave the others alone for a while."""
        e, term = self._e, self._question.proposed_term_id
        e.hold_back(refused=VoteReason.PROMISED not in self._answers.values())
        e.mandate = None
        said = ", ".join(f"{peer} {why.name}" for peer, why in sorted(self._answers.items()))
        e.because(f"no quorum would vote for us in term {term}: {said or 'no answers'}")
        return State.CANVASS
