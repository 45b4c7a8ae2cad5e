"""A term of leadership: from the won ballot until something deposes it.

This file is the role: it says which message does what, which tasks run, and why the term ends. Its
parts do the work, and each knows only the parts that it is given:

- `replication` appends to the log, and sends it to the followers;
- `commit` computes what is committed, and announces it;
- `reads` answers linearizable reads;
- `catchups` send the log to followers that lag behind;
- `handover` gives the leadership to another member, and `operator` does what an operator asks for.

A command's way: `submit` puts it into the window; `flush` makes a batch of all that wait. Then our
own store (`on_durable`) and each follower (`AppendPosition`) report how far they are durable. After
each report the quorum's position is computed anew, and what it has passed is applied and answered.

Rules that make this safe, with the file that keeps them:

- Only positions reported for our own term count, and our own only once durable (`commit`).
- Nothing is committed before an entry of our own term is on a quorum (`commit`).
- A read is answered once a quorum has echoed a number that was sent after the read came, or while
  a lease holds (`reads`).
- A leader that a quorum has not answered within the heartbeat timeout steps down (here).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Never

import trio

from ...errors import UnknownOutcomeError
from ...storage import Entry, EntryKind
from ...transport import (
    AdmissionRequest,
    AppendFlags,
    AppendPosition,
    CanvassPosition,
    CatchupPosition,
    CommitPosition,
    HeartbeatRequest,
    HeartbeatResponse,
    LogSubscribe,
    Message,
    NewLeadershipTerm,
    RequestVote,
    Scout,
    StaleLeader,
    TerminationAck,
)
from ..protocol import ballots, log_matching
from ..protocol.causes import Cause
from ..protocol.role import Ended, Role
from ..protocol.signal import Signal, overdue, sleep_to_shared_tick
from ..requests.forwarding import ForwardedRequest
from ..requests.request import COMMAND, CONTROL, Request
from ..state_machine.actions import SNAPSHOT
from .catchup_sender import CatchupSender
from .commit import Commit
from .disk_watch import DiskWatch
from .follower_progress import HEARD_AT, Follower, Followers
from .handover import Handover
from .log_clock import LogClock, TimerEntries
from .members.reconfiguration import Reconfiguration
from .operator import Operator
from .preference import Preference
from .reads import Reads
from .replication import Replication
from .term_event import APP_VERSION, MAX_REASON_CHARACTERS, TermEvent, encode_term_event, forced_at
from .termination import Termination
from .wait_replicas import ReplicaWaits

if TYPE_CHECKING:
    from ...storage import Store
    from ...transport import Links
    from ..clocks import Clocks
    from ..protocol.quorum import VoterId
    from ..state import MemberState
    from ..state_machine.actions import Actions
    from ..state_machine.applier import Applier, ReadLog
    from ..state_machine.snapshots import Snapshots
    from ..voter import Voter

log = logging.getLogger("quorate.node")


class Leadership(Role):
    """The leader's role; from LEADER_LOG_REPLICATION on, through CLOSED, until it is deposed.

    Args:
        term: the leadership term that was won.
        session_id: of the log publication, by which followers name the live log.
        state: of the member.
        store: its log.
        links: to the other members.
        applier: applies what is committed.
        snapshots: of the service.
        actions: executes what the log asks of all members.
        clocks: the members' clocks, by which the log's time goes.
        voter: answers candidates.
        read: reads the log for followers that lag, and repairs it.
        is_startup: the election was the first since the member started.

    Attributes:
        base: where the term begins: our append position when the ballot was won.
        followers: the other members, as the leader knows them.
    """

    def __init__(
        self,
        term: int,
        session_id: int,
        *,
        state: MemberState,
        store: Store,
        links: Links,
        applier: Applier,
        snapshots: Snapshots,
        actions: Actions,
        clocks: Clocks,
        voter: Voter,
        read: ReadLog,
        is_startup: bool,
    ) -> None:
        super().__init__()
        self.term, self.session_id = term, session_id
        # Durable: INIT waits until the disk has settled, and a ballot appends nothing.
        self.base = store.append_position
        self._is_startup = is_startup
        self._since = trio.current_time()
        self._state, self._store, self._links = state, store, links
        self._applier = applier
        self._snapshots = snapshots
        self._clocks = clocks
        self._voter = voter
        self._work = Signal()
        self._policy_snapshot_at = 0  # where the log has the last snapshot action of the policy
        self.followers = Followers(state, links, committed=applier.commit_position)
        self.reads = Reads(state, applier, self.followers)
        self._clock = LogClock(clocks.now_ms, store.last_timestamp_ms)
        self._disk = DiskWatch(state, store, applier)
        self.replication = self._make_replication()
        self._timer_entries = TimerEntries(self._clock, applier, self.replication)
        self.commit = self._make_commit()
        self._catchups = CatchupSender(term, session_id, store=store, read=read, links=links)
        self._waits = ReplicaWaits(applier, self.followers)
        self.handover = self._make_handover()
        self._termination = self._make_termination()
        self._reconfiguration = self._make_reconfiguration()
        self._membership_end = self._reconfiguration.awaited
        self._operator = self._make_operator(actions)
        self._resumed = actions.changed

    # --- its parts --------------------------------------------------------------------------------

    def _make_replication(self) -> Replication:
        return Replication(
            self.term,
            self.session_id,
            role=self,
            state=self._state,
            store=self._store,
            links=self._links,
            applier=self._applier,
            followers=self.followers,
            now_ms=self._clock.now_ms,
            reads=self.reads,
            before_append=self._disk.look,
        )

    def _make_commit(self) -> Commit:
        return Commit(
            self,
            base=self.base,
            state=self._state,
            store=self._store,
            applier=self._applier,
            followers=self.followers,
            replication=self.replication,
            on_commit=self._on_commit,
        )

    def _make_handover(self) -> Handover:
        return Handover(
            self.term,
            role=self,
            state=self._state,
            links=self._links,
            lease=self.reads.lease,
            followers=self.followers,
            replication=self.replication,
            resume=self.open,
        )

    def _make_termination(self) -> Termination:
        return Termination(
            self.term,
            state=self._state,
            links=self._links,
            followers=self.followers,
            replication=self.replication,
            resume=self.open,
        )

    def _make_reconfiguration(self) -> Reconfiguration:
        return Reconfiguration(
            self.base,
            state=self._state,
            store=self._store,
            links=self._links,
            applier=self._applier,
            followers=self.followers,
            replication=self.replication,
            handover=self.handover,
        )

    def _make_operator(self, actions: Actions) -> Operator:
        return Operator(
            self,
            state=self._state,
            snapshots=self._snapshots,
            actions=actions,
            replication=self.replication,
            handover=self.handover,
            termination=self._termination,
            waits=self._waits,
            reconfiguration=self._reconfiguration,
        )

    # --- for observers ----------------------------------------------------------------------------

    @property
    def accepting(self) -> bool:
        """Whether requests are put into the log."""
        return self.replication.accepting

    @property
    def publication_position(self) -> int:
        """Where the log ends, including what is not durable yet."""
        return self.replication.end

    def now_ms(self) -> int:
        """Return the log's time now: no later batch is stamped with an earlier one."""
        return self._clock.now_ms()

    # --- requests ---------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Take a request; a task makes the batch of this turn after the turn."""
        self._take([request])
        if isinstance(request, ForwardedRequest):
            self.commit.awaited = True
        self._work.notify()

    def submit_all(self, requests: list[Request]) -> None:
        """Take all requests of one turn of the event loop, and make a batch of them at once."""
        self._take(requests)
        # Nothing more of this turn is expected, so waiting for a task would only cost time.
        self.flush()

    def _take(self, requests: list[Request]) -> None:
        for request in requests:
            if request.kind is COMMAND:
                self.replication.window.waiting.append(request)
            elif request.kind is CONTROL:
                self._operator.submit(request)
            else:
                self.reads.submit(request)

    def withdraw_unsent(self) -> list[Request]:
        """Remove and return the requests that are not in the log: they have had no effect."""
        return [*self.reads.surrender(), *self.replication.window.withdraw()]

    def surrender(self) -> list[Request]:
        """End all requests: those in flight have an unknown outcome, the rest is returned."""
        # What is not in the log has had no effect, so it may go to the next leader (I-34).
        unsent = [*self.withdraw_unsent(), *self._operator.surrender()]
        # These are in the log, which the next leader may keep or cut: neither success nor failure
        # is certain.
        for request in self._applier.forget():
            self._state.counts.unknown_outcomes += 1
            request.done(
                UnknownOutcomeError(
                    f"the leader of term {self.term} lost its leadership with this write in "
                    "flight; it may or may not take effect"
                )
            )
        return unsent

    def flush(self) -> None:
        """Make batches of the commands that wait, and start a round for the reads that wait.

        Called at the end of a turn (`submit_all`), by `_flusher`, and by `_after_apply`.
        """
        # A batch that is made after the drain of a handover would be missing on the successor.
        if not self.replication.accepting or self.ended is not None:
            return
        self.replication.flush()
        # Before an entry of our own term is committed, a read might miss acknowledged writes.
        if self._applier.commit_position > self.base and self.reads.start_round():
            self.replication.announce_commit()
        # After both: each may have sent the commit position anyway.
        self.commit.announce_awaited()

    def open(self) -> None:
        """Take requests from now on: the election is closed, or a handover has failed."""
        self.replication.accepting = True
        self._work.notify()
        self._timer_entries.recheck()

    def open_term(self, *, reason: str, election_seconds: float) -> None:
        """Append the entry that opens the term; only after it may anything be committed.

        Args:
            reason: why the election began.
            election_seconds: how long it took.
        """
        # LEADER_INIT made the row of our term durable. Without it, the append would invent one.
        assert self._store.log_term == self.term, "the term has no row"
        # I-20: once a quorum has this entry, all before it is committed, too, whichever leader
        # wrote it.
        event = TermEvent(
            leader_member_id=self._state.member_id,
            log_session_id=self.session_id,
            term_base_log_position=self.base,
            app_version=APP_VERSION,
            reason=reason[:MAX_REASON_CHARACTERS],
            election_ms=round(election_seconds * 1000),
            ready_members=len(self.ready_voters()),
            forced=forced_at(self._store.recorded.forced, self.base),
        )
        self.replication.append([Entry(EntryKind.NEW_LEADERSHIP_TERM, encode_term_event(event))])

    # --- positions --------------------------------------------------------------------------------

    def on_durable(self, position: int) -> None:
        """Count our own recording like a follower's."""
        self._disk.look()
        self.replication.window.durable(position)
        # A catch-up sends only what is durable here; at the end of the log it waits for this.
        self._catchups.durable.notify()
        self._advance()

    def _on_append_position(self, follower: Follower, message: AppendPosition) -> None:
        # A position beyond our log would be a follower's error; it must not count.
        # F2: reported for our term, so it is the length of a common prefix. Only a canvass lowers
        # it.
        follower.match = max(follower.match, min(message.log_position, self.replication.end))
        self._clocks.heard(follower.member_id, message.timestamp)
        self.reads.echoed(follower, message.confirm_id)
        # Testing single flags is slow, and nearly always they say nothing new.
        if message.flags != AppendFlags.READY or not follower.fine:
            self._on_flags(follower, message.flags)
        self._advance()
        # After the commit: clients wait for that.
        follower.pulse.heartbeat()
        self._waits.look()
        # While requests are taken no task waits for positions; a wake-up for each report is not
        # free.
        if not self.replication.accepting:
            self.changed.notify()

    def _on_flags(self, follower: Follower, flags: AppendFlags) -> None:
        """Handle what a follower reports of itself."""
        # A new store in the place of a lost one must not count, though its member id has a vote.
        follower.votes = AppendFlags.NO_VOTE not in flags
        follower.has_room = AppendFlags.NO_ROOM not in flags
        held = self._snapshots.held
        if AppendFlags.READY in flags and not follower.ready:
            # It has joined the live log, so no log has to be kept for it any more.
            held.pop(follower.member_id, None)
            follower.ready = True
            self.changed.notify()
        if AppendFlags.CATCHUP in flags:
            self._catchups.stop_where_joined(follower)
        if AppendFlags.INSTALL in flags:
            # It still fetches a snapshot, and will need our log from there on. So pruning leaves
            # our present log, up to a bound, until it has joined.
            held.setdefault(follower.member_id, self._store.start_position)

    def _advance(self) -> None:
        """A position or an echo is new: commit what a quorum has, and answer reads."""
        self.commit.advance()
        # After the commit: a round may wait for what was just applied.
        under_way = self.reads.rounds or self.reads.waiting
        if under_way and self.reads.answer():
            self._work.notify()

    def _on_commit(self) -> None:
        """Something was committed: the window has room, and log time has advanced."""
        self._timer_entries.recheck()
        if self._membership_end and self._membership_end <= self._applier.commit_position:
            self._membership_end = 0
            self._reconfiguration.update()
        if self.replication.window.waiting or self.reads.waiting:
            self._work.notify()

    def quorum_heard_at(self) -> float:
        """When a quorum last followed us: the quorum-th most recent report, we included."""
        # Voters only: a standby, or a store without a vote, must not keep us in the lead (H18).
        heard = self.followers.by_voter(trio.current_time(), HEARD_AT)
        # At first nobody has reported for our term; that is no silence yet.
        return max(self._state.quorums.time(heard), self._since)

    def ready_voters(self) -> set[VoterId]:
        """Which voters, we included, have our term durably in their recording log."""
        # LEADER_INIT makes our own row durable before anybody asks for this (I-28).
        names = self._state.names
        ready = (names[each.member_id] for each in self.followers.voters if each.ready)
        return {self._state.own, *ready}

    # --- messages ---------------------------------------------------------------------------------

    def on_message(self, sender: int, message: Message) -> None:
        """Handle a message of a follower, of a candidate, or of the leader of another term."""
        follower = self.followers.get(sender)
        if follower is None or follower.gets_no_log:
            self._on_stranger(sender, message)
            return
        match message:
            # First, because nearly all messages are of this kind. A position of another term never
            # counts (F1, H2).
            case AppendPosition(leadership_term_id=self.term):
                self._on_append_position(follower, message)
            case CanvassPosition():
                self._on_canvass(follower, message)
            case LogSubscribe() | CatchupPosition() | AdmissionRequest() | TerminationAck() if (
                message.leadership_term_id == self.term
            ):
                self._on_follower(follower, message)
            case _:
                self._on_stranger(sender, message)

    def _on_stranger(self, sender: int, message: Message) -> None:
        """Handle a message that means the same from members that we do not send our log to."""
        match message:
            case RequestVote() | Scout():
                self._on_candidate(sender, message)
            case (
                NewLeadershipTerm(leadership_term_id=term)
                | CommitPosition(leadership_term_id=term)
                | AppendPosition(leadership_term_id=term)
                | StaleLeader(leadership_term_id=term)
            ) if term > self.term:
                self.end(
                    f"member {sender} is in term {term}",
                    Cause.NEWER_TERM,
                    message=(sender, message),
                )
            case NewLeadershipTerm(leadership_term_id=self.term):
                own = self._state.member_id
                # I-1 is broken, or the message is forged. A leader that goes on could make it
                # worse.
                self.end(
                    f"members {sender} and {own} both lead term {self.term}", Cause.TWO_LEADERS
                )
            case NewLeadershipTerm() | CommitPosition():
                # Its term is older than ours: it has been deposed, and does not know it.
                self._links.send(sender, StaleLeader(self.term, self._state.member_id))
            case HeartbeatRequest(correlation_id=number):
                # A standby asks. Each member that has a link to us may.
                self._links.send(sender, HeartbeatResponse(number))
            case _:
                pass  # of an older term, or of an election that is over

    def _on_follower(
        self,
        follower: Follower,
        message: LogSubscribe | CatchupPosition | AdmissionRequest | TerminationAck,
    ) -> None:
        """Handle what a follower of our term asks for, or has done."""
        match message:
            case LogSubscribe(log_session_id=self.session_id):
                self.replication.subscribe(follower)
            case LogSubscribe():
                pass  # it names the live log of another session
            case CatchupPosition():
                self._catchups.start(follower, message)
            case AdmissionRequest():
                self._reconfiguration.claim(follower, message)
            case TerminationAck():
                self._termination.on_ack(follower.member_id, message)

    def _on_candidate(self, sender: int, message: RequestVote | Scout) -> None:
        """Refuse a rival, unless it is the successor that we have asked to take over."""
        # Only while we wait for it: afterwards its request is that of any rival (H11).
        asked = sender == self.handover.successor
        if isinstance(message, Scout):
            if message.member_id == sender:
                self._voter.answer_prevote(message, in_ballot=asked, leader_alive=not asked)
        elif asked and ballots.may_take_over(message, own=self._state.log_end, term=self.term):
            # The next election sees its request first, and votes for it.
            words, cause = f"member {sender} takes over", Cause.HANDOVER
            self._finish(Ended(words, (sender, message), in_order=True, cause=cause))
        else:
            self._refuse(sender, message)

    def _refuse(self, sender: int, request: RequestVote) -> None:
        """Refuse a candidate, and let it follow if it can (Aeron: onRequestVote)."""
        self._voter.refuse(sender, request, leader_alive=True)
        follower = self.followers.get(sender)
        if follower is None or follower.gets_no_log:
            return  # it gets nothing of our log
        if request.candidate_member_id == sender and request.candidate_term_id <= self.term:
            # It has promised no term above ours: it need not lose its ballot and canvass first.
            self._links.send(sender, self.new_leadership_term(request.log_leadership_term_id))

    def on_other_store(self, member: int) -> None:
        """What we know of a follower is about a store that it has lost: begin anew."""
        self._catchups.stop(member)
        self.followers.renew(member)

    def on_membership(self) -> None:
        """Another configuration is in force."""
        self._membership_end = self._reconfiguration.awaited
        before = {*self.followers}
        self._reconfiguration.update()
        gets_no_log = {each.member_id for each in self.followers.values() if each.gets_no_log}
        for member in (before - {*self.followers}) | gets_no_log:
            self._catchups.stop(member)
            self._snapshots.held.pop(member, None)  # or log would be kept for it for ever

    def on_receiving(self, member: int) -> None:
        """A part of a long message has come: its sender is alive, though its report waits."""
        # Only once it has reported for our term: before that it may follow another leader.
        follower = self.followers.get(member)
        if follower is not None and follower.heard_at >= 0:
            follower.pulse.alive()

    def _on_canvass(self, follower: Follower, message: CanvassPosition) -> None:
        """Announce our term to a member that looks for a leader (Aeron: onCanvassPosition)."""
        term, sender = message.log_leadership_term_id, follower.member_id
        if follower.votes and term > self.term and self.replication.end == self.base:
            # The leader of that term had a quorum, which refuses ours: our election is lost.
            self.end(
                f"member {sender} has log of term {term}",
                Cause.NEWER_TERM,
                message=(sender, message),
            )
            return
        # It follows us no more, or not yet: batches on the link would be ignored.
        follower.rejoins()
        # In our term a member's log never gets shorter, unless its disk was lost. Then what it
        # reported before is gone, and must not count.
        follower.match = min(follower.match, message.log_position)
        self._catchups.stop(sender)
        if term <= self.term:
            self._answer(follower, message)

    def _answer(self, follower: Follower, canvass: CanvassPosition) -> None:
        """Send our term to a member that looks for a leader, unless it has just got that."""
        now, moment = trio.current_time(), self._state.timeouts.canvass_interval / 32
        # A partition of minutes holds up thousands of equal canvasses, which arrive in one moment.
        # Shorter: more answers to them. Longer: a member that asks again, since it has copied a
        # term or its answer was lost, waits until it repeats its canvass.
        if canvass == follower.canvass and now < follower.answered_at + moment:
            return
        answer = self.new_leadership_term(canvass.log_leadership_term_id)
        if self._links.send(follower.member_id, answer):
            follower.canvass, follower.answered_at = canvass, now

    def new_leadership_term(self, log_term: int) -> NewLeadershipTerm:
        """Build the announcement for a member whose log ends in `log_term` (protocol 2.6.1)."""
        term, base, terms = self.term, self.base, self._store.terms
        following = log_matching.next_term(terms, log_term, leader_term=term, base=base)
        return NewLeadershipTerm(
            log_leadership_term_id=log_term,
            next_leadership_term_id=following.term,
            next_term_base_log_position=following.base,
            next_log_position=following.end,
            leadership_term_id=term,
            term_base_log_position=base,
            log_position=self.replication.end,
            leader_recording_id=0,
            timestamp=self._clock.now_ms(),
            leader_member_id=self._state.member_id,
            log_session_id=self.session_id,
            app_version=APP_VERSION,
            is_startup=self._is_startup,
            commit_position=self._applier.commit_position,
            replication_position=self.commit.replication_position,
            terms=log_matching.spans_around(terms, log_term, leader_term=term, base=base),
            oldest_position=self._store.start_position,
            lease_ms=self._state.timeouts.lease_ms,
        )

    # --- tasks ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the tasks of the leader; until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._flusher)
            # A task of its own, so that nothing that waits for a disk can delay a heartbeat (H17).
            nursery.start_soon(self._heartbeats)
            nursery.start_soon(self.commit.run)
            # H18: followers refuse votes while they hear us. Without a quorum we would block every
            # election and serve nobody.
            nursery.start_soon(self._watch_quorum)
            nursery.start_soon(self._disk.run, self, self.replication, self.handover, nursery)
            nursery.start_soon(self._after_apply)
            nursery.start_soon(self._after_suspension)
            nursery.start_soon(self._timer_entries.run)
            nursery.start_soon(self._catchups.run)
            nursery.start_soon(self._operator.run)
            nursery.start_soon(self._reconfiguration.run)
            nursery.start_soon(self.reads.run)
            nursery.start_soon(self._snapshots_by_policy)

    async def prefer(self) -> Never:
        """Hand over to a member of a higher priority, once one is steady; until cancelled."""
        preference = Preference(
            state=self._state,
            links=self._links,
            applier=self._applier,
            followers=self.followers,
            handover=self.handover,
            free=lambda: self.replication.accepting and not self._operator.busy,
        )
        await preference.run()

    async def _flusher(self) -> Never:
        while True:
            await self._work.wait()
            self.flush()

    async def _after_apply(self) -> Never:
        """Continue with what had to wait until the commits were applied."""
        while True:
            await self._applier.caught_up.wait()
            self._advance()
            self.flush()

    async def _after_suspension(self) -> Never:
        """Continue with the commands that have waited for the cluster to be resumed."""
        while True:
            await self._resumed.wait()
            self.flush()

    async def _heartbeats(self) -> Never:
        while True:
            # The order matters: the announcement carries the number that was just made.
            self.reads.renew_lease()
            self.replication.announce_commit(now_ms=self._clock.now_ms())
            self.replication.mark()
            # Here as well: the deadline of a WAIT may come although no follower reports.
            self._waits.look()
            self.replication.window.refuse()
            await trio.sleep(self._state.timeouts.leader_heartbeat_interval)

    async def _watch_quorum(self) -> None:
        """Step down when a quorum has not been heard for too long."""
        timeout = self._state.timeouts.leader_heartbeat_timeout

        # `accepting` is False in the election, in which followers copy the log before they report,
        # and in a handover or a termination. These get twice the time.
        def due() -> float:
            return self.quorum_heard_at() + (timeout if self.replication.accepting else 2 * timeout)

        await overdue(due, timeout)
        self.end("inactive follower quorum", Cause.QUORUM_SILENT)

    async def _snapshots_by_policy(self) -> Never:
        """Have all members take a snapshot whenever the policy asks for one."""
        while True:
            await sleep_to_shared_tick(self._state.timeouts.leader_heartbeat_timeout)
            # In the log but not applied yet: a second action would be a second snapshot.
            asked = self._policy_snapshot_at > self._applier.applied_position
            if self.replication.accepting and self._snapshots.due and not asked:
                self._policy_snapshot_at = self.replication.append_action(SNAPSHOT)
