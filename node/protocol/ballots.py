"""Who may stand, who gets a vote, and who has won: pure functions on frozen data.

Nothing here waits, sends or writes. So each rule is tested in a line, and the model checker runs
the very functions that the member runs.

The rules are those of Aeron Cluster's election. A pre-vote (:func:`consider_prevote`) is added: a
member first asks whether it would be voted for, and raises its term only then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from ...storage import EMPTY_LOG, LogEnd, NodeState
from ...transport import NULL_VALUE, RequestVote, VoteReason

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ...transport import Scout, Vote
    from .quorum import Quorums, V

VETO_ROUNDS = 2
"""Failed ballots in a row after which one negative vote no longer vetoes a majority. Smaller: a
member with a shorter log wins more often over one with a longer log. Larger: one member that always
refuses holds elections up for longer."""


def log_end(message: RequestVote | Vote | Scout) -> LogEnd:
    """Return where the log of a message's sender ends."""
    return LogEnd(message.log_leadership_term_id, message.log_position)


# --- who may stand --------------------------------------------------------------------------------


def would_vote_for(member: LogEnd | None, candidate: LogEnd) -> bool:
    """Say whether a member whose log ends at `member` (None = not heard) votes for a candidate."""
    return member is not None and member <= candidate


def is_unanimous_candidate(
    own: LogEnd,
    candidate: V,
    others: Mapping[V, LogEnd | None],
    quorums: Quorums[V],
    absent: Collection[V],
) -> bool:
    """Say whether every voter would vote for us, and they are enough.

    Args:
        own: where our log ends.
        candidate: we ourselves.
        others: where the log of each other member ends; None, or missing, if it has not canvassed.
        quorums: of the voters.
        absent: members that nobody waits for, since they are known to be gone: a leader that has
            closed, a process whose port refuses (Aeron: ClusterMember.isUnanimousCandidate).
    """
    # Of two sets the union is asked: any of its members may have the longest log.
    asked = quorums.voters.difference(absent, {candidate})
    willing = all(would_vote_for(others.get(member), own) for member in asked)
    return willing and quorums.agree({candidate, *asked})


def is_quorum_candidate(
    own: LogEnd, candidate: V, others: Mapping[V, LogEnd | None], quorums: Quorums[V]
) -> bool:
    """Say whether enough voters, we included, would vote for us."""
    willing = {member for member, end in others.items() if would_vote_for(end, own)}
    return quorums.agree({candidate, *willing})


# --- who gets a vote ------------------------------------------------------------------------------


@attrs.frozen
class BallotDecision:
    """What a member does with a request for its vote.

    Args:
        vote: granted or refused.
        reason: why.
        promise: the vote to make durable before the answer leaves, None for no change.
    """

    vote: bool
    reason: VoteReason
    promise: NodeState | None = None


@attrs.frozen
class VoterView:
    """What a voter looks at in itself before it answers a candidate.

    Args:
        own: where its log ends.
        promised: its durable vote.
        bound: it has promised a leader to elect nobody else, and that promise still holds.
        admission: where the last configuration entry ends in its log.
        terms: the terms in its log; may be left out without such an entry.
        has_vote: its store has a vote at all.
        same_store: the candidate asks with the store that got its vote of the promised term. False
            if that is not known, as after a restart.
    """

    own: LogEnd
    promised: NodeState
    bound: bool = False
    admission: LogEnd = EMPTY_LOG
    terms: Collection[int] = ()
    has_vote: bool = True
    same_store: bool = True

    def shares_configuration(self, end: LogEnd) -> bool:
        """Say whether a log that ends there surely has the last configuration entry of this one."""
        # A later term alone does not say so: its leader may have had another log than ours. If the
        # term is in our log, too, both logs are the same up to the shorter end.
        known = end.term in self.terms
        return self.admission == EMPTY_LOG or (known and end >= self.admission)


