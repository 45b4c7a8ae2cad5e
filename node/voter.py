"""What this member has promised, and how it answers those that want to lead.

A vote is a promise: it is durable before anybody hears of it. The rules by which a vote is given
are pure functions (:mod:`.protocol.ballots`). This part looks up what they need to know of us,
makes promises durable, and sends the answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ..storage import NodeState
from ..transport import NULL_VALUE, ScoutReply, Vote, VoteReason
from .protocol import ballots, log_matching
from .protocol.promise import Promise
from .protocol.quorum import VoterId

if TYPE_CHECKING:
    from ..storage import Store
    from ..transport import Links, RequestVote, Scout, TermSpan
    from .clocks import Clocks
    from .state import MemberState


class Voter:
    """The voter in a member, in all its roles.

    Args:
        state: of the member.
        store: where promises become durable.
        links: to the candidates.
        clocks: our clock's reading travels with each vote.

    Attributes:
        lease_promise: to the leader, if it has a lease.
    """

    def __init__(self, state: MemberState, store: Store, links: Links, clocks: Clocks) -> None:
        self._state = state
        self._store = store
        self._links = links
        self._clocks = clocks
        self.lease_promise = Promise(state.promised.lease_ms / 1000)
        # The term of our last vote, and the candidate with its store. Not durable: after a restart
        # a repeated request is refused, and the candidate asks in a later term.
        self._given: tuple[int, VoterId] | None = None

    # --- promises ---------------------------------------------------------------------------------

    async def promise(self, vote: NodeState) -> None:
        """Make a vote, or the adoption of a term, durable; only then may anybody hear of it."""
        # How long a lease may last is in the same row, and outlives the vote.
        lease_ms = self._state.promised.lease_ms
        await self._store.save_node_state(attrs.evolve(vote, lease_ms=lease_ms))

    async def adopt_term(self, term: int) -> None:
        """Live in `term`; promise, durably, not to follow or vote in any term below it."""
        # A term that we have promised already may have our vote in it, which must not be erased
        # (I-2).
        if term > self._state.promised.candidate_term:
            await self.promise(NodeState(term, NULL_VALUE))
        # Only now: we must not act in a term above our durable promise, or a crash would take us
        # back below it (I-6).
        self._state.leadership_term = term

    async def expect_leases(self, lease_ms: int) -> None:
        """Make durable how long a promise to our leader may last (:mod:`.protocol.promise`)."""
        promised = self._state.promised
        longer = lease_ms > promised.lease_ms
        # A shorter one is noted only when no promise of the longer kind can still hold.
        shorter = lease_ms < promised.lease_ms and not self.lease_promise.binds
        if longer or shorter:
            # The vote of the row is kept as it is: a lease is no reason to vote anew (I-2).
            await self._store.save_node_state(attrs.evolve(promised, lease_ms=lease_ms))

    # --- answers ----------------------------------------------------------------------------------

    def view(self, candidate: int) -> ballots.VoterView:
        """Return all that the rules of voting need to know of us, to answer a candidate."""
        state = self._state
        return ballots.VoterView(
            # A log below its floor counts as long as the floor: what is missing may have been
            # committed.
            own=max(state.log_end, state.floor),
            promised=state.promised,
            bound=self.lease_promise.binds,
            admission=state.admission,
            terms=[row.term for row in self._store.terms],
            has_vote=state.votes,
            same_store=self._given == (state.promised.candidate_term, self._asks(candidate)),
        )

    def _asks(self, candidate: int) -> VoterId:
        """Return a candidate with the store with which it speaks."""
        return VoterId(candidate, self._state.speaks_with(candidate))

    def decide(
        self, request: RequestVote, *, in_ballot: bool, leader_alive: bool
    ) -> ballots.BallotDecision:
        """Decide a vote request from our durable state."""
        candidate = request.candidate_member_id
        decision = ballots.consider(
            request, self.view(candidate), in_ballot=in_ballot, leader_alive=leader_alive
        )
        if decision.vote and decision.promise is not None:
            # Now, not once it is durable: by then the candidate may speak with another store.
            self._given = decision.promise.candidate_term, self._asks(candidate)
        return decision

    def answer(self, sender: int, request: RequestVote, decision: ballots.BallotDecision) -> None:
        """Send a candidate our decision; a promise in it must be durable by now."""
        self._links.send(sender, self._vote(request, decision))

    def refuse(self, sender: int, request: RequestVote, *, leader_alive: bool) -> None:
        """Answer a candidate while we lead or follow: no promise is made, no election entered."""
        if request.candidate_member_id != sender:
            return
        # Not in a ballot, so no promise comes of it, and nothing has to be awaited in the middle of
        # a role.
        decision = self.decide(request, in_ballot=False, leader_alive=leader_alive)
        assert decision.promise is None
        self.answer(sender, request, decision)

    def answer_prevote(self, scout: Scout, *, in_ballot: bool, leader_alive: bool) -> VoteReason:
        """Answer a pre-vote: would we vote for its sender? Nothing is promised."""
        reason = ballots.consider_prevote(
            scout, self.view(scout.member_id), in_ballot=in_ballot, leader_alive=leader_alive
        )
        state = self._state
        reply = ScoutReply(
            scout.proposed_term_id,
            scout.nonce,
            state.member_id,
            reason,
            state.promised.candidate_term,
        )
        self._links.send(scout.member_id, reply)
        return reason

    def _vote(self, request: RequestVote, decision: ballots.BallotDecision) -> Vote:
        state = self._state
        terms: tuple[TermSpan, ...] = ()
        if request.even_if_behind and decision.vote:
            # A winner that is behind fetches the longest log among its voters. So it has to know
            # up to where that log and its own are the same.
            store, asked = self._store, request.log_leadership_term_id
            terms = log_matching.spans_of(store.terms, asked, store.append_position)
        return Vote(
            candidate_term_id=request.candidate_term_id,
            log_leadership_term_id=state.log_end.term,
            log_position=state.log_end.position,
            candidate_member_id=request.candidate_member_id,
            follower_member_id=state.member_id,
            vote=decision.vote,
            voter_candidate_term_id=state.promised.candidate_term,
            reason=decision.reason,
            terms=terms,
            timestamp=self._clocks.own_ms(),
        )
