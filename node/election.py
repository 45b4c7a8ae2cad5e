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

import logging
from collections import deque
from typing import TYPE_CHECKING, cast

import attrs
import trio

from ..errors import TransportError
from ..storage import NodeState
from ..transport import (
    NULL_VALUE,
    AppendPosition,
    CanvassPosition,
    CommitPosition,
    Message,
    NewLeadershipTerm,
    RequestVote,
    StaleLeader,
    Vote,
)
from . import rules
from .ballots import vote_message
from .core import Core, Transition
from .roles import Ended, Role
from .states import BALLOT_STATES, EDGES, State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .requests import Requests

log = logging.getLogger("quorate.node")

# Expected trouble inside of an election: it goes back to INIT (Aeron: Election.handleError).
TROUBLE = (OSError, TransportError, trio.BrokenResourceError, trio.TooSlowError)

MAX_INBOX = 1024
BACKOFF_FIRST = 0.1
BACKOFF_LONGEST = 5.0


class Inbox(Role):
    """The role while no leader is known: messages wait for the state to look at them."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: deque[tuple[int, Message]] = deque()

    def on_message(self, sender: int, message: Message) -> None:
        """Keep a message; when far too many wait the sender repeats itself anyway."""
        if len(self._messages) < MAX_INBOX:
            self._messages.append((sender, message))
            self.changed.notify()

    def on_link_up(self, member: int) -> None:  # noqa: ARG002 - any will do
        """A new link is news for a canvasser."""
        self.changed.notify()

    def on_link_lost(self, member: int) -> None:
        """What a member sent on a link that is over may be out of date by now."""
        self._messages = deque(each for each in self._messages if each[0] != member)

    async def receive(self, until: float) -> tuple[int, Message] | None:
        """Return the next message and its sender; None once `until` has come."""
        await trio.lowlevel.checkpoint()
        while not self._messages:
            if trio.current_time() >= until:
                return None
            await self.changed.wait(until)
        return self._messages.popleft()


@attrs.define(eq=False)
class Peer:
    """What an election has heard of another member."""

    log_end: rules.LogEnd | None = None
    vote: bool | None = None


class Election:
    """Runs the states of one member, election after election.

    Args:
        core: of the member.
        requests: told who leads.

    Attributes:
        state: where we stand.
        count: how many elections there were since the start.
        candidate_term: the term of the ballot that we stand or voted in.
        absent: members that nobody needs to wait for: they closed in order.
        adopted: the message by which a leader was adopted, for the following states.
        decision: what that message means for our log.
    """

    def __init__(self, core: Core, requests: Requests) -> None:
        self.core = core
        self.requests = requests
        self.state = State.INIT
        self.state_since = trio.current_time()
        self.count = 0
        self.peers: dict[int, Peer] = {}
        self.highest_term_heard = NULL_VALUE
        self.gone: int | None = None
        self.failed_ballots = 0
        self.adopted: NewLeadershipTerm | None = None
        self.decision: rules.Replicate | rules.Replay | None = None
        self.inbox = Inbox()
        self._reason = "node started"
        self._extended_canvass = True
        self._backoff = 0.0
        self._failure = ""

    async def run(self) -> None:
        """Elect, lead or follow, again and again; until cancelled."""
        # Imported here because the halves of the states build on this module.
        from .election_follower import following  # noqa: PLC0415
        from .election_leader import leading  # noqa: PLC0415

        functions: dict[State, Callable[[Election], Awaitable[State]]] = {
            State.INIT: init,
            State.CANVASS: canvass,
            State.NOMINATE: nominate,
            State.CANDIDATE_BALLOT: candidate_ballot,
            State.FOLLOWER_BALLOT: follower_ballot,
            State.LEADER_LOG_REPLICATION: leading,
            State.FOLLOWER_LOG_REPLICATION: following,
            State.FOLLOWER_REPLAY: following,
        }
        self._begin(Ended("node started"))
        while True:
            function = functions[self.state]
            try:
                after = await function(self)
            except* TROUBLE as group:
                self.fail(_first_leaf(group))
                after = State.INIT
            self.enter(after)

    # --- transitions ------------------------------------------------------------------------------

    def because(self, reason: str) -> None:
        """Give the reason of the transition that comes next."""
        self._reason = reason

    def enter(self, after: State) -> None:
        """Make a transition; its reason was given by :meth:`because`."""
        before = self.state
        if after is before:
            return
        assert after in EDGES[before], f"{before.name} -> {after.name} is not in the protocol"
        self.state, self.state_since = after, trio.current_time()
        if before is State.CANVASS:
            self._extended_canvass = False
        self._tell(before, after)

    def _tell(self, before: State, after: State) -> None:
        core = self.core
        transition = Transition(
            at=trio.current_time(),
            member_id=core.member_id,
            election=self.count,
            before=before,
            after=after,
            reason=self._reason,
            term=max(core.leadership_term, self.promised_term if after in BALLOT_STATES else -1),
            log_end=core.log_end,
            commit_position=core.applier.commit_position,
        )
        log.info(
            "member %d: %s -> %s: %s (election %d, term %d, log %d/%d, commit %d)",
            core.member_id,
            before.name,
            after.name,
            self._reason,
            self.count,
            transition.term,
            transition.log_end.term,
            transition.log_end.position,
            transition.commit_position,
        )
        self._reason = ""
        for observer in core.observers:
            observer(transition)

    def close(self) -> None:
        """The election is over: we lead or follow."""
        self._backoff, self._failure, self.failed_ballots = 0.0, "", 0

    def reopen(self, ended: Ended) -> State:
        """Our role has ended: go back to the beginning, in a new election if this one was over."""
        if self.state is State.CLOSED:
            self._begin(ended)
        else:
            self.fail(ended.reason)
            self.because(ended.reason)
            self._hand_over(ended)
        return State.INIT

    def _begin(self, ended: Ended) -> None:
        """Begin the next election."""
        before, self.state, self.state_since = self.state, State.INIT, trio.current_time()
        self.count += 1
        self._extended_canvass = self.count == 1
        self._hand_over(ended)
        if self.count > 1:
            self.because(ended.reason)
            self._tell(before, State.INIT)

    def _hand_over(self, ended: Ended) -> None:
        self.gone = ended.gone
        if ended.message is not None:
            self.inbox.on_message(*ended.message)

    def fail(self, failure: object) -> None:
        """Note a failure; the same one again makes INIT wait, longer each time."""
        text = failure if isinstance(failure, str) else repr(failure)
        again = text == self._failure
        self._backoff = min(self._backoff * 2 or BACKOFF_FIRST, BACKOFF_LONGEST) if again else 0.0
        self._failure = text
        self.because(text)

    # --- what the states share --------------------------------------------------------------------

    @property
    def promised_term(self) -> int:
        """The highest term that we promised, durably."""
        return self.core.promised.candidate_term

    @property
    def absent(self) -> list[int]:
        """Members that are known to be gone: closed in order, or their port refuses."""
        links = self.core.links
        return [peer for peer in self.core.peers if peer == self.gone or links.refused(peer)]

    def heard_log(self, sender: int, term: int, position: int) -> None:
        """Note where a member's log ends."""
        self.peers[sender].log_end = rules.LogEnd(term, position)
        if sender == self.gone:
            self.gone = None

    def canvass_once(self) -> None:
        """Tell all others how far our log goes."""
        self.core.broadcast(self._canvass_position())

    def _canvass_position(self) -> CanvassPosition:
        end = self.core.log_end
        return CanvassPosition(
            end.term, end.position, self.core.leadership_term, self.core.member_id
        )

    async def react(self, sender: int, message: Message) -> State | None:
        """Handle what is common to the states before a leader is found; None stays."""
        match message:
            case CanvassPosition(log_leadership_term_id=term, log_position=position):
                self.heard_log(sender, term, position)
            case RequestVote():
                return await self._on_request_vote(sender, message)
            case NewLeadershipTerm():
                return await self._on_new_leadership_term(sender, message)
            case CommitPosition(leadership_term_id=term) | StaleLeader(leadership_term_id=term):
                self._on_other_term(sender, message, term)
            case Vote(voter_candidate_term_id=term) | AppendPosition(leadership_term_id=term):
                self.highest_term_heard = max(self.highest_term_heard, term)
            case _:
                pass  # for a leader or a follower, which we are not
        return None

    def _on_other_term(self, sender: int, message: Message, term: int) -> None:
        self.highest_term_heard = max(self.highest_term_heard, term)
        if isinstance(message, CommitPosition):
            if term < self.promised_term:
                self.core.send(sender, StaleLeader(self.promised_term, self.core.member_id))
            else:
                self.core.heard_leader(term)

    async def _on_request_vote(self, sender: int, message: RequestVote) -> State | None:
        """Vote, durably before the answer leaves (Aeron: Election.onRequestVote)."""
        core = self.core
        if message.candidate_member_id != sender:
            return None
        self.heard_log(sender, message.log_leadership_term_id, message.log_position)
        decision = rules.consider(
            message, own=core.log_end, promised=core.promised, in_ballot=True, leader_alive=False
        )
        if decision.promise is not None:
            await core.promise(decision.promise)
        core.send(sender, vote_message(core, message, decision))
        if not decision.vote:
            return None
        self.because(f"voted for member {sender} in term {message.candidate_term_id}")
        return State.FOLLOWER_BALLOT

    async def _on_new_leadership_term(
        self, sender: int, message: NewLeadershipTerm
    ) -> State | None:
        """Adopt a leader, if it is not a stale one (Aeron: Election.onNewLeadershipTerm)."""
        core = self.core
        if message.leader_member_id != sender:
            return None
        self.gone = None if self.gone == sender else self.gone
        if rules.is_stale(message, core.promised):
            core.send(sender, StaleLeader(self.promised_term, core.member_id))
            return None
        core.heard_leader(message.leadership_term_id)
        decision = rules.follow(message, terms=core.store.terms, append=core.store.append_position)
        match decision:
            case rules.CanvassAgain():
                core.send(sender, self._canvass_position())
                self.because("the leader speaks of another log term")
                return State.CANVASS
            case rules.Disregard():
                return None
            case rules.Truncate(to=position, last_term=last_term):
                await core.adopt_term(message.leadership_term_id)
                await core.truncate(position, last_term)
                self.because(f"truncated uncommitted entries from {position} on")
                return State.INIT
            case _:
                await core.adopt_term(message.leadership_term_id)
                return self._adopt(message, decision)

    def _adopt(self, message: NewLeadershipTerm, decision: rules.Replicate | rules.Replay) -> State:
        self.adopted, self.decision = message, decision
        self.core.leader_id = message.leader_member_id
        who = f"member {message.leader_member_id} leads term {message.leadership_term_id}"
        if isinstance(decision, rules.Replicate):
            self.because(f"{who}; term {decision.term} to be replicated to {decision.stop}")
            return State.FOLLOWER_LOG_REPLICATION
        self.because(who)
        return State.FOLLOWER_REPLAY

    @property
    def canvass_deadline(self) -> float:
        """When a quorum of willing members is enough to stand; the first time, later."""
        timeouts = self.core.timeouts
        if self._extended_canvass:
            return self.state_since + timeouts.startup_canvass
        return max(self.core.leader_contact, 0.0) + timeouts.leader_heartbeat_timeout

    async def back_off(self) -> None:
        """Wait before INIT is left, if the last attempts failed for the same reason."""
        await trio.sleep(self._backoff)