def consider(
    request: RequestVote, voter: VoterView, *, in_ballot: bool, leader_alive: bool
) -> BallotDecision:
    """Decide a request for our vote.

    Args:
        request: the candidate's request.
        voter: what we know of ourselves.
        in_ballot: we are canvassing, nominating or voting ourselves.
        leader_alive: we lead, or heard our leader within the heartbeat timeout.
    """
    if not voter.has_vote:
        return BallotDecision(False, VoteReason.NO_VOTE)
    term, promised = request.candidate_term_id, voter.promised
    if term < promised.candidate_term:
        return BallotDecision(False, VoteReason.TERM)
    if term == promised.candidate_term:
        # A repeated request gets the same answer: there is one vote per term. It is for one store:
        # another one of the same member has another log, which we have not looked at.
        if promised.voted_for == request.candidate_member_id and voter.same_store:
            return BallotDecision(True, VoteReason.GRANTED)
        return BallotDecision(False, VoteReason.ALREADY_VOTED)
    if leader_alive:
        # One member that has lost the leader must not unseat it for all others.
        return BallotDecision(False, VoteReason.LEADER_ALIVE)
    if voter.bound:
        # The leader may still answer reads without asking anybody (its lease).
        return BallotDecision(False, VoteReason.PROMISED)
    if not in_ballot:
        # We are between two states; the candidate asks again.
        return BallotDecision(False, VoteReason.BUSY)
    # A candidate decides by the last configuration in its own log. Without the entries that are
    # missing there, it might count voters that do not decide any more.
    may_be_behind = request.even_if_behind and voter.shares_configuration(log_end(request))
    if voter.own > log_end(request) and not may_be_behind:
        # Aeron: Election.onRequestVote raises its own candidate term here, so that the member
        # with the better log stands in a term that beats this one.
        return BallotDecision(False, VoteReason.LOG_NEWER, NodeState(term, NULL_VALUE))
    return BallotDecision(True, VoteReason.GRANTED, NodeState(term, request.candidate_member_id))


def consider_prevote(
    scout: Scout, voter: VoterView, *, in_ballot: bool, leader_alive: bool
) -> VoteReason:
    """Answer a pre-vote as we would answer the ballot that it asks about; nothing is promised."""
    request = RequestVote(
        scout.log_leadership_term_id,
        scout.log_position,
        scout.proposed_term_id,
        scout.member_id,
        even_if_behind=scout.even_if_behind,
    )
    if scout.force:
        # The leader has asked its sender to take over, and releases us before the ballot.
        voter = attrs.evolve(voter, bound=False)
    return consider(request, voter, in_ballot=in_ballot, leader_alive=leader_alive).reason


def may_take_over(request: RequestVote, *, own: LogEnd, term: int) -> bool:
    """Say whether a member of `term` leaves its leader for a candidate that the leader chose."""
    # A candidate that could not win a ballot must not end a term for it.
    able = own <= log_end(request) or request.even_if_behind
    return request.force and request.candidate_term_id > term and able


def gives_way(own: LogEnd, member_id: int, scout: Scout) -> bool:
    """Say whether we yield to a member that asks for pre-votes at the same time as we do."""
    # If neither yields, both hear yes, raise the same term, and split the votes. The longer log
    # goes first; the member id only decides between equal ones. By a fixed order of ids the member
    # with the longest log could be refused by all others (as in BlazingMQ).
    return (log_end(scout), scout.member_id) > (own, member_id)


def is_supported(
    answers: Mapping[V, VoteReason],
    candidate: V,
    quorums: Quorums[V],
    absent: Collection[V],
) -> bool | None:
    """Say what the answers to a pre-vote mean.

    Args:
        answers: so far.
        candidate: we ourselves.
        quorums: of the voters.
        absent: those that nobody waits for; once the round is over, all that have not answered.

    Returns:
        True if enough would vote for us, False if not, None to wait.
    """
    yes = {candidate, *(each for each in answers if answers[each] is VoteReason.GRANTED)}
    open_answers = quorums.voters.difference(answers, absent, {candidate})
    if quorums.agree(yes):
        # Sure of a quorum we still wait, so that the ballot knows which members are silent.
        return True if not open_answers else None
    return None if quorums.agree(yes | open_answers) else False


def is_unanimous_leader(
    votes: Mapping[V, bool], candidate: V, quorums: Quorums[V], absent: Collection[V]
) -> bool:
    """Say whether all voters that are not absent voted for us, and they are enough."""
    asked = quorums.voters.difference(absent, {candidate})
    return all(votes.get(member, False) for member in asked) and has_quorum(
        votes, candidate, quorums
    )


def is_quorum_leader(
    votes: Mapping[V, bool], candidate: V, quorums: Quorums[V], failed_rounds: int
) -> bool:
    """Say at the end of a ballot whether a quorum is enough to win.

    Args:
        votes: of the other members; some may be missing.
        candidate: we ourselves.
        quorums: of the voters.
        failed_rounds: ballots that we have lost in a row.
    """
    # In the first rounds one refusal is a veto, so that the longest log is preferred. After these,
    # one member must not be able to veto for ever.
    if failed_rounds < VETO_ROUNDS and not all(votes.values()):
        return False
    return has_quorum(votes, candidate, quorums)


def has_quorum(votes: Mapping[V, bool], candidate: V, quorums: Quorums[V]) -> bool:
    """Say whether our own vote and those of others are enough."""
    return quorums.agree({candidate, *(voter for voter in votes if votes[voter])})
