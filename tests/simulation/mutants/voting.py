"""Mutants with wrong rules of voting, winning, votes and terms."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from quorate.node.election import election
from quorate.node.election.transition import Candidacy
from quorate.node.leader.leadership import Leadership
from quorate.node.protocol import ballots
from quorate.node.protocol.ballots import BallotDecision, VoterView
from quorate.node.protocol.promise import Promise
from quorate.node.protocol.untrusted import TermBound
from quorate.node.voter import Voter
from quorate.storage import LogEnd
from quorate.transport import NewLeadershipTerm, RequestVote, StaleLeader, VoteReason

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

    from quorate.node.election.context import ElectionContext
    from quorate.node.protocol.quorum import Quorums
    from quorate.storage import NodeState
    from quorate.transport import Message


def forget_the_vote(patch: pytest.MonkeyPatch) -> None:
    """Answer with a vote that was not made durable."""

    async def promise(self: Voter, vote: NodeState) -> None:
        if vote.voted_for in {-1, self._state.member_id}:  # pyright: ignore[reportPrivateUsage]
            await self._store.save_node_state(vote)  # pyright: ignore[reportPrivateUsage]

    patch.setattr(Voter, "promise", promise)


def vote_twice(patch: pytest.MonkeyPatch) -> None:
    """Vote for every candidate that asks, even twice in one term."""
    consider = ballots.consider

    def consider_again(request: RequestVote, voter: VoterView, **more: object) -> BallotDecision:
        known = attrs.evolve(voter.promised, voted_for=request.candidate_member_id)
        return consider(request, attrs.evolve(voter, promised=known), **more)  # type: ignore[arg-type]

    patch.setattr(ballots, "consider", consider_again)


def vote_for_a_shorter_log(patch: pytest.MonkeyPatch) -> None:
    """Vote for candidates with a shorter log, and become a candidate with any log.

    A winner adopts the longest voter's log before it leads, which covers this. So that is removed,
    too.
    """
    consider = ballots.consider

    def consider_blindly(request: RequestVote, voter: VoterView, **more: object) -> BallotDecision:
        return consider(request, attrs.evolve(voter, own=LogEnd(-1, 0)), **more)  # type: ignore[arg-type]

    def would_vote_for(member: LogEnd | None, candidate: LogEnd) -> bool:
        del candidate
        return member is not None

    patch.setattr(ballots, "consider", consider_blindly)

    def gives_way(*_ends: object) -> bool:
        return False

    def note_nothing(*_arguments: object) -> None:
        """Forget which logs are longer."""

    patch.setattr(Candidacy, "note_log", note_nothing)
    patch.setattr(ballots, "would_vote_for", would_vote_for)
    patch.setattr(ballots, "gives_way", gives_way)


def win_with_a_minority(patch: pytest.MonkeyPatch) -> None:
    """Win with one vote less than a majority."""

    def has_quorum(votes: Mapping[int, bool], candidate: int, quorums: Quorums[int]) -> bool:
        yes = {candidate, *(voter for voter in votes if votes[voter])} & quorums.voters
        return len(yes) >= len(quorums.voters) // 2

    patch.setattr(ballots, "has_quorum", has_quorum)


def win_an_older_term(patch: pytest.MonkeyPatch) -> None:
    """Continue a ballot after promising a newer term, and lead the older term."""
    verdict = election._verdict  # pyright: ignore[reportPrivateUsage]

    def verdict_anyhow(ctx: ElectionContext, candidacy: Candidacy, *, over: bool) -> object:
        votes = {
            **candidacy.votes,
            **dict.fromkeys((ctx.state.names[each] for each in ctx.state.peers[:1]), True),
        }
        return verdict(ctx, attrs.evolve(candidacy, votes=votes), over=over)

    patch.setattr(election, "_verdict", verdict_anyhow)


def adopt_without_a_promise(patch: pytest.MonkeyPatch) -> None:
    """Follow a leader without promising its term: F10 removed."""

    async def adopt_term(self: Voter, term: int) -> None:
        self._state.leadership_term = term  # pyright: ignore[reportPrivateUsage]

    patch.setattr(Voter, "adopt_term", adopt_term)


def lead_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Continue to lead without a quorum, or after news of a newer term: F4 removed."""
    hear = Leadership.on_message

    def on_message(self: Leadership, sender: int, message: Message) -> None:
        if not isinstance(message, StaleLeader | NewLeadershipTerm):
            hear(self, sender, message)

    def quorum_heard_at(self: Leadership) -> float:
        del self
        return float("inf")

    patch.setattr(Leadership, "on_message", on_message)
    patch.setattr(Leadership, "quorum_heard_at", quorum_heard_at)


def elect_in_spite_of_a_promise(patch: pytest.MonkeyPatch) -> None:
    """Vote and become a candidate in spite of a promise to the leader."""
    patch.setattr(Promise, "binds", False)


def forget_the_promise_at_a_start(patch: pytest.MonkeyPatch) -> None:
    """Start as if there were no promise."""
    init = Promise.__init__

    def made(self: Promise, seconds: float) -> None:
        del seconds
        init(self, 0)

    patch.setattr(Promise, "__init__", made)


def promise_for_nobody(patch: pytest.MonkeyPatch) -> None:
    """Store a vote without the candidate's name, and so vote again after a restart."""

    async def promise(self: Voter, vote: NodeState) -> None:
        nobody = attrs.evolve(vote, voted_for=-1)
        await self._store.save_node_state(nobody)  # pyright: ignore[reportPrivateUsage]

    patch.setattr(Voter, "promise", promise)


def refuse_nobody(patch: pytest.MonkeyPatch) -> None:
    """Grant a vote in a term below one's own promise."""
    consider = ballots.consider

    def consider_late(request: RequestVote, voter: VoterView, **more: object) -> object:
        decision = consider(request, voter, **more)  # type: ignore[arg-type]
        if decision.reason is VoteReason.TERM:
            return BallotDecision(vote=True, reason=VoteReason.GRANTED)
        return decision

    patch.setattr(ballots, "consider", consider_late)


def believe_any_term(patch: pytest.MonkeyPatch) -> None:
    """Believe every term in any message."""

    def allows(_self: TermBound, _sender: int, _message: Message) -> bool:
        return True

    patch.setattr(TermBound, "allows", allows)
