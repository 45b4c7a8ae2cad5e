"""The election: how the members of a cluster agree on a leader, and how followers join it.

A cluster keeps one log on several members. At any time one member, the leader, appends to it; the
followers copy what the leader appends. An entry is committed once a majority of the members (a
quorum) has it on disk: then it survives the loss of any minority. If the leader is lost, a new one
is elected. Each leader has a number, its term, which grows with every election.

Three rules keep committed entries safe. A member votes at most once in a term, and its vote is
durable before anybody hears of it. It votes only for a candidate whose log goes at least as far as
its own. And it follows no leader of a term below the one that it has promised. Any two quorums
share a member; so no two members win one term, and a winner has every committed entry.

The happy path
==============
1. INIT: we wait until our disk has settled and has room.
2. CANVASS: we report how far our log goes, and listen. We stand once every member would vote for
   us, or after a while a quorum.
3. NOMINATE: we wait for a random moment, so that not all stand at once. Then we ask in a pre-vote
   whether we would win. Only if so do we raise our term, and vote for ourselves.
4. CANDIDATE_BALLOT: we ask for votes. If all members vote for us we win at once; when the time is
   over a majority is enough. Members that have voted wait in FOLLOWER_BALLOT for the winner to
   announce its term.
5. The winner goes through its four LEADER states: a quorum gets its whole log, and the number of
   its term. The other members go through FOLLOWER states, until they copy the log live.
6. CLOSED: the election is over.

The four ways to join
=====================
What a follower has to do depends on where its log and the leader's begin to differ:

1. Nothing is missing: it asks for the live log (FOLLOWER_LOG_INIT, FOLLOWER_LOG_AWAIT).
2. A part of the leader's own term is missing. The leader replays it, while new entries wait in
   memory until the replay has reached them (the FOLLOWER_CATCHUP states).
3. Earlier terms are missing. They are copied one at a time, with a canvass in between, because the
   leader may change (FOLLOWER_LOG_REPLICATION). If the leader has dropped them, a snapshot is
   installed instead.
4. It has uncommitted entries that the leader does not have. It drops them and starts anew in INIT.

The machine
===========
Each state is an async function that returns a :class:`~.transition.Next`: the state that comes
next, the reason, and the data that the next state needs. A state's body shows what it waits for and
how long; the rules by which it decides are pure functions in :mod:`..protocol`. When the time is
over :meth:`Inbox.receive` returns None, so the handling of a message is never cut short. Failures
lead back to INIT, and a failure that repeats itself makes INIT wait.

Three states begin a role that lasts longer than they do. LEADER_LOG_REPLICATION begins a
:class:`~..leader.leadership.Leadership`; FOLLOWER_LOG_REPLICATION and FOLLOWER_REPLAY begin a
:class:`~..follower.following.Following`. A role runs its own tasks and goes through its further
states by itself (:mod:`.leader_states`, :mod:`.follower_states`). CLOSED is a state like the
others; it lasts until the role ends, and then the next election begins.

Where to look
=============
``protocol/states.py`` has the table of legal transitions, `EDGES`; each step is checked against it.
``docs/election.md`` draws it (a test compares the two) and explains the parts that are not here:
whose store may vote, leases, transfers. The names are those of Aeron Cluster, whose protocol this
is; ``ARCHITECTURE.md`` lists where it differs, and what would happen without.

Who the members are may change during all this: a configuration in the log says so
(:mod:`..configurations`), and each decision is made by the one in force at that moment.

What this does not do: it does not defend against members that lie. A member that contradicts
itself is refused, which covers forged frames and bugs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import trio

from ...errors import TransportError
from ...storage import NodeState
from ...transport import RequestVote, Vote
from ..protocol import ballots
from ..protocol.states import State
from .follower_states import run_follower
from .leader_states import run_leader
from .prevote import NOT_WAITED_FOR, PreVote
from .transition import Adoption, Candidacy, Next

if TYPE_CHECKING:
    from .context import ElectionContext

# Expected trouble inside of an election: it goes back to INIT (Aeron: Election.handleError).
TROUBLE = (OSError, TransportError, trio.BrokenResourceError, trio.TooSlowError)


async def run(ctx: ElectionContext) -> None:
    """Elect, lead or follow, again and again; until cancelled."""
    step = ctx.begin()
    while True:
        try:
            step = await _run_state(ctx, step)
        # Any other exception is a bug. It must end the member, not start one more election.
        except* TROUBLE as group:
            step = ctx.failed(_first_leaf(group))
        ctx.enter(step)


async def _run_state(ctx: ElectionContext, step: Next) -> Next:
    """Run one state; those of a role run its further states, too, and CLOSED."""
    match step.state, step.data:
        case State.INIT, _:
            return await init(ctx)
        case State.CANVASS, _:
            return await canvass(ctx)
        case State.NOMINATE, _:
            return await nominate(ctx)
        case State.CANDIDATE_BALLOT, Candidacy() as candidacy:
            return await candidate_ballot(ctx, candidacy)
        case State.FOLLOWER_BALLOT, _:
            return await follower_ballot(ctx)
        case State.LEADER_LOG_REPLICATION, Candidacy() as candidacy:
            return await run_leader(ctx, candidacy)
        case ((State.FOLLOWER_LOG_REPLICATION | State.FOLLOWER_REPLAY), Adoption() as adoption):
            return await run_follower(ctx, adoption)
        case state, data:
            raise AssertionError(f"{state.name} can't be entered with {data}")


def _first_leaf(error: BaseException) -> BaseException:
    # The back-off recognizes a repeated failure by its text (H10). The text of a group would vary
    # with the tasks that failed together.
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


# --- the states -----------------------------------------------------------------------------------


async def init(ctx: ElectionContext) -> Next:
    """Start anew; the tasks of the last attempt have ended with its role.

    A cluster of one member elects itself here (Aeron: Election.init).
    """
    state = ctx.state
    # First of all, so that messages are kept while INIT waits for the disk.
    state.role = ctx.inbox
    if state.closing:
        # A member that stops, alone or with its whole cluster, takes part in nothing more.
        await trio.sleep_forever()
    # H10: without a pause, an attempt that fails at once would spin, and disturb all members.
    await ctx.backoff.wait()
    # The disk has settled and has room, our store belongs to a founded cluster, and the service has
    # a state to begin with; see `Member._elections`.
    for holds in ctx.preconditions:
        await holds()
    if state.alone and ctx.may_stand:
        # There is nobody to ask, but the term rises durably as in any other election.
        term = ctx.next_term
        await ctx.voter.promise(NodeState(term, state.member_id))
        return Next(State.LEADER_LOG_REPLICATION, "the only member", Candidacy(term))
    return Next(State.CANVASS, "looking for a leader")


async def canvass(ctx: ElectionContext) -> Next:
    """Exchange log positions; stand once all members, or in the end a quorum, would vote for us.

    A member that sees neither a quorum of willing members nor a leader stays here for ever, and
    raises no term.
    """
    state = ctx.state
    # Positions from before this canvass are forgotten: a log may have been truncated since.
    ctx.log_ends = dict.fromkeys(state.peers)
    if ctx.mandate and ctx.may_stand:
        # The leader chose us: there is nobody to hear first.
        return Next(State.NOMINATE, "the leader hands over")
    again = trio.current_time()
    while True:
        now = trio.current_time()
        if now >= again:
            ctx.canvass_once()
            again = now + state.timeouts.canvass_interval
        may_stand = now >= ctx.hold_back.until and ctx.may_stand
        # A promise to a leader outlives the leader: until it ends nobody else can be elected.
        if may_stand and not ctx.voter.lease_promise.binds:
            own, end, quorums = state.own, state.log_end, state.quorums
            heard = {state.names[each]: ctx.log_ends.get(each) for each in state.voters}
            absent = ctx.absent_voters
            if ballots.is_unanimous_candidate(end, own, heard, quorums, absent):
                return Next(State.NOMINATE, "unanimous candidate")
            # A quorum is enough only after a while: a member that starts later than the others may
            # have the longest log.
            over = now >= ctx.canvass_deadline
            if over and ballots.is_quorum_candidate(end, own, heard, quorums):
                return Next(State.NOMINATE, "quorum candidate")
        # Time may make us a candidate as well as a message does, so we look at least as often as we
        # canvass.
        event = await ctx.inbox.receive(again)
        step = None if event is None else await ctx.react(*event)
        # A canvass that begins anew would forget the log ends that we have heard; so we stay in it.
        if step is not None and step.state is not State.CANVASS:
            return step


async def nominate(ctx: ElectionContext) -> Next:
    """Wait for a random moment, then ask in a pre-vote whether we would win (:mod:`.prevote`).

    Our term is raised only if a quorum would vote for us.
    """
    # Where `react` finds it: of two members that ask at the same time, one has to yield.
    ctx.prevote = PreVote(ctx)
    try:
        return await ctx.prevote.run()
    finally:
        ctx.prevote = None


async def candidate_ballot(ctx: ElectionContext, candidacy: Candidacy) -> Next:
    """Ask for votes: with all of them we win at once, with a majority when the time is over."""
    state, term = ctx.state, candidacy.term
    deadline = trio.current_time() + state.timeouts.election_timeout
    again = trio.current_time()
    while True:
        now = trio.current_time()
        if (step := _verdict(ctx, candidacy, over=now >= deadline)) is not None:
            return step
        if now >= again:
            _request_votes(ctx, candidacy)
            again = now + state.timeouts.canvass_interval
        match await ctx.inbox.receive(min(again, deadline)):
            case None:
                pass
            case (sender, Vote(candidate_term_id=t, candidate_member_id=m) as vote) if (
                # I-4: a late vote for an earlier ballot of ours must not count in this one.
                t == term and m == state.member_id
            ):
                _count(ctx, candidacy, sender, vote)
            case (sender, message):
                if (step := await ctx.react(sender, message)) is not None:
                    return step
                if (newer := ctx.promised_term) > term:
                    # We promised a newer term when we refused its candidate (its log is shorter).
                    # We may not lead below our promise, so our votes are worthless.
                    return Next(State.CANVASS, f"term {newer} was promised during the ballot")


def _count(ctx: ElectionContext, candidacy: Candidacy, sender: int, vote: Vote) -> None:
    """Take an answer to our vote request."""
    if sender not in ctx.state.voters:
        return  # a standby was not asked
    if vote.reason in NOT_WAITED_FOR:
        # Its refusal is no objection: it does not veto, and nobody waits for it.
        candidacy.not_waited_for.add(sender)
    else:
        # By the link that it came on, not by the member that it names: no member votes twice.
        candidacy.votes[ctx.state.names[sender]] = vote.vote
    # A refusal also carries the voter's promise; our next candidacy has to be above that.
    ctx.heard_vote(sender, vote)
    candidacy.note_log(vote, ctx.state.log_end)


def _verdict(ctx: ElectionContext, candidacy: Candidacy, *, over: bool) -> Next | None:
    """Say what the votes mean so far, or in the end; None is nothing yet."""
    state, votes = ctx.state, candidacy.votes
    own, quorums = state.own, state.quorums
    won = State.LEADER_LOG_REPLICATION
    if candidacy.mandate is not None and ballots.has_quorum(votes, own, quorums):
        # The leader chose us: no better candidate is waited for.
        return Next(won, "quorum leader", candidacy)
    refused = (state.names[each] for each in candidacy.not_waited_for)
    not_waited_for = ctx.absent_voters.union(refused)
    if ballots.is_unanimous_leader(votes, own, quorums, not_waited_for):
        return Next(won, "unanimous leader", candidacy)
    if not over:
        return None  # a member with a longer log may still refuse
    if ballots.is_quorum_leader(votes, own, quorums, ctx.failed_ballots):
        return Next(won, "quorum leader", candidacy)
    # H8: after two lost ballots one refusal vetoes nothing any more.
    ctx.failed_ballots += 1
    told = {voter.member_id: vote for voter, vote in votes.items()}
    return Next(State.CANVASS, f"ballot of term {candidacy.term} lost, votes {told}")


def _request_votes(ctx: ElectionContext, candidacy: Candidacy) -> None:
    """Ask those that have not answered; a repeated request gets the same answer."""
    end = ctx.state.log_end
    # `force` says that the leader chose us. Without it, voters that hear that leader refuse (H11).
    request = RequestVote(
        end.term,
        end.position,
        candidacy.term,
        ctx.state.member_id,
        force=candidacy.mandate is not None,
        even_if_behind=candidacy.even_if_behind,
    )
    for peer in ctx.state.voters:
        # A link may have dropped the request. Asking twice is harmless: votes are durable (H8).
        if ctx.state.names[peer] not in candidacy.votes:
            ctx.links.send(peer, request)


async def follower_ballot(ctx: ElectionContext) -> Next:
    """Wait for the member that we voted for to announce its term.

    A candidate needs a whole election timeout before a majority is enough, so we wait for two.
    """
    patience = 2 * ctx.state.timeouts.election_timeout
    term, deadline = ctx.promised_term, trio.current_time() + patience
    while (event := await ctx.inbox.receive(deadline)) is not None:
        step = await ctx.react(*event)
        if step is None:
            continue
        if step.state is not State.FOLLOWER_BALLOT:
            return step
        if ctx.promised_term > term:
            # A second vote, in a newer term: its candidate gets the whole time.
            term, deadline = ctx.promised_term, trio.current_time() + patience
    return Next(State.CANVASS, f"no leader of term {term} emerged")
