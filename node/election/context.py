"""What the states of one member's elections share: the inbox, what was heard, and transitions.

The states themselves are in :mod:`.election`. Messages that mean the same in every state in which
no leader is known are handled here, by :meth:`ElectionContext.react`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

import trio

from ...log_events import log_event
from ...storage import LogEnd
from ...transport import (
    NULL_VALUE,
    AppendPosition,
    CanvassPosition,
    CommitPosition,
    Message,
    NewLeadershipTerm,
    RequestVote,
    Scout,
    StaleLeader,
    TimeoutNow,
    Vote,
    VoteReason,
)
from ..protocol import log_matching
from ..protocol.causes import Cause
from ..protocol.promise import MAX_LEASE_MS
from ..protocol.quorum import ANY_STORE, VoterId
from ..protocol.role import Ended
from ..protocol.states import BALLOT_STATES, EDGES, State
from .inbox import Inbox
from .pauses import Backoff, HoldBack
from .transition import Adoption, Next, Transition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from random import Random

    from ...storage import Store
    from ...transport import Links
    from ..clocks import Clocks
    from ..follower.following import Following
    from ..follower.log_guard import LogGuard
    from ..leader.leadership import Leadership
    from ..requests.router import Requests
    from ..state import MemberState
    from ..state_machine.applier import Applier
    from ..voter import Voter

    class Asking(Protocol):
        """What a pre-vote is asked while it is under way (:mod:`.prevote`)."""

        def goes_before(self, other: Scout) -> bool:
            """Whether we are asking, and the other member that asks has to yield."""
            ...

        def give_way(self) -> None:
            """Ask later, since we have granted another member's pre-vote."""
            ...

    class MakeFollowing(Protocol):
        """Makes the role of a follower of a leader that was adopted."""

        def __call__(self, message: NewLeadershipTerm, *, way: log_matching.WayToJoin) -> Following:
            """Make it from the leader's announcement and what that means for our log."""
            ...


log = logging.getLogger("quorate.node")