def _first_leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


# --- the states -----------------------------------------------------------------------------------


async def init(e: Election) -> State:
    """Start anew; what the last attempt ran has stopped with its role.

    A cluster of one member elects itself here (Aeron: Election.init).
    """
    core = e.core
    core.role = e.inbox
    await e.back_off()
    if core.size == 1:
        await core.promise(NodeState(e.promised_term + 1, core.member_id))
        e.because("the only member")
        return State.LEADER_LOG_REPLICATION
    e.because("looking for a leader")
    return State.CANVASS


async def canvass(e: Election) -> State:
    """Tell and hear how far the logs go; stand if all, or in the end a quorum, would vote for us.

    Whoever sees neither a quorum of willing members nor a leader stays here for ever, and raises
    no term.
    """
    core = e.core
    e.peers = {peer: Peer() for peer in core.peers}
    again = trio.current_time()
    while True:
        now = trio.current_time()
        if now >= again:
            e.canvass_once()
            again = now + core.timeouts.canvass_interval
        heard = {peer: known.log_end for peer, known in e.peers.items()}
        if rules.is_unanimous_candidate(core.log_end, heard, e.absent):
            e.because("unanimous candidate")
            return State.NOMINATE
        if now >= e.canvass_deadline and rules.is_quorum_candidate(core.log_end, heard):
            e.because("quorum candidate")
            return State.NOMINATE
        event = await e.inbox.receive(again)
        if event is not None and (state := await e.react(*event)) not in {None, State.CANVASS}:
            assert state is not None
            return state


