"""A term of leadership: from the won ballot until something deposes us.

The hot path is short and synchronous. Requests gather while the loop turns. At the end of a client
port's turn, or when a task comes round that was woken once however many came, `flush` makes a batch
of all of them, encodes it once, sends the same bytes to every follower and hands them to the
recorder. When that or a follower reports a position, the quorum's is computed anew; what it passed
is applied, and each reply leaves from there. Reads wait for a round that all of a turn share.

Rules that make this safe:

- Only positions reported for our own term count, and our own only once durable.
- Nothing is committed before an entry of our own term is on a quorum (Raft §5.4.2; it is why the
  new-leadership-term entry is written first).
- A read is answered once a quorum has echoed a number sent after it came, or while a lease holds.
- A leader that a quorum has not answered within the heartbeat timeout steps down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

import trio

from ...errors import UnknownOutcomeError
from ...storage import BatchHeader, Entry, EntryKind, encode_batch
from ...transport import (
    NULL_VALUE,
    AdmissionRequest,
    AppendFlags,
    AppendPosition,
    CanvassPosition,
    CatchupPosition,
    CommitPosition,
    LogBatch,
    LogJoined,
    LogSubscribe,
    Message,
    NewLeadershipTerm,
    RequestVote,
    Scout,
    StaleLeader,
    TerminationAck,
    encode,
)
from ..protocol import rules
from ..protocol.role import Ended, Role, Signal, overdue
from ..requests.gateway import COMMAND, QUERY, Request
from ..state_machine.applier import Waiting
from ..voter import answer_scout, refuse_rival
from .catchup_sender import Catchups
from .commit import CommitAnnouncements, announcement
from .disk_watch import DiskWatch
from .follower_progress import Follower, followers_of
from .operator import Controls
from .reads import Reads
from .replication import Proposals, entries_of
from .term_event import encode_term_event
from .timekeeper import Timekeeper

if TYPE_CHECKING:
    from ..state import Core
    from .term_event import TermEvent


class Leadership(Role):
    """The leader's role; from LEADER_LOG_REPLICATION on, through CLOSED, until it is deposed.

    Args:
        core: of the member.
        term: the leadership term that was won.
        session_id: of the log publication, for followers to name the live log.

    Attributes:
        base: where the term begins: our append position when the ballot was won.
        publication_position: end of the log with what is not durable yet.
        accepting: requests are taken into the log: not during the election, a handover or the end.
        announced: the commit position that the followers were told last.
        timekeeper: of the log's time.
    """

    def __init__(self, core: Core, term: int, session_id: int) -> None:
        super().__init__()
        self.core = core
        self.term = term
        self.session_id = session_id
        self.base = core.store.append_position
        self.publication_position = self.base
        self.is_startup = False
        self.accepting = False
        self.replication_position = 0
        self.followers = followers_of(core)
        self.catchups = Catchups(self)
        self.controls = Controls(self)
        self.reads = Reads(core, self.followers)
        self.proposals = Proposals(core)
        self._since = trio.current_time()
        self._disk = DiskWatch(self)
        self.timekeeper = Timekeeper(self)
        self._work = Signal()
        self._announcements = CommitAnnouncements(self)
        self.announced = 0

    # --- requests ---------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Take a request of a client; the turn's batch is formed when the loop comes round."""
        self._take([request])
        self._work.notify()

    def submit_all(self, requests: list[Request]) -> None:
        """Take what came in one turn of the loop, and form a batch of it."""
        self._take(requests)
        self.flush()

    def _take(self, requests: list[Request]) -> None:
        for request in requests:
            if request.kind is COMMAND:
                self.proposals.waiting.append(request)
            elif request.kind is QUERY:
                self.reads.submit(request)
            else:
                self.controls.submit(request)

    def unsent(self) -> list[Request]:
        """Give back the requests that are not in the log: nothing was done of them."""
        return [*self.reads.surrender(), *self.proposals.withdraw()]

    def surrender(self) -> list[Request]:
        """End all requests: in flight means unknown outcome; return those that were never sent."""
        unsent = [*self.unsent(), *self.controls.surrender()]
        for request in self.core.applier.forget():
            request.done(
                UnknownOutcomeError(
                    f"the leader of term {self.term} lost its leadership with this write in "
                    "flight; it may or may not take effect"
                )
            )
        return unsent

    def flush(self) -> None:
        """Form batches of what waits, as far as the window allows, and start a round of reads."""
        if not self.accepting or self.ended is not None:
            return
        while requests := self.proposals.take():
            self.append(entries_of(requests), requests)
        # Before an entry of our own term is committed a read may miss acknowledged writes.
        if self.core.applier.commit_position > self.base and self.reads.start_round():
            self.announce_commit()

    def append(self, entries: list[Entry], requests: list[Request] | None = None) -> None:
        """Append a batch of entries to the log: to the followers and to our own recorder."""
        core = self.core
        self._disk.look()
        self.announced = core.applier.commit_position
        position, now_ms = self.publication_position, self.timekeeper.now_ms()
        batch = encode_batch(
            entries,
            term=self.term,
            position=position,
            timestamp_ms=now_ms,
            commit_position=self.announced,
        )
        frame = encode(LogBatch(self.term, self.reads.confirm_id, batch))
        for follower in self.followers.values():
            if follower.live:
                follower.live = core.links.send_frame(follower.member_id, frame)
        size, count = len(batch), len(entries)
        self.publication_position += size
        self.proposals.sent(self.publication_position, sum(r.commands for r in requests or ()))
        header = BatchHeader(self.term, position, size, count, now_ms, self.announced)
        core.applier.offer(Waiting(header, None, entries, requests or [None] * count))
        core.store.append(batch, header=header)

    def append_term_event(self, event: TermEvent) -> None:
        """Append the entry that opens the term; only behind it may anything be committed."""
        self.append([Entry(EntryKind.NEW_LEADERSHIP_TERM, encode_term_event(event))])

    def append_action(self, action: bytes) -> int:
        """Have every member do something (:mod:`.actions`); return where."""
        self.append([Entry(EntryKind.CLUSTER_ACTION, action)])
        return self.publication_position

    # --- positions --------------------------------------------------------------------------------

    def on_durable(self, position: int) -> None:  # noqa: ARG002 - the store is asked when needed
        """Our own recording counts like a follower's."""
        self._disk.look()
        self.catchups.durable.notify()
        self._advance()

    def _on_append_position(self, follower: Follower, message: AppendPosition) -> None:
        follower.match = max(follower.match, min(message.log_position, self.publication_position))
        self.core.clocks.heard(follower.member_id, message.timestamp)
        self.reads.echoed(follower, message.confirm_id)
        # To look for one flag among several takes long, and mostly they say nothing new.
        if message.flags != AppendFlags.READY or not (follower.ready and follower.votes):
            self._on_flags(follower, message.flags)
        self._advance()
        follower.pulse.beat()  # clients wait for what is above
        self.controls.replicas.look()
        if not self.accepting:
            self.changed.notify()

    def _on_flags(self, follower: Follower, flags: AppendFlags) -> None:
        """Note what a follower says of itself."""
        follower.says(has_vote=AppendFlags.NO_VOTE not in flags)
        if AppendFlags.READY in flags and not follower.ready:
            self.core.snapshots.held.pop(follower.member_id, None)
            follower.ready = True
            self.changed.notify()
        if AppendFlags.CATCHUP in flags:
            self.catchups.stop_where_joined(follower)
        if AppendFlags.INSTALL in flags:
            start, held = self.core.store.start_position, self.core.snapshots.held
            held.setdefault(follower.member_id, start)

    def _advance(self) -> None:
        """Compute the quorum's position; commit and apply what it passed; answer reads."""
        reads = self.reads
        if self.replication_position < self.publication_position:
            durable = self.core.store.recorded.append_position
            matches = [durable, *[each.match for each in self.voters]]
            self._advance_to(min(rules.quorum_position(matches, self.core.size), durable))
        under_way = reads.rounds or reads.waiting
        if under_way and reads.answer([each.confirm_id for each in self.voters]):
            self._work.notify()

    def _advance_to(self, reached: int) -> None:
        if reached > self.replication_position:
            self.replication_position = reached
            self.changed.notify()
        applier = self.core.applier
        if reached > applier.commit_position and rules.may_commit(reached, base=self.base):
            self.proposals.committed(reached)
            self._announcements.committing(reached)
            applier.commit(reached)
            self.timekeeper.look_again()
            if self.proposals.waiting or self.reads.waiting:
                self._work.notify()
            self._announcements.committed()

    def announce_commit(self, reached: int = 0, now_ms: int = NULL_VALUE) -> None:
        """Tell the followers the commit position, and ask them to echo the confirmation number."""
        self.announced = commit = max(reached, self.core.applier.commit_position)
        own, number = self.core.member_id, self.reads.confirm_id
        self.core.broadcast(CommitPosition(self.term, commit, own, number, now_ms))

    def quorum_heard_at(self) -> float:
        """When we last knew a quorum behind us: the quorum-th most recent report, we included."""
        heard = [trio.current_time(), *(each.heard_at for each in self.voters)]
        return max(rules.quorum_time(heard, self.core.size), self._since)

    def ready_members(self) -> int:
        """How many members, we included, have our term durably in their recording log."""
        return 1 + sum(follower.ready for follower in self.voters)

    @property
    def voters(self) -> list[Follower]:
        """The followers that count: those that have a vote (see :mod:`.admission`)."""
        return [each for each in self.followers.values() if each.votes]

    # --- messages ---------------------------------------------------------------------------------

    def on_message(self, sender: int, message: Message) -> None:
        """Hear a follower, a canvasser, a candidate, or the leader of a newer term."""
        follower = self.followers[sender]
        match message:
            case AppendPosition(leadership_term_id=self.term):
                self._on_append_position(follower, message)
            case CanvassPosition():
                self._on_canvass(follower, message)
            case RequestVote() | Scout():
                self._on_candidate(sender, message)
            case AdmissionRequest() | TerminationAck() if message.leadership_term_id == self.term:
                self.controls.on_follower(follower, message)
            case LogSubscribe(leadership_term_id=self.term, log_session_id=self.session_id):
                self._on_subscribe(follower)
            case CatchupPosition(leadership_term_id=self.term):
                self.catchups.start(follower, message)
            case (
                NewLeadershipTerm(leadership_term_id=term)
                | CommitPosition(leadership_term_id=term)
                | AppendPosition(leadership_term_id=term)
                | StaleLeader(leadership_term_id=term)
            ) if term > self.term:
                self.end(f"member {sender} lives in term {term}", message=(sender, message))
            case NewLeadershipTerm(leadership_term_id=self.term):
                self.end(f"members {sender} and {self.core.member_id} both lead term {self.term}")
            case NewLeadershipTerm() | CommitPosition():
                self.core.send(sender, StaleLeader(self.term, self.core.member_id))
            case _:
                pass  # of an older term, or about an election that is over

    def _on_candidate(self, sender: int, message: RequestVote | Scout) -> None:
        """Refuse a rival, unless we have asked it to take over and still wait for it."""
        asked = sender == self.controls.successor
        if isinstance(message, Scout):
            if message.member_id == sender:
                answer_scout(self.core, message, in_ballot=asked, leader_alive=not asked)
        elif asked and rules.may_take_over(message, own=self.core.log_end, term=self.term):
            self._finish(Ended(f"member {sender} takes over", (sender, message), in_order=True))
        else:
            refuse_rival(self, sender, message)

    def on_receiving(self, member: int) -> None:
        """A follower whose report waits behind a long message of its own is there all the same."""
        if (follower := self.followers[member]).heard_at >= 0:
            follower.pulse.sign()

    def _on_canvass(self, follower: Follower, message: CanvassPosition) -> None:
        """Tell a member that looks for a leader where its log stands (Aeron: onCanvassPosition)."""
        term, who = message.log_leadership_term_id, follower.member_id
        if follower.votes and term > self.term and self.publication_position == self.base:
            # The leader of that term had a quorum, which refuses ours: our election is lost.
            self.end(f"member {who} has log of term {term}", message=(who, message))
            return
        follower.rejoins()
        # A member's log of our term never gets shorter, unless its disk was lost.
        follower.match = min(follower.match, message.log_position)
        self.catchups.stop(who)
        if term <= self.term:
            self.core.send(who, self.new_leadership_term(term))

    def new_leadership_term(self, log_term: int) -> NewLeadershipTerm:
        """Build the message for a member whose log ends in `log_term`."""
        return announcement(self, log_term, timestamp_ms=self.timekeeper.now_ms())

    def _on_subscribe(self, follower: Follower) -> None:
        """Let a follower join the live log: it gets every batch from here on, in order."""
        position = self.publication_position
        joined = LogJoined(self.term, self.session_id, position, self.core.member_id)
        follower.live = self.core.links.send_frame(follower.member_id, encode(joined))
        follower.join_position = position

    # --- tasks ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Send heartbeats, watch the quorum, form batches, serve catch-ups; until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._flusher)
            nursery.start_soon(self._heartbeats)
            nursery.start_soon(self._announcements.run)
            nursery.start_soon(self._watch_quorum)
            nursery.start_soon(self._disk.run)
            nursery.start_soon(self._go_on)
            nursery.start_soon(self.timekeeper.run)
            nursery.start_soon(self.catchups.run)
            nursery.start_soon(self.controls.run)
            nursery.start_soon(self.reads.run)
            nursery.start_soon(self.controls.by_rule)

    def open(self) -> None:
        """Take requests from now on (the election is closed)."""
        self.accepting = True
        self._work.notify()
        self.timekeeper.look_again()

    async def drain(self) -> None:
        """Take no more requests, and wait until those in flight are committed."""
        self.accepting = False
        applier = self.core.applier
        while (self.proposals.in_flight or applier.lagging) and self.ended is None:
            await applier.progressed.wait()

    async def level(self, follower: Follower) -> None:
        """Wait until a follower has all of our log; we must not be accepting any more."""
        while follower.match < self.publication_position:
            await self.changed.wait()

    async def _flusher(self) -> Never:
        while True:
            await self._work.wait()
            self.flush()

    async def _go_on(self) -> Never:
        """Go on with what had to wait until what is committed was applied."""
        while True:
            await self.core.applier.caught_up.wait()
            self._advance()
            self.flush()

    async def _heartbeats(self) -> Never:
        while True:
            self.reads.renew_lease()
            self.announce_commit(now_ms=self.timekeeper.now_ms())
            self.controls.replicas.look()
            await trio.sleep(self.core.timeouts.leader_heartbeat_interval)

    async def _watch_quorum(self) -> None:
        """Step down when a quorum has not been heard for too long."""
        timeout = self.core.timeouts.leader_heartbeat_timeout

        # In the election followers replicate and replay before they report; likewise in a handover.
        def due() -> float:
            return self.quorum_heard_at() + (timeout if self.accepting else 2 * timeout)

        await overdue(due, timeout)
        self.end("inactive follower quorum")