class ElectionContext:
    """The elections of one member, one after the other.

    Args:
        state: of the member.
        store: its log, its term table, and its vote.
        links: to the other members.
        applier: applies what is committed.
        voter: makes promises, and answers candidates.
        clocks: the members' clocks; votes and announcements carry their readings.
        log_guard: refuses leaders that contradict themselves or our log.
        requests: is notified of the leader.
        preconditions: each returns once its condition holds; INIT waits for one after the other.
        lead: makes the role of the leader of a term.
        follow: makes the role of a follower.
        rng: the only source of randomness.

    Attributes:
        current: the state that we are in.
        state_since: when we entered it (trio's clock).
        count: elections since the start, this one included.
        began: when this election began.
        cause: why it did, in words.
        label: of that cause, for figures.
        inbox: messages that wait for a state to take them.
        log_ends: where each other member's log ends; None if it has not said so.
        highest_term_heard: from anybody, in this election or before; we stand in a higher one.
        gone: the leader that closed and so ended the last term; None once it is heard again.
        mandate: the message by which the leader has asked us to take over; we stand at once.
        prevote: ours, while we are in NOMINATE.
        failed_ballots: ballots lost in a row.
        backoff: makes INIT wait after repeated failures.
        hold_back: keeps us from standing after a failed pre-vote.
        observers: called with every transition.
    """

    def __init__(
        self,
        *,
        state: MemberState,
        store: Store,
        links: Links,
        applier: Applier,
        voter: Voter,
        clocks: Clocks,
        log_guard: LogGuard,
        requests: Requests,
        preconditions: Sequence[Callable[[], Awaitable[None]]],
        lead: Callable[[int], Leadership],
        follow: MakeFollowing,
        rng: Random,
    ) -> None:
        self.state = state
        self.store = store
        self.links = links
        self.applier = applier
        self.voter = voter
        self.clocks = clocks
        self.log_guard = log_guard
        self.requests = requests
        self.preconditions = preconditions
        self.lead = lead
        self.follow = follow
        self.rng = rng
        self.current = State.INIT
        self.state_since = self.began = trio.current_time()
        self.count = 0
        self.cause, self.label = "node started", Cause.START
        self.inbox = Inbox()
        self.log_ends: dict[int, LogEnd | None] = dict.fromkeys(state.peers)
        self.highest_term_heard = NULL_VALUE
        self.gone: int | None = None
        self.mandate: TimeoutNow | None = None
        self.prevote: Asking | None = None
        self.failed_ballots = 0
        self.backoff = Backoff(state)
        self.hold_back = HoldBack(state, rng)
        self.observers: list[Callable[[Transition], None]] = []
        self._extended_canvass = True
        self._last_leader: tuple[int, int | None] | None = None

    # --- transitions ------------------------------------------------------------------------------

    def begin(self) -> Next:
        """Begin the first election."""
        self._begin(Ended(self.cause, cause=self.label))
        return Next(State.INIT, self.cause)

    def enter(self, step: Next) -> None:
        """Make a transition."""
        before, after = self.current, step.state
        if after is before:
            return  # a failure in INIT, or a canvass that begins anew
        # A step that the table does not have is a bug. To go on would be to run an untested
        # protocol.
        assert after in EDGES[before], f"{before.name} -> {after.name} is not in the protocol"
        self.current, self.state_since = after, trio.current_time()
        if before is State.CANVASS:
            # Only the first canvass after a start waits longer for members that start as well.
            self._extended_canvass = False
        self._publish(before, step)
        if after is State.CLOSED:
            self._count()
            self._log_outcome()
            # Only a completed election shows that the cause of the failures is gone.
            self.failed_ballots = 0
            self.backoff.reset()
            self.hold_back.reset()

    def _count(self) -> None:
        """Count an election that is over."""
        state = self.state
        counts, leader = state.counts, (state.leadership_term, state.leader_id)
        outcome = "leader" if state.leader_id == state.member_id else "follower"
        counts.elections[self.label, outcome] += 1
        counts.election_duration.observe(trio.current_time() - self.began)
        # A follower that joins its leader again has found no other one; nor is the first a change.
        if self._last_leader not in {None, leader}:
            counts.leader_changes += 1
        self._last_leader = leader

    def _count_failure(self) -> None:
        """Count an attempt that goes back to its begin."""
        self.state.counts.elections[self.label, "failed"] += 1

    def failed(self, failure: object) -> Next:
        """Note a failure and go back to INIT, which waits if the last one was the same."""
        words = failure if isinstance(failure, str) else repr(failure)
        self.backoff.failed(words)
        self._count_failure()
        return Next(State.INIT, words)

    def reopen(self, ended: Ended) -> Next:
        """Go back to INIT because our role has ended; from CLOSED, that begins a new election."""
        if self.current is State.CLOSED:
            self._begin(ended)
        else:
            if ended.message is None:
                # A member that hears of a newer term has not failed: it need not wait.
                self.backoff.failed(ended.reason)
            self._count_failure()
            self._inherit(ended)
        return Next(State.INIT, ended.reason)

    def _begin(self, ended: Ended) -> None:
        before, self.current, self.state_since = self.current, State.INIT, trio.current_time()
        self.began = self.state_since
        self.cause, self.label = ended.reason, ended.cause
        self.count += 1
        self._extended_canvass = self.count == 1
        self._inherit(ended)
        if self.count > 1:
            # A leader or a quorum that is lost is what an operator looks for in the log.
            lost = not (ended.in_order or self.state.closing)
            level = logging.WARNING if lost else logging.DEBUG
            self._publish(before, Next(State.INIT, ended.reason), level)

    def _inherit(self, ended: Ended) -> None:
        """Take from a role that has ended what the election needs."""
        # Both are for one election: a leader that has closed may be back, and a mandate is for one
        # term.
        self.gone, self.mandate = ended.gone, ended.mandate
        if ended.message is not None:
            self.inbox.on_message(*ended.message)

    def _log_outcome(self) -> None:
        """Log who leads which term, why there was an election, and how long it took here."""
        log_event(
            log,
            logging.INFO,
            "leads",
            "member %(member)d: member %(leader)s leads term %(term)d, after an election of "
            "%(took).3f s; why: %(cause)s",
            member=self.state.member_id,
            leader=self.state.leader_id,
            term=self.state.leadership_term,
            cause=self.cause,
            took=trio.current_time() - self.began,
        )

    def _publish(self, before: State, step: Next, level: int = logging.DEBUG) -> None:
        """Log a transition, and call its observers."""
        state, after = self.state, step.state
        # A ballot is about the promised term; `leadership_term` only rises once somebody has won
        # it.
        promised = self.promised_term if after in BALLOT_STATES else NULL_VALUE
        transition = Transition(
            at=trio.current_time(),
            member_id=state.member_id,
            election=self.count,
            before=before,
            after=after,
            reason=step.reason,
            term=max(state.leadership_term, promised),
            log_end=state.log_end,
            commit_position=self.applier.commit_position,
        )
        log_event(
            log,
            level,
            "enters",
            "member %(member)d: %(before)s -> %(after)s: %(reason)s",
            member=state.member_id,
            before=before.name,
            after=after.name,
            reason=step.reason,
            term=transition.term,
            election=self.count,
            log_end=[transition.log_end.term, transition.log_end.position],
            commit=transition.commit_position,
        )
        for observer in self.observers:
            observer(transition)

    # --- what we know -----------------------------------------------------------------------------

    @property
    def may_stand(self) -> bool:
        """Whether we may be elected."""
        state = self.state
        return (
            state.votes
            and state.membership.may_stand(state.own_store)
            # Below the floor our log may miss entries that were acknowledged.
            and state.log_end >= state.floor
            # A leader that applies nothing would step down at once.
            and not self.applier.stalled(state.timeouts.leader_heartbeat_timeout)
        )

    @property
    def promised_term(self) -> int:
        """The highest term that we promised, durably."""
        return self.state.promised.candidate_term

    @property
    def next_term(self) -> int:
        """The term to stand in: above all that we know or have heard of."""
        # A restored log may have terms that this store has never promised. To begin one of them a
        # second time would give a term two writers (I-16).
        return max(self.state.known_term, self.highest_term_heard) + 1

    @property
    def absent(self) -> list[int]:
        """Members that nobody needs to wait for: they closed, or their port refuses."""
        refused = self.links.refused
        return [peer for peer in self.state.peers if peer == self.gone or refused(peer)]

    @property
    def absent_voters(self) -> frozenset[VoterId]:
        """Voters that nobody needs to wait for: their member is absent, or has another store."""
        absent = self.absent

        def is_absent(member: int, instance: int) -> bool:
            speaks = self.state.speaks_with(member)
            other = ANY_STORE not in {speaks, instance} and speaks != instance
            return other or member in absent

        return frozenset(each for each in self.state.quorums.voters if is_absent(*each))

    @property
    def canvass_deadline(self) -> float:
        """When a quorum of willing members is enough to stand; later after a start."""
        timeouts = self.state.timeouts
        # Members that are started together do not start at one moment. To stand with the first
        # quorum could pass over the longest log.
        if self._extended_canvass:
            return self.state_since + timeouts.startup_canvass
        # Counted from the last sign of a leader: a member that has waited for it need not wait
        # again.
        return max(self.state.leader_contact, 0.0) + timeouts.leader_heartbeat_timeout

    def heard_log(self, sender: int, term: int, position: int) -> None:
        """Note where a member's log ends."""
        self.log_ends[sender] = LogEnd(term, position)
        if sender == self.gone:
            # It is back, so it is waited for again like any other member.
            self.gone = None

    def heard_vote(self, sender: int, vote: Vote) -> None:
        """Note what an answer to our vote request says besides yes or no."""
        # We stand above the voter's own promise next time; below it we would be refused again.
        self.highest_term_heard = max(self.highest_term_heard, vote.voter_candidate_term_id)
        self.heard_log(sender, vote.log_leadership_term_id, vote.log_position)
        self.clocks.heard(sender, vote.timestamp)

    # --- messages ---------------------------------------------------------------------------------

    def canvass_once(self) -> None:
        """Send our canvass position to all members."""
        # Also to standbys: by a newer configuration than ours, one of them may lead.
        self.links.broadcast(self._canvass_position())

    def _canvass_position(self) -> CanvassPosition:
        state, end = self.state, self.state.log_end
        return CanvassPosition(end.term, end.position, state.leadership_term, state.member_id)

    async def react(self, sender: int, message: Message) -> Next | None:
        """Handle a message that means the same in all states before a leader is known.

        Returns:
            The next state; None if the message changes none.
        """
        match message:
            case CanvassPosition(log_leadership_term_id=term, log_position=position):
                # The term of its log, and not the one that it lives in: a log may be behind.
                self.heard_log(sender, term, position)
                self.highest_term_heard = max(self.highest_term_heard, term)
            case RequestVote():
                return await self._on_request_vote(sender, message)
            case Scout():
                self._on_prevote(sender, message)
            case NewLeadershipTerm():
                return await self._on_new_leadership_term(sender, message)
            case CommitPosition(leadership_term_id=term) | StaleLeader(leadership_term_id=term):
                self._on_other_term(sender, message, term)
            case Vote(voter_candidate_term_id=term) | AppendPosition(leadership_term_id=term):
                # An AppendPosition names its leader's term, not that of its sender's log. So it is
                # no log end, but we must stand above it.
                self.highest_term_heard = max(self.highest_term_heard, term)
            case _:
                pass  # for a leader or a follower, which we are not
        return None

    def _on_other_term(self, sender: int, message: Message, term: int) -> None:
        self.highest_term_heard = max(self.highest_term_heard, term)
        if isinstance(message, CommitPosition):
            if log_matching.is_stale(message, self.promised_term):
                # F1: this reply makes the old leader step down; silence would let it lead on (H1).
                self.links.send(sender, StaleLeader(self.promised_term, self.state.member_id))
            else:
                # We do not follow it yet, but it lives: it will announce its term to us.
                self.state.heard_leader(term, trio.current_time())

    def _on_prevote(self, sender: int, message: Scout) -> None:
        """Answer a pre-vote; of two members that ask at the same time one yields."""
        prevote = self.prevote
        if message.member_id != sender:
            return
        # Noted whatever we answer: in the next canvass it counts as a position.
        self.heard_log(sender, message.log_leadership_term_id, message.log_position)
        # We refuse while we ask ourselves and go first: with two yes, both would raise the same
        # term and split the votes.
        goes_first = prevote is not None and prevote.goes_before(message)
        in_ballot = self.current in {State.CANVASS, State.NOMINATE} and not goes_first
        reason = self.voter.answer_prevote(message, in_ballot=in_ballot, leader_alive=False)
        if reason is VoteReason.GRANTED and prevote is not None:
            # To raise our term now would take back the answer that we have just given.
            prevote.give_way()

    async def _on_request_vote(self, sender: int, message: RequestVote) -> Next | None:
        """Vote (Aeron: Election.onRequestVote)."""
        if message.candidate_member_id != sender:
            return None  # forged, or a bug: nobody asks for votes in another member's name
        # Noted whatever we decide: a candidate sends no canvass position while it stands.
        self.heard_log(sender, message.log_leadership_term_id, message.log_position)
        decision = self.voter.decide(message, in_ballot=True, leader_alive=False)
        if decision.promise is not None:
            # Durable before the answer leaves: a vote that a crash forgets could be given twice.
            await self.voter.promise(decision.promise)
        self.voter.answer(sender, message, decision)
        if not decision.vote:
            return None
        term = message.candidate_term_id
        return Next(State.FOLLOWER_BALLOT, f"voted for member {sender} in term {term}")

    async def _on_new_leadership_term(self, sender: int, message: NewLeadershipTerm) -> Next | None:
        """Adopt a leader unless it is a stale one (Aeron: Election.onNewLeadershipTerm)."""
        state, store = self.state, self.store
        # Forged, or a bug. A lease without a limit would also let one frame block every election.
        if message.leader_member_id != sender or not 0 <= message.lease_ms <= MAX_LEASE_MS:
            return None
        self.gone = None if self.gone == sender else self.gone
        # A leader below our promise could take back what a newer one has committed. One that is
        # only below a leader that we heard is no danger. But a member that wakes from a pause would
        # follow each past leader in turn.
        newest = max(self.promised_term, state.leader_term)
        if log_matching.is_stale(message, newest):
            self.links.send(sender, StaleLeader(newest, state.member_id))
            return None
        decision = log_matching.follow(message, terms=store.terms, append=store.append_position)
        if await self.log_guard.refuses(sender, message, decision):
            return None
        # Only after the checks: a leader that we refuse must not put off our own candidacy.
        state.heard_leader(message.leadership_term_id, trio.current_time())
        match decision:
            case log_matching.CanvassAgain():
                # The announcement is for members with another log term than ours. Our position
                # gets us one for ours.
                self.links.send(sender, self._canvass_position())
                return Next(State.CANVASS, "the leader speaks of another log term")
            case log_matching.Disregard():
                return None
            case log_matching.Truncate(to=position, last_term=last_term):
                # The promise first: after it no older leader can send us the dropped entries again.
                await self.voter.adopt_term(message.leadership_term_id)
                await self.log_guard.truncate(position, last_term)
                return Next(State.INIT, f"truncated uncommitted entries from {position} on")
            case _:
                # Durable before anything is recorded of it: a crash must not make us forget that
                # we have left the older leaders.
                await self.voter.adopt_term(message.leadership_term_id)
                return self._adopt(message, decision)

    def _adopt(self, message: NewLeadershipTerm, way: log_matching.WayToJoin) -> Next:
        self.mandate = None  # the leader that gave it leads no more
        self.state.leader_id = message.leader_member_id
        self.clocks.heard_leader(message.timestamp)
        after = State.FOLLOWER_LOG_REPLICATION
        reason = f"member {message.leader_member_id} leads term {message.leadership_term_id}"
        match way:
            case log_matching.Replicate(term=term, stop=stop):
                reason = f"{reason}; term {term} to be replicated to {stop}"
            case log_matching.Install(oldest=oldest):
                reason = f"{reason}; its log begins at {oldest}"
            case log_matching.Replay():
                after = State.FOLLOWER_REPLAY
        return Next(after, reason, Adoption(message, way))
