"""Answers that need no durable promise: to scouts, and refusals and repeats of votes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..transport import RequestVote, Scout, ScoutReply, Vote, VoteReason
from .protocol import rules

if TYPE_CHECKING:
    from .follower.following import Following
    from .leader.leadership import Leadership
    from .protocol.rules import BallotDecision
    from .state import Core


def vote_message(core: Core, request: RequestVote, decision: BallotDecision) -> Vote:
    """Build the answer to a request for our vote."""
    return Vote(
        candidate_term_id=request.candidate_term_id,
        log_leadership_term_id=core.log_end.term,
        log_position=core.log_end.position,
        candidate_member_id=request.candidate_member_id,
        follower_member_id=core.member_id,
        vote=decision.vote,
        voter_candidate_term_id=core.promised.candidate_term,
        reason=decision.reason,
        terms=rules.spans_of(
            core.store.terms, request.log_leadership_term_id, core.store.append_position
        )
        if request.even_if_behind and decision.vote
        else (),
        timestamp=core.clocks.own_ms(),
    )


def decide(
    core: Core, request: RequestVote, *, in_ballot: bool, leader_alive: bool
) -> rules.BallotDecision:
    """Decide about a request for our vote, by all that our store has to say to it."""
    return rules.consider(
        request,
        own=max(core.log_end, core.floor),
        promised=core.promised,
        in_ballot=in_ballot,
        leader_alive=leader_alive,
        bound=core.lease_promise.binds,
        admission=core.admission,
        votes=core.votes,
    )


def refuse_vote(core: Core, sender: int, request: RequestVote, *, leader_alive: bool) -> None:
    """Answer a candidate although we lead or follow: no promise is made, no election entered."""
    if request.candidate_member_id != sender:
        return
    decision = decide(core, request, in_ballot=False, leader_alive=leader_alive)
    assert decision.promise is None
    core.send(sender, vote_message(core, request, decision))


def refuse_rival(leadership: Leadership, sender: int, request: RequestVote) -> None:
    """Answer a candidate although we lead, and let it follow if it can (Aeron: onRequestVote).

    A candidate that has promised no term above ours need not lose its ballot and canvass first.
    """
    refuse_vote(leadership.core, sender, request, leader_alive=True)
    if request.candidate_member_id == sender and request.candidate_term_id <= leadership.term:
        message = leadership.new_leadership_term(request.log_leadership_term_id)
        leadership.core.send(sender, message)


def answer_rival(role: Following, sender: int, message: RequestVote | Scout) -> bool:
    """Answer one that would lead in the place of the leader that we follow.

    Returns:
        Whether the leader has asked it to take over, and we go with it.
    """
    core = role.core
    if isinstance(message, Scout):
        if message.member_id == sender:
            # Whom the leader has asked learns from the leader whether it still wants that.
            alive = role.leader_alive and not message.force
            answer_scout(core, message, in_ballot=message.force, leader_alive=alive)
        return False
    asked = rules.may_take_over(message, own=core.log_end, term=role.term)
    if asked and not core.lease_promise.binds:
        return True
    # If only our promise is in the way it asks again, and we are released when the leader gives up.
    refuse_vote(core, sender, message, leader_alive=role.leader_alive and not asked)
    return False


def answer_scout(core: Core, scout: Scout, *, in_ballot: bool, leader_alive: bool) -> VoteReason:
    """Tell a member whether we would vote for it."""
    reason = rules.consider_scout(
        scout,
        own=max(core.log_end, core.floor),
        promised=core.promised,
        in_ballot=in_ballot,
        leader_alive=leader_alive,
        bound=core.lease_promise.binds,
        admission=core.admission,
        votes=core.votes,
    )
    core.send(
        scout.member_id,
        ScoutReply(
            scout.proposed_term_id,
            scout.nonce,
            core.member_id,
            reason,
            core.promised.candidate_term,
        ),
    )
    return reason
