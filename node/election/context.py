"""What the states of an election share: the inbox, what was heard, transitions and their reasons.

The states themselves are in :mod:`.election`. Messages that mean the same in every state before a
leader is known are handled here, by :meth:`Election.react`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

import attrs
import trio

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
from ..protocol import ballots, log_matching
from ..protocol.promise import MAX_LEASE_MS
from ..protocol.role import Ended
from ..protocol.states import BALLOT_STATES, EDGES, State
from .inbox import Inbox
from .transition import Transition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from ...storage import Store
    from ...transport import Links
    from ..clocks import Clocks
    from ..follower.catchup_rate import CatchupRate
    from ..follower.following import Following
    from ..follower.log_guard import LogGuard
    from ..follower.snapshot_install import SnapshotInstall
    from ..leader.leadership import Leadership
    from ..membership.founding import Founders
    from ..requests.router import Requests
    from ..state import MemberState
    from ..state_machine.applier import Applier
    from ..state_machine.snapshots import Snapshots
    from ..voter import Voter

    class MakeFollowing(Protocol):
        """Makes the role of a follower from the message by which a leader was adopted."""

        def __call__(self, message: NewLeadershipTerm, *, compared: bool) -> Following:
            """Make it; `compared` says whether our log is known to be a prefix of the leader's."""
            ...


log = logging.getLogger("quorate.node")

MAX_HOLD_BACK = 4  # failed rounds of scouting that double the pause: up to 8 election timeouts


@attrs.define(eq=False)
class Peer:
    """What an election has heard of another member: where its log ends."""

    log_end: log_matching.LogEnd | None = None