async def nominate(e: Election) -> State:
    """Wait a random while, so that not all stand at once, and then raise the term, durably."""
    core = e.core
    deadline = trio.current_time() + core.rng.uniform(0, core.timeouts.election_timeout / 2)
    again = trio.current_time()
    while trio.current_time() < deadline:
        if trio.current_time() >= again:
            e.canvass_once()
            again = trio.current_time() + core.timeouts.canvass_interval
        event = await e.inbox.receive(min(again, deadline))
        if event is not None and (state := await e.react(*event)):
            return state
    term = max(e.promised_term, e.highest_term_heard, core.leadership_term) + 1
    await core.promise(NodeState(term, core.member_id))
    e.because(f"candidate for term {term}")
    return State.CANDIDATE_BALLOT


async def candidate_ballot(e: Election) -> State:
    """Ask for votes: all of them win at once, a majority when the time is over."""
    core, term = e.core, e.promised_term
    votes: dict[int, bool] = {}
    deadline = trio.current_time() + core.timeouts.election_timeout
    again = trio.current_time()
    while True:
        now = trio.current_time()
        if rules.is_unanimous_leader(votes, core.peers, e.absent):
            e.because("unanimous leader")
            return State.LEADER_LOG_REPLICATION
        if now >= deadline:
            if rules.is_quorum_leader(votes, core.size, e.failed_ballots):
                e.because("quorum leader")
                return State.LEADER_LOG_REPLICATION
            e.failed_ballots += 1
            e.because(f"ballot of term {term} lost, votes {votes}")
            return State.CANVASS
        if now >= again:
            _request_votes(e, term, votes)
            again = now + core.timeouts.canvass_interval
        match await e.inbox.receive(min(again, deadline)):
            case None:
                pass
            case (sender, Vote(candidate_term_id=t, candidate_member_id=m) as vote) if (
                t == term and m == core.member_id
            ):
                votes[sender] = vote.vote
                e.highest_term_heard = max(e.highest_term_heard, vote.voter_candidate_term_id)
                e.heard_log(sender, vote.log_leadership_term_id, vote.log_position)
            case (sender, message):
                if state := await e.react(sender, message):
                    return state


def _request_votes(e: Election, term: int, votes: dict[int, bool]) -> None:
    """Ask those that have not answered; a repeated request gets the same answer."""
    end = e.core.log_end
    request = RequestVote(end.term, end.position, term, e.core.member_id)
    for peer in e.core.peers:
        if peer not in votes:
            e.core.send(peer, request)


async def follower_ballot(e: Election) -> State:
    """We voted: wait for the winner to tell of its term.

    A candidate needs a whole election timeout before a majority is enough, so we wait for two.
    """
    core, term = e.core, e.promised_term
    deadline = trio.current_time() + 2 * core.timeouts.election_timeout
    while (event := await e.inbox.receive(deadline)) is not None:
        state = await e.react(*event)
        if state is State.FOLLOWER_BALLOT and e.promised_term > term:
            term = e.promised_term  # a second vote, in a newer term
            deadline = trio.current_time() + 2 * core.timeouts.election_timeout
        elif state not in {None, State.FOLLOWER_BALLOT}:
            assert state is not None
            return state
    e.because(f"no leader of term {term} emerged")
    return State.CANVASS
