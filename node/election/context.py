"""What the states of an election share: the inbox, what was heard, transitions and their reasons.

The states themselves are in :mod:`.election`. Messages that mean the same in every state before a
leader is known are handled here, by :meth:`Election.react`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import attrs
import trio

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
from ..leader.lease import MAX_LEASE_MS
from ..protocol import rules
from ..protocol.role import Ended
from ..protocol.states import BALLOT_STATES, EDGES, State
from ..protocol.untrusted import is_refused
from ..state import Core, Transition
from ..voter import answer_scout, decide, vote_message
from .inbox import Inbox

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..requests.router import Requests

log = logging.getLogger("quorate.node")

MAX_HOLD_BACK = 4  # failed rounds of scouting that double the pause: up to 8 election timeouts


@attrs.define(eq=False)
class Peer:
    """What an election has heard of another member: where its log ends."""

    log_end: LogEnd | None = None


class Election:
    """Runs the states of one member, election after election.

    Args:
        core: of the member.
        requests: told who leads.
        room: waits until there is room on the disk.

    Attributes:
        state: where we stand.
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

    def __init__(self, core: Core, requests: Requests, room: Callable[[], Awaitable[None]]) -> None:
        self.core = core
        self.room = room
        self.requests = requests
        self.state = State.INIT
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
        self.decision: rules.Replicate | rules.Install | rules.Replay | None = None
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
        before = self.state
        if after is before:
            return
        assert after in EDGES[before], f"{before.name} -> {after.name} is not in the protocol"
        self.state, self.state_since = after, trio.current_time()
        if before is State.CANVASS:
            self._extended_canvass = False
        self._tell(before, after)

    def _tell(self, before: State, after: State, level: int = logging.INFO) -> None:
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
        log.log(
            level,
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
        self._failed_scouts, self.held_back_until = 0, 0.0

    def reopen(self, ended: Ended) -> State:
        """Our role has ended: go back to the beginning, in a new election if this one was over."""
        if self.state is State.CLOSED:
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
        before, self.state, self.state_since = self.state, State.INIT, trio.current_time()
        self.began, self.cause = self.state_since, ended.reason
        self.count += 1
        self._extended_canvass = self.count == 1
        self._hand_over(ended)
        if self.count > 1:
            self.because(ended.reason)
            # A leader or a quorum that is lost is what an operator looks for in the log.
            lost = not (ended.in_order or self.core.closing)
            self._tell(before, State.INIT, logging.WARNING if lost else logging.INFO)

    def _hand_over(self, ended: Ended) -> None:
        self.gone, self.mandate = ended.gone, ended.mandate
        if ended.message is not None:
            self.inbox.on_message(*ended.message)

    def fail(self, failure: object) -> None:
        """Note a failure; the same one again makes INIT wait, longer each time."""
        text = failure if isinstance(failure, str) else repr(failure)
        again = text == self._failure
        timeouts = self.core.timeouts
        first, longest = timeouts.leader_heartbeat_interval, timeouts.leader_heartbeat_timeout
        self._backoff = min(self._backoff * 2 or first, longest) if again else 0.0
        self._pause, self._failure = self._backoff, text
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
        self.peers[sender].log_end = LogEnd(term, position)
        if sender == self.gone:
            self.gone = None

    def heard_vote(self, sender: int, vote: Vote) -> None:
        """Note what an answer to our request for a vote says beside yes or no."""
        self.highest_term_heard = max(self.highest_term_heard, vote.voter_candidate_term_id)
        self.heard_log(sender, vote.log_leadership_term_id, vote.log_position)
        self.core.clocks.heard(sender, vote.timestamp)
        longest = rules.log_end(self.ahead) if self.ahead else self.core.log_end
        if vote.vote and rules.log_end(vote) > longest:
            self.ahead = vote

    def canvass_once(self) -> None:
        """Tell those that have a vote how far our log goes."""
        position = self._canvass_position()
        for voter in self.core.voters:
            self.core.send(voter, position)

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
            if rules.is_stale(message, self.promised_term):
                self.core.send(sender, StaleLeader(self.promised_term, self.core.member_id))
            else:
                self.core.heard_leader(term, trio.current_time())

    def _on_scout(self, sender: int, message: Scout) -> None:
        """Say whether we would vote for a member; of two that scout, one gives way.

        Not whom the leader has asked to take over: it would come back to the leader to wait.
        """
        core = self.core
        if message.member_id != sender:
            return
        self.heard_log(sender, message.log_leadership_term_id, message.log_position)
        gives_way = rules.gives_way(core.log_end, core.member_id, message)
        first = self.scouting and (self.mandate is not None or not gives_way)
        in_ballot = self.state in {State.CANVASS, State.NOMINATE} and not first
        reason = answer_scout(core, message, in_ballot=in_ballot, leader_alive=False)
        if reason is VoteReason.GRANTED:
            self.scouting = False
            self.turn_at = trio.current_time() + core.timeouts.election_timeout

    def hold_back(self, *, refused: bool) -> None:
        """Scouting failed: leave the others alone for a while, longer if they refuse again."""
        self._failed_scouts = min(self._failed_scouts + refused, MAX_HOLD_BACK)
        pause = self.core.timeouts.election_timeout * 2.0 ** max(self._failed_scouts - 1, 0)
        self.held_back_until = trio.current_time() + pause * self.core.rng.uniform(0.5, 1.5)

    async def _on_request_vote(self, sender: int, message: RequestVote) -> State | None:
        """Vote, durably before the answer leaves (Aeron: Election.onRequestVote)."""
        core = self.core
        if message.candidate_member_id != sender:
            return None
        self.heard_log(sender, message.log_leadership_term_id, message.log_position)
        decision = decide(core, message, in_ballot=True, leader_alive=False)
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
        if message.leader_member_id != sender or not 0 <= message.lease_ms <= MAX_LEASE_MS:
            return None
        self.gone = None if self.gone == sender else self.gone
        newest = max(self.promised_term, core.leader_term)
        if rules.is_stale(message, newest):
            core.send(sender, StaleLeader(newest, core.member_id))
            return None
        decision = rules.follow(message, terms=core.store.terms, append=core.store.append_position)
        if await is_refused(core, sender, message, decision):
            return None
        core.heard_leader(message.leadership_term_id, trio.current_time())
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

    def _adopt(
        self, message: NewLeadershipTerm, decision: rules.Replicate | rules.Install | rules.Replay
    ) -> State:
        self.adopted, self.decision, self.mandate = message, decision, None
        self.core.leader_id = message.leader_member_id
        self.core.clocks.heard_leader(message.timestamp)
        who = f"member {message.leader_member_id} leads term {message.leadership_term_id}"
        if isinstance(decision, rules.Replicate):
            self.because(f"{who}; term {decision.term} to be replicated to {decision.stop}")
            return State.FOLLOWER_LOG_REPLICATION
        if isinstance(decision, rules.Install):
            self.because(f"{who}; its log begins at {decision.oldest}")
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
        pause, self._pause = self._pause, 0.0
        await trio.sleep(pause)