class Election:
    """Runs the states of one member, election after election.

    Args:
        state: of the member.
        store: its log, its table of terms, and its vote.
        links: to the other members.
        applier: applies what is committed.
        snapshots: of the service.
        voter: makes promises, and answers candidates.
        clocks: hear the other members' clocks.
        log_guard: refuses leaders that contradict themselves or our log.
        catchup_rate: throttles replays.
        founders: let new stores found the cluster.
        install: fetches a snapshot where the log does not suffice.
        requests: are told who leads.
        room: waits until there is room on the disk.
        lead: makes the role of a leader of a term.
        follow: makes the role of a follower.
        rng: the only source of randomness.

    Attributes:
        current: the state that we are in.
        observers: called with every transition.
        count: how many elections there were since the start.
        began: when this one did.
        cause: why it did.
        state_since: when we came into it.
        peers: what we have heard of each of the others.
        highest_term_heard: by anybody, in this election or before; our next ballot is above it.
        gone: the member that closed in order and so ended the election before, if any.
        failed_ballots: ballots that we have lost in a row.
        absent: members that nobody needs to wait for: they closed in order.
        mandate: by which the leader has asked us to take over; we stand at once.
        chosen: the ballot that we stand in, or lead by, is an operator's choice.
        ahead: the vote for us whose log goes furthest, if further than ours; only a candidate that
            may be behind gets such votes.
        scouting: a round of scouting is under way.
        silent: members that did not answer it, or have no vote; the ballot won't wait for them.
        turn_at: when our next round may begin.
        held_back_until: after rounds that failed we do not stand before this.
        adopted: the message by which a leader was adopted, for the following states.
        decision: what that message means for our log.
    """

    def __init__(
        self,
        *,
        state: MemberState,
        store: Store,
        links: Links,
        applier: Applier,
        snapshots: Snapshots,
        voter: Voter,
        clocks: Clocks,
        log_guard: LogGuard,
        catchup_rate: CatchupRate,
        founders: Founders,
        install: SnapshotInstall,
        requests: Requests,
        room: Callable[[], Awaitable[None]],
        lead: Callable[[int], Leadership],
        follow: MakeFollowing,
        rng: Random,
    ) -> None:
        self.state = state
        self.store = store
        self.links = links
        self.applier = applier
        self.snapshots = snapshots
        self.voter = voter
        self.clocks = clocks
        self.log_guard = log_guard
        self.catchup_rate = catchup_rate
        self.founders = founders
        self.install = install
        self.requests = requests
        self.room = room
        self.lead = lead
        self.follow = follow
        self.rng = rng
        self.observers: list[Callable[[Transition], None]] = []
        self.current = State.INIT
        self.state_since = self.began = trio.current_time()
        self.count = 0
        self.peers: dict[int, Peer] = {}
        self.highest_term_heard = NULL_VALUE
        self.gone: int | None = None
        self.failed_ballots = 0
        self.mandate: TimeoutNow | None = None
        self.chosen = False
        self.ahead: Vote | None = None
        self.scouting = False
        self.silent: tuple[int, ...] = ()
        self.turn_at = self.held_back_until = 0.0
        self._failed_scouts = 0
        self.adopted: NewLeadershipTerm | None = None
        self.decision: (
            log_matching.Replicate | log_matching.Install | log_matching.Replay | None
        ) = None
        self.inbox = Inbox()
        self._reason = self.cause = "node started"
        self._extended_canvass = True
        self._backoff = self._pause = 0.0
        self._failure = ""

    # --- transitions ------------------------------------------------------------------------------

    def because(self, reason: str) -> None:
        """Give the reason of the transition that comes next."""
        self._reason = reason

    def enter(self, after: State) -> None:
        """Make a transition; its reason was given by :meth:`because`."""
        before = self.current
        if after is before:
            return
        assert after in EDGES[before], f"{before.name} -> {after.name} is not in the protocol"
        self.current, self.state_since = after, trio.current_time()
        if before is State.CANVASS:
            self._extended_canvass = False
        self._tell(before, after)

    def _tell(self, before: State, after: State, level: int = logging.INFO) -> None:
        transition = Transition(
            at=trio.current_time(),
            member_id=self.state.member_id,
            election=self.count,
            before=before,
            after=after,
            reason=self._reason,
            term=max(
                self.state.leadership_term, self.promised_term if after in BALLOT_STATES else -1
            ),
            log_end=self.state.log_end,
            commit_position=self.applier.commit_position,
        )
        log.log(
            level,
            "member %d: %s -> %s: %s (election %d, term %d, log %d/%d, commit %d)",
            self.state.member_id,
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
        for observer in self.observers:
            observer(transition)

    def close(self) -> None:
        """The election is over: we lead or follow."""
        self._backoff, self._failure, self.failed_ballots = 0.0, "", 0
        self._failed_scouts, self.held_back_until = 0, 0.0

    def reopen(self, ended: Ended) -> State:
        """Our role has ended: go back to the beginning, in a new election if this one was over."""
        if self.current is State.CLOSED:
            self._begin(ended)
            return State.INIT
        if ended.message is None:  # who hears of a newer term has not failed
            self.fail(ended.reason)
        self.because(ended.reason)
        self._hand_over(ended)
        return State.INIT

    def begin(self) -> None:
        """Begin the first election."""
        self._begin(Ended("node started"))

    def _begin(self, ended: Ended) -> None:
        """Begin the next election."""
        before, self.current, self.state_since = self.current, State.INIT, trio.current_time()
        self.began, self.cause = self.state_since, ended.reason
        self.count += 1
        self._extended_canvass = self.count == 1
        self._hand_over(ended)
        if self.count > 1:
            self.because(ended.reason)
            # A leader or a quorum that is lost is what an operator looks for in the log.
            lost = not (ended.in_order or self.state.closing)
            self._tell(before, State.INIT, logging.WARNING if lost else logging.INFO)

    def _hand_over(self, ended: Ended) -> None:
        self.gone, self.mandate = ended.gone, ended.mandate
        if ended.message is not None:
            self.inbox.on_message(*ended.message)

    def fail(self, failure: object) -> None:
        """Note a failure; the same one again makes INIT wait, longer each time."""
        text = failure if isinstance(failure, str) else repr(failure)
        again = text == self._failure
        timeouts = self.state.timeouts
        first, longest = timeouts.leader_heartbeat_interval, timeouts.leader_heartbeat_timeout
        self._backoff = min(self._backoff * 2 or first, longest) if again else 0.0
        self._pause, self._failure = self._backoff, text
        self.because(text)

    @property
    def may_stand(self) -> bool:
        """Whether we may be elected."""
        state = self.state
        return (
            state.votes
            and state.log_end >= state.floor
            # A leader that applies nothing would step down at once.
            and not self.applier.stalled(state.timeouts.leader_heartbeat_timeout)
        )

    # --- what the states share --------------------------------------------------------------------

    @property
    def promised_term(self) -> int:
        """The highest term that we promised, durably."""
        return self.state.promised.candidate_term

    @property
    def absent(self) -> list[int]:
        """Members that are known to be gone: closed in order, or their port refuses."""
        links = self.links
        return [peer for peer in self.state.peers if peer == self.gone or links.refused(peer)]

    def heard_log(self, sender: int, term: int, position: int) -> None:
        """Note where a member's log ends."""
        self.peers[sender].log_end = log_matching.LogEnd(term, position)
        if sender == self.gone:
            self.gone = None

    def heard_vote(self, sender: int, vote: Vote) -> None:
        """Note what an answer to our request for a vote says beside yes or no."""
        self.highest_term_heard = max(self.highest_term_heard, vote.voter_candidate_term_id)
        self.heard_log(sender, vote.log_leadership_term_id, vote.log_position)
        self.clocks.heard(sender, vote.timestamp)
        longest = ballots.log_end(self.ahead) if self.ahead else self.state.log_end
        if vote.vote and ballots.log_end(vote) > longest:
            self.ahead = vote

    def canvass_once(self) -> None:
        """Tell those that have a vote how far our log goes."""
        position = self._canvass_position()
        for voter in self.state.voters:
            self.links.send(voter, position)

    def _canvass_position(self) -> CanvassPosition:
        end = self.state.log_end
        return CanvassPosition(
            end.term, end.position, self.state.leadership_term, self.state.member_id
        )

    async def react(self, sender: int, message: Message) -> State | None:
        """Handle what is common to the states before a leader is found; None stays."""
        match message:
            case CanvassPosition(log_leadership_term_id=term, log_position=position):
                self.heard_log(sender, term, position)
                self.highest_term_heard = max(self.highest_term_heard, term)
            case RequestVote():
                return await self._on_request_vote(sender, message)
            case Scout():
                self._on_scout(sender, message)
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
            if log_matching.is_stale(message, self.promised_term):
                self.links.send(sender, StaleLeader(self.promised_term, self.state.member_id))
            else:
                self.state.heard_leader(term, trio.current_time())

    def _on_scout(self, sender: int, message: Scout) -> None:
        """Say whether we would vote for a member; of two that scout, one gives way.

        Not whom the leader has asked to take over: it would come back to the leader to wait.
        """
        if message.member_id != sender:
            return
        self.heard_log(sender, message.log_leadership_term_id, message.log_position)
        gives_way = ballots.gives_way(self.state.log_end, self.state.member_id, message)
        first = self.scouting and (self.mandate is not None or not gives_way)
        in_ballot = self.current in {State.CANVASS, State.NOMINATE} and not first
        reason = self.voter.answer_scout(message, in_ballot=in_ballot, leader_alive=False)
        if reason is VoteReason.GRANTED:
            self.scouting = False
            self.turn_at = trio.current_time() + self.state.timeouts.election_timeout

    def hold_back(self, *, refused: bool) -> None:
        """Scouting failed: leave the others alone for a while, longer if they refuse again."""
        self._failed_scouts = min(self._failed_scouts + refused, MAX_HOLD_BACK)
        pause = self.state.timeouts.election_timeout * 2.0 ** max(self._failed_scouts - 1, 0)
        self.held_back_until = trio.current_time() + pause * self.rng.uniform(0.5, 1.5)

    async def _on_request_vote(self, sender: int, message: RequestVote) -> State | None:
        """Vote, durably before the answer leaves (Aeron: Election.onRequestVote)."""
        if message.candidate_member_id != sender:
            return None
        self.heard_log(sender, message.log_leadership_term_id, message.log_position)
        decision = self.voter.decide(message, in_ballot=True, leader_alive=False)
        if decision.promise is not None:
            await self.voter.promise(decision.promise)
        self.voter.answer(sender, message, decision)
        if not decision.vote:
            return None
        self.because(f"voted for member {sender} in term {message.candidate_term_id}")
        return State.FOLLOWER_BALLOT

    async def _on_new_leadership_term(
        self, sender: int, message: NewLeadershipTerm
    ) -> State | None:
        """Adopt a leader, if it is not a stale one (Aeron: Election.onNewLeadershipTerm)."""
        if message.leader_member_id != sender or not 0 <= message.lease_ms <= MAX_LEASE_MS:
            return None
        self.gone = None if self.gone == sender else self.gone
        newest = max(self.promised_term, self.state.leader_term)
        if log_matching.is_stale(message, newest):
            self.links.send(sender, StaleLeader(newest, self.state.member_id))
            return None
        decision = log_matching.follow(
            message, terms=self.store.terms, append=self.store.append_position
        )
        if await self.log_guard.refuses(sender, message, decision):
            return None
        self.state.heard_leader(message.leadership_term_id, trio.current_time())
        match decision:
            case log_matching.CanvassAgain():
                self.links.send(sender, self._canvass_position())
                self.because("the leader speaks of another log term")
                return State.CANVASS
            case log_matching.Disregard():
                return None
            case log_matching.Truncate(to=position, last_term=last_term):
                await self.voter.adopt_term(message.leadership_term_id)
                await self.log_guard.truncate(position, last_term)
                self.because(f"truncated uncommitted entries from {position} on")
                return State.INIT
            case _:
                await self.voter.adopt_term(message.leadership_term_id)
                return self._adopt(message, decision)

    def _adopt(
        self,
        message: NewLeadershipTerm,
        decision: log_matching.Replicate | log_matching.Install | log_matching.Replay,
    ) -> State:
        self.adopted, self.decision, self.mandate = message, decision, None
        self.state.leader_id = message.leader_member_id
        self.clocks.heard_leader(message.timestamp)
        who = f"member {message.leader_member_id} leads term {message.leadership_term_id}"
        if isinstance(decision, log_matching.Replicate):
            self.because(f"{who}; term {decision.term} to be replicated to {decision.stop}")
            return State.FOLLOWER_LOG_REPLICATION
        if isinstance(decision, log_matching.Install):
            self.because(f"{who}; its log begins at {decision.oldest}")
            return State.FOLLOWER_LOG_REPLICATION
        self.because(who)
        return State.FOLLOWER_REPLAY

    @property
    def canvass_deadline(self) -> float:
        """When a quorum of willing members is enough to stand; the first time, later."""
        timeouts = self.state.timeouts
        if self._extended_canvass:
            return self.state_since + timeouts.startup_canvass
        return max(self.state.leader_contact, 0.0) + timeouts.leader_heartbeat_timeout

    async def back_off(self) -> None:
        """Wait before INIT is left, if the last attempts failed for the same reason."""
        pause, self._pause = self._pause, 0.0
        await trio.sleep(pause)
