"""The election: seventeen states, each an async function that returns the next.

Read this file from top to bottom with the diagram of :mod:`.states` beside it. A state's body
shows what it waits for and how long; what it decides by is in :mod:`.rules`. A timeout is a value
that :meth:`Inbox.receive` returns, so a message is never cut in the middle of its handling.

Two roles span several states and own their tasks: :class:`~.leadership.Leadership` from
LEADER_LOG_REPLICATION on, :class:`~.following.Following` from the adoption of a leader on. Both
outlive the election: CLOSED is a state like the others, which lasts until the role ends, and then
the next election begins. The leader's half of the states is in :mod:`.election_leader`, the
follower's in :mod:`.election_follower`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import trio

from ...errors import TransportError
from ...storage import NodeState
from ...transport import RequestVote, TimeoutNow, Vote
from ..protocol import ballots
from ..protocol.states import State
from .context import Election, Peer
from .follower_states import following
from .leader_states import leading
from .prevote import NOT_WAITED_FOR, next_term, scout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

# Expected trouble inside of an election: it goes back to INIT (Aeron: Election.handleError).
TROUBLE = (OSError, TransportError, trio.BrokenResourceError, trio.TooSlowError)


async def run(e: Election) -> None:
    """Elect, lead or follow, again and again; until cancelled."""
    e.begin()
    while True:
        try:
            after = await FUNCTIONS[e.current](e)
        except* TROUBLE as group:
            e.fail(_first_leaf(group))
            after = State.INIT
        e.enter(after)


def _first_leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


# --- the states -----------------------------------------------------------------------------------


async def init(e: Election) -> State:
    """Start anew; what the last attempt ran has stopped with its role.

    A cluster of one member elects itself here (Aeron: Election.init).
    """
    e.state.role = e.inbox
    if e.state.closing:
        await trio.sleep_forever()
    await e.back_off()
    # What the last role has submitted is written: from here on the log ends where it is durable.
    await e.store.settled()
    await e.snapshots.idle()
    await e.room()
    await e.founders.found()
    await e.install.reload()
    if e.state.size == 1 and not e.state.standby:
        await e.voter.promise(NodeState(next_term(e), e.state.member_id))
        e.because("the only member")
        return State.LEADER_LOG_REPLICATION
    e.because("looking for a leader")
    return State.CANVASS


async def canvass(e: Election) -> State:
    """Tell and hear how far the logs go; stand if all, or in the end a quorum, would vote for us.

    Whoever sees neither a quorum of willing members nor a leader stays here for ever, and raises
    no term.
    """
    e.peers = {peer: Peer() for peer in e.state.peers}
    if e.mandate and e.may_stand:
        e.because("the leader hands over")
        return State.NOMINATE
    again = trio.current_time()
    while True:
        now = trio.current_time()
        if now >= again:
            e.canvass_once()
            again = now + e.state.timeouts.canvass_interval
        heard = {voter: e.peers[voter].log_end for voter in e.state.voters}
        if now >= e.held_back_until and e.may_stand and not e.voter.lease_promise.binds:
            if ballots.is_unanimous_candidate(e.state.log_end, heard, e.absent):
                e.because("unanimous candidate")
                return State.NOMINATE
            if now >= e.canvass_deadline and ballots.is_quorum_candidate(e.state.log_end, heard):
                e.because("quorum candidate")
                return State.NOMINATE
        event = await e.inbox.receive(again)
        if event is not None and (state := await e.react(*event)) not in {None, State.CANVASS}:
            assert state is not None
            return state


async def nominate(e: Election) -> State:
    """Wait a random while, so that not all stand at once, and then scout.

    Only if a quorum would vote for us is our term raised. Whom the leader itself has asked need not
    wait.
    """
    patience = 0.0 if e.mandate else e.state.timeouts.election_timeout / 2
    e.turn_at = trio.current_time() + e.rng.uniform(0, patience)
    while True:
        for step in (_await_turn, scout):
            if (state := await step(e)) is not None:
                return state


async def _await_turn(e: Election) -> State | None:
    """Wait until it is our turn; longer if meanwhile we give way to somebody."""
    again = trio.current_time()
    while trio.current_time() < e.turn_at:
        if trio.current_time() >= again:
            e.canvass_once()
            again = trio.current_time() + e.state.timeouts.canvass_interval
        event = await e.inbox.receive(min(again, e.turn_at))
        if event is not None and (state := await e.react(*event)) is not None:
            return state
    return None


async def candidate_ballot(e: Election) -> State:
    """Ask for votes: all of them win at once, a majority when the time is over."""
    term = e.promised_term
    mandate, e.mandate, e.ahead = e.mandate, None, None  # it is good for one ballot
    e.chosen = mandate is not None and mandate.by_operator
    votes: dict[int, bool] = {}
    deadline = trio.current_time() + e.state.timeouts.election_timeout
    again = trio.current_time()
    while True:
        now = trio.current_time()
        if mandate is not None and ballots.has_majority(votes, e.state.size):
            e.because("quorum leader")  # the leader chose us: nobody better is waited for
            return State.LEADER_LOG_REPLICATION
        if (state := _verdict(e, votes, over=now >= deadline)) is not None:
            return state
        if now >= again:
            _request_votes(e, term, votes, mandate)
            again = now + e.state.timeouts.canvass_interval
        match await e.inbox.receive(min(again, deadline)):
            case None:
                pass
            case (sender, Vote(candidate_term_id=t, candidate_member_id=m) as vote) if (
                t == term and m == e.state.member_id
            ):
                _count(e, votes, sender, vote)
            case (sender, message):
                if (state := await e.react(sender, message)) is not None:
                    return state
                if e.promised_term > term:
                    # We refused a worse log in a newer term, which its owner may yet win: the
                    # votes that we have are for a term that we may not lead any more.
                    e.because(f"term {e.promised_term} was promised during the ballot")
                    return State.CANVASS


def _count(e: Election, votes: dict[int, bool], sender: int, vote: Vote) -> None:
    """Take an answer; who has no vote, or not yet, is not waited for, and does not veto."""
    if sender not in e.state.voters:
        return  # a standby was not asked
    if vote.reason in NOT_WAITED_FOR:
        e.silent = (*e.silent, sender)
    else:
        votes[sender] = vote.vote
    e.heard_vote(sender, vote)


def _verdict(e: Election, votes: dict[int, bool], *, over: bool) -> State | None:
    """Say what the votes mean so far, or in the end; None is nothing yet."""
    if ballots.is_unanimous_leader(votes, e.state.voters, [*e.absent, *e.silent]):
        e.because("unanimous leader")
        return State.LEADER_LOG_REPLICATION
    if not over:
        return None
    if ballots.is_quorum_leader(votes, e.state.size, e.failed_ballots):
        e.because("quorum leader")
        return State.LEADER_LOG_REPLICATION
    e.failed_ballots += 1
    e.because(f"ballot of term {e.promised_term} lost, votes {votes}")
    return State.CANVASS


def _request_votes(
    e: Election, term: int, votes: dict[int, bool], mandate: TimeoutNow | None
) -> None:
    """Ask those that have not answered; a repeated request gets the same answer."""
    end = e.state.log_end
    request = RequestVote(
        end.term,
        end.position,
        term,
        e.state.member_id,
        force=mandate is not None,
        even_if_behind=mandate is not None and mandate.even_if_behind,
    )
    for peer in e.state.voters:
        if peer not in votes:
            e.links.send(peer, request)


async def follower_ballot(e: Election) -> State:
    """We voted: wait for the winner to tell of its term.

    A candidate needs a whole election timeout before a majority is enough, so we wait for two.
    """
    term = e.promised_term
    deadline = trio.current_time() + 2 * e.state.timeouts.election_timeout
    while (event := await e.inbox.receive(deadline)) is not None:
        state = await e.react(*event)
        if state is State.FOLLOWER_BALLOT and e.promised_term > term:
            term = e.promised_term  # a second vote, in a newer term
            deadline = trio.current_time() + 2 * e.state.timeouts.election_timeout
        elif state not in {None, State.FOLLOWER_BALLOT}:
            assert state is not None
            return state
    e.because(f"no leader of term {term} emerged")
    return State.CANVASS


FUNCTIONS: dict[State, Callable[[Election], Awaitable[State]]] = {
    State.INIT: init,
    State.CANVASS: canvass,
    State.NOMINATE: nominate,
    State.CANDIDATE_BALLOT: candidate_ballot,
    State.FOLLOWER_BALLOT: follower_ballot,
    State.LEADER_LOG_REPLICATION: leading,
    State.FOLLOWER_LOG_REPLICATION: following,
    State.FOLLOWER_REPLAY: following,
}
"""Each state's function; those of a role run its further states themselves, and CLOSED."""
