"""The role of a follower: from the adoption of a leader until it falls silent or is replaced.

While it lasts, it handles the other members' messages: first in the follower's states of the
election, then in CLOSED. It records the live log, reports how far its log is durable, commits what
the leader has committed, and watches its leader.

The log
=======
A batch is recorded only if it begins exactly where our log ends. Our log was a prefix of the
leader's when this role began, so it stays one. While a catch-up is under way, live batches that lie
ahead wait in memory until the catch-up has reached them (Aeron: replay merge).

A log that a snapshot is to replace was not compared with the leader's (`compared` is False).
Nothing of it is committed or reported, and nothing is added to it.

The end
=======
The role ends when the leader is silent for a heartbeat timeout, when the live log breaks off, when
a leader of a newer term is heard, or when the leader says that it leads no more.
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import TYPE_CHECKING

import trio

from ...errors import WireError
from ...storage import BatchHeader, check_received_untrusted
from ...transport import (
    HEARTBEAT_VERSION,
    NULL_VALUE,
    AdmissionRequest,
    AppendFlags,
    AppendPosition,
    CanvassPosition,
    CommitPosition,
    FrameStream,
    HeartbeatResponse,
    LeadershipCession,
    LogBatch,
    LogJoined,
    LogSubscribe,
    Message,
    NewLeadershipTerm,
    RequestVote,
    Scout,
    StaleLeader,
    StopCatchup,
    TerminationPosition,
    TimeoutNow,
)
from ..membership.admission import become_voter
from ..protocol import ballots, log_matching, quorum
from ..protocol.causes import Cause
from ..protocol.heartbeats import Heartbeats
from ..protocol.role import SLOWEST_DISK, Ended, Role
from ..protocol.signal import Signal, overdue, sleep_to_shared_tick
from ..state_machine.applier import PendingBatch
from .leader_probe import LeaderProbe
from .live_log import Ahead
from .replay_receiver import ReplayReceiver
from .termination import FollowerTermination

if TYPE_CHECKING:
    from ...storage import SnapshotHead, Store
    from ...transport import Links
    from ..clocks import Clocks
    from ..state import MemberState
    from ..state_machine.applier import Applier
    from ..state_machine.snapshots import Snapshots
    from ..voter import Voter
    from .catchup_rate import CatchupRate
    from .log_guard import LogGuard
    from .snapshot_install import SnapshotInstall

MAX_BUFFERED_BYTES = 64 << 20
"""Live batches that may wait for the catch-up to reach them, or for the disk. Smaller: a busy
leader leaves more followers behind, which begin anew. Larger: more memory."""

MAX_UNSYNCED_BYTES = 8 << 20
"""Appended bytes that are not durable yet, beyond which a catch-up waits for the disk. Smaller: the
disk idles. Larger: more memory, and a stalled disk is noticed later."""


class Following(Role):
    """The follower's role.

    Args:
        message: the NewLeadershipTerm by which the leader was adopted.
        way: how our log becomes the leader's.
        state: of the member.
        store: its log.
        links: to the leader.
        applier: applies what is committed.
        snapshots: of the service.
        clocks: our clock's reading travels with each report.
        voter: answers candidates.
        log_guard: refuses other leaders of our term.
        catchup_rate: throttles replays.
        install: fetches a snapshot if the leader has dropped the log that we need.

    Attributes:
        leader_id: the leader that we follow.
        term: the leader's term.
        base: where the leader's term begins.
        session_id: of the leader's log publication.
        recorded_term: of the batches that we record; an earlier one while we copy that.
        timestamp_ms: the leader's log time when it was adopted.
        lease_ms: for how long we promise to help nobody else to lead (:mod:`..protocol.promise`).
        flags: what our reports say about us.
        live_position: where the next live batch begins, None before the live log was joined.
        join_position: where the live log began.
        catchup_position: where the catch-up stream that arrived begins, None before.
        catchup_stopped: the leader reports that the catch-up is complete.
        notified_commit: highest commit position heard from the leader.
        pulse: the leader's heartbeats.
        probe: what the leader answered to a standby.
    """

    live_position: int | None = None
    join_position: int | None = None
    catchup_position: int | None = None
    catchup_stopped = False
    _confirm_id = 0
    _nursery: trio.Nursery | None = None  # while `run` is running
    _probes = False  # a task asks the leader

    def __init__(
        self,
        message: NewLeadershipTerm,
        *,
        way: log_matching.WayToJoin,
        state: MemberState,
        store: Store,
        links: Links,
        applier: Applier,
        snapshots: Snapshots,
        clocks: Clocks,
        voter: Voter,
        log_guard: LogGuard,
        catchup_rate: CatchupRate,
        install: SnapshotInstall,
    ) -> None:
        super().__init__()
        self.state = state
        self.store = store
        self.links = links
        self.applier = applier
        self.clocks = clocks
        self.voter = voter
        self.log_guard = log_guard
        self.catchup_rate = catchup_rate
        self._install = install
        self.way = way
        # A log that a snapshot is to replace was not compared with the leader's.
        self.compared = not isinstance(way, log_matching.Install)
        self.leader_id = message.leader_member_id
        self.term = self.recorded_term = message.leadership_term_id
        self.base = message.term_base_log_position
        self.session_id = message.log_session_id
        self.timestamp_ms = message.timestamp
        self.lease_ms = message.lease_ms
        self.flags = AppendFlags.NONE
        self.notified_commit = message.commit_position
        self.pulse = Heartbeats(state.timeouts.leader_heartbeat_interval, state.counts)
        # The announcement was a sign of life; without this the watch would end the role at once.
        self.pulse.alive()
        self._termination = self._make_termination(snapshots)
        self.probe = LeaderProbe(partial(links.send, self.leader_id))
        self._membership = Signal()
        self._reported_at = -math.inf
        self._ahead = Ahead()
        self._catchup_scope = trio.CancelScope()
        self._catchup: FrameStream | None = None
        # What the leader had committed by then may be durable here already.
        self._raise_commit()

    def _make_termination(self, snapshots: Snapshots) -> FollowerTermination:
        return FollowerTermination(
            self.term,
            self.leader_id,
            state=self.state,
            links=self.links,
            applier=self.applier,
            snapshots=snapshots,
        )

    # --- messages ---------------------------------------------------------------------------------

    def on_message(self, sender: int, message: Message) -> None:
        """Handle a message; one of a newer term ends the role."""
        match message:
            case LogBatch() if sender == self.leader_id:
                self._on_leader(message)  # by far the most frequent one
            case RequestVote() | Scout() | CanvassPosition() if sender == self.leader_id:
                # Links keep the order: it sent this after all that it sent as our leader. So it
                # knows that it leads no more, and answers what was forwarded to it.
                words, cause = f"leader {sender} has given up", Cause.LEADER_GAVE_UP
                self._finish(Ended(words, (sender, message), in_order=True, cause=cause))
            case RequestVote() | Scout():
                words, cause = f"member {sender} takes over", Cause.HANDOVER
                if self._goes_with(sender, message):
                    self._finish(Ended(words, (sender, message), in_order=True, cause=cause))
            case (
                NewLeadershipTerm(leadership_term_id=term) | CommitPosition(leadership_term_id=term)
            ) if term != self.term:
                self._on_other_term(sender, message, term)
            # I-1: a term has one leader, so this one is forged, or a bug.
            case NewLeadershipTerm() if sender != self.leader_id:
                self.log_guard.refuse(sender, f"{self.leader_id} leads term {self.term}")
            case _ if sender == self.leader_id:
                self._on_leader(message)
            case _:
                pass  # from a member that canvasses, or for a leader

    def _goes_with(self, sender: int, message: RequestVote | Scout) -> bool:
        """Answer a member that would lead in the place of our leader.

        Returns:
            Whether our leader has asked it to take over, and we go with it.
        """
        if isinstance(message, Scout):
            if message.member_id == sender:
                # `force` says that our leader asked the sender to take over. We need not know
                # whether it still does: the sender asks the leader, too.
                alive = self.leader_alive and not message.force
                self.voter.answer_prevote(message, in_ballot=message.force, leader_alive=alive)
            return False
        # H11: anybody else is refused while we hear our leader, however long its log is.
        asked = ballots.may_take_over(message, own=self.state.log_end, term=self.term)
        if asked and not self.voter.lease_promise.binds:
            return True
        # If asked, only our promise is in the way: we answer PROMISED, not LEADER_ALIVE. The leader
        # releases us when it gives up, and the candidate asks again.
        alive = self.leader_alive and not asked
        self.voter.refuse(sender, message, leader_alive=alive)
        return False

    def _on_other_term(self, sender: int, message: Message, term: int) -> None:
        if term > self.term:
            # Noted before the role ends: the next election must not stand against a leader that
            # lives.
            self.state.heard_leader(term, trio.current_time())
            self.end(
                f"member {sender} leads term {term}", Cause.NEWER_TERM, message=(sender, message)
            )
        else:
            # F1: it learns that it was deposed, and steps down (H1).
            self.links.send(sender, StaleLeader(self.term, self.state.member_id))

    def _on_leader(self, message: Message) -> None:
        """Handle a message of our leader; one of another term is out of date."""
        match message:
            # A late message of an earlier term must do nothing. Each case compares the term; for
            # the two that do not, `on_message` has done it.
            case LogBatch(leadership_term_id=self.term):
                self._on_live_batch(message)
            case CommitPosition():
                self._on_commit_position(message)
            case NewLeadershipTerm():
                self._heard()
                self._notified(message.commit_position)
            case LogJoined(leadership_term_id=self.term, log_session_id=self.session_id):
                # On an ordered link, so the next batch begins here; all before it comes by the
                # catch-up.
                self.live_position = self.join_position = message.join_position
                self.changed.notify()
            case StopCatchup(leadership_term_id=self.term):
                self.catchup_stopped = True
                self.changed.notify()
            case LeadershipCession(leadership_term_id=self.term, leader_member_id=leader):
                words, cause = f"leader {leader} closed in order", Cause.LEADER_CLOSED
                self._finish(Ended(words, gone=leader, in_order=True, cause=cause))
            case TerminationPosition(leadership_term_id=self.term, log_position=position):
                self._termination.stop_at(position)
            case TimeoutNow(leadership_term_id=self.term, member_id=self.state.member_id):
                words, cause = f"leader {self.leader_id} hands over", Cause.HANDOVER
                self._finish(Ended(words, in_order=True, mandate=message, cause=cause))
            case HeartbeatResponse():
                self.probe.on_answer(message)
            case _:
                pass

    def on_receiving(self, member: int) -> None:
        """Count a part of a message from the leader as a sign of life, and answer it."""
        if member == self.leader_id:
            # A long message on a slow link holds up the heartbeats behind it. Without an answer the
            # leader would miss us for as long as the message takes.
            self.pulse.alive()
            interval = self.state.timeouts.leader_heartbeat_interval
            if trio.current_time() >= self._reported_at + interval:
                self.report()

    @property
    def leader_alive(self) -> bool:
        """Whether the leader was heard within the heartbeat timeout."""
        timeout = self.state.timeouts.leader_heartbeat_timeout
        return quorum.is_active(self.pulse.heard_at, trio.current_time(), timeout)

    @property
    def leader_answers(self) -> bool:
        """Whether the leader will answer what we forwarded, though we follow it no more."""
        # It does so if it stepped down knowingly, or if it still leads and only we have failed. A
        # role that a message has ended out of order was deposed by a newer leader.
        if self.ended is not None and (self.ended.in_order or self.ended.message is not None):
            return self.ended.in_order
        return self.leader_alive

    def _heard(self) -> None:
        self.pulse.heartbeat()
        self.state.heard_leader(self.term, self.pulse.heard_at)

    def _on_commit_position(self, message: CommitPosition) -> None:
        self._heard()
        self.clocks.heard_leader(message.timestamp)
        self._notified(message.log_position)
        asked, timed = message.confirm_id > self._confirm_id, message.timestamp >= 0
        if asked:
            # Before the report, which carries the number: the promise must hold when the leader
            # counts it.
            self._promise(message.confirm_id)
        if asked or timed:  # only a heartbeat carries a time, and each heartbeat is answered
            self.report(timed=timed)

    def _promise(self, confirm_id: int) -> None:
        """Echo a number from now on, which promises to help nobody else to lead for a while."""
        # A role that has ended promises nothing: the message that ended it may release us from all
        # promises, and this one would come after that.
        if self.ended is None:
            self._confirm_id = confirm_id
            # The leader counts it from an earlier moment, so its lease ends before our promise.
            self.voter.lease_promise.give(self.lease_ms / 1000)

    def _notified(self, commit_position: int) -> None:
        # A commit position travels behind the batches that it covers, so we must have them all.
        if self.live_position is not None and commit_position > self.live_position:
            words = f"commit {commit_position}, but the live log came to {self.live_position}"
            self.end(words, Cause.LIVE_LOG)
        else:
            self.notified_commit = max(self.notified_commit, commit_position)
            self._raise_commit()

    def _raise_commit(self) -> None:
        """Commit what is committed at the leader and durable here."""
        if self.compared:
            # I-18: never above what is durable here. Entries that a power cut could take from us
            # are not applied.
            self.applier.commit(min(self.notified_commit, self.store.append_position))

    def on_link_up(self, member: int) -> None:
        """Wake a state that waits for our link to the leader."""
        if member == self.leader_id:
            self.changed.notify()

    def on_link_lost(self, member: int) -> None:
        """End the role if the leader's link to us has ended."""
        if member == self.leader_id:
            # The live log has no gaps only as long as that link lasts.
            self.end("log disconnected from leader", Cause.LINK_LOST)

    # --- the live log -----------------------------------------------------------------------------

    def subscribe(self) -> None:
        """Ask the leader for the live log."""
        request = LogSubscribe(self.term, self.session_id, self.state.member_id)
        self.links.send(self.leader_id, request)

    def _on_live_batch(self, message: LogBatch) -> None:
        if self.live_position is None:
            return  # from a subscription that we gave up
        try:
            # I-43: checked before it is recorded, or a bit that was flipped on the way would be in
            # our log.
            header = check_received_untrusted(message.batch)
        except WireError as error:
            self.end(f"the live log is damaged: {error}", Cause.LIVE_LOG)
            return
        # I-41: a link drops what it has no room for, so a gap is possible, and only this shows it.
        if header.position != self.live_position:
            words = f"gap in the live log: {header.position} after {self.live_position}"
            self.end(words, Cause.LIVE_LOG)
            return
        self.live_position = header.end
        if message.confirm_id > self._confirm_id:
            self._promise(message.confirm_id)
        # Submitted, not durable: the next batch need not wait until the last one is on disk.
        store, appended = self.store, self.store.submitted.append_position
        if header.position == appended:
            self._append(header, message.batch)
            # A disk that cannot keep up would let memory grow without end.
            if store.unsynced > MAX_BUFFERED_BYTES:
                self.end(f"our disk is {store.unsynced} bytes behind the live log", Cause.DISK)
        elif header.position > appended:
            self._ahead.put(header, message.batch)
            if self._ahead.bytes > MAX_BUFFERED_BYTES:
                words = f"catch-up fell {self._ahead.bytes} bytes behind the live log"
                self.end(words, Cause.LIVE_LOG)
        # Last, so that the disk is at work by now.
        self._heard()

    def _append(self, header: BatchHeader, batch: bytes) -> None:
        """Record a checked batch that begins where our log ends."""
        if self.ended is not None or not self.compared:
            return  # a stream's task may run for one more message after the end of the role
        # I-11, I-12: it would lie outside of its term's row, or would be of another term than we
        # follow.
        if header.term != self.recorded_term:
            words = f"a batch of term {header.term}, expected term {self.recorded_term}"
            self.end(words, Cause.LIVE_LOG)
            return
        self.store.append(batch, header=header)
        # Kept in memory until it is committed, so that it need not be read back to be applied.
        self.applier.offer(PendingBatch(header, batch, []))
        # What the batch commits is applied once the batch is durable: the leader waits for our
        # report of it, so that comes first.
        self.notified_commit = max(self.notified_commit, header.commit_position)

    def on_durable(self, position: int) -> None:  # noqa: ARG002 - the store is asked when needed
        """Report a durable position to the leader."""
        # First: clients of the leader wait for this report, and nobody waits for us to apply.
        self.report()
        self._raise_commit()
        self.changed.notify()

    def report(self, *, timed: bool = True) -> None:
        """Report to the leader how far our log is durable, and that we are alive.

        Args:
            timed: our clock's reading goes with it. False if a read at the leader waits for this
                report.
        """
        self._reported_at = trio.current_time()
        # I-27: a log that was not compared is no prefix that the leader may count.
        position = self.store.append_position if self.compared else 0
        # Asked each time: the log may have admitted our store since the last report.
        flags = self.flags if self.state.votes else self.flags | AppendFlags.NO_VOTE
        if self.state.low_on_disk:
            flags |= AppendFlags.NO_ROOM
        own, number = self.state.member_id, self._confirm_id
        now_ms = self.clocks.own_ms() if timed else NULL_VALUE
        self.links.send(
            self.leader_id, AppendPosition(self.term, position, own, flags, number, now_ms)
        )

    async def anchor(self) -> None:
        """Make the row of the leader's term durable; then our reports may say READY."""
        # `log_term` is that of the durable log. The row may be submitted already, with the term's
        # first batch: then `ensure_coherent` only waits until it is durable.
        if self.store.log_term < self.term:
            await self.store.ensure_coherent(
                term=self.term, base=self.base, end=None, timestamp_ms=self.timestamp_ms
            )

    # --- replays ----------------------------------------------------------------------------------

    async def receive_catchup(self, join_position: int, stream: FrameStream) -> None:
        """Record the leader's replay until it ends or the role does; in the stream's task."""
        if self.ended is not None or not self.compared:
            return
        # A leader whose stream broke may open another one before we notice: that one counts.
        self.catchup_position, self._catchup = join_position, stream
        self.changed.notify()
        self._catchup_scope.cancel()
        self._catchup_scope = trio.CancelScope()
        with self._catchup_scope, self.catchup_rate.active():
            await self._record(stream, stop=None)

    def catchup_deadline(self, moved_at: float) -> float:
        """Return when the catch-up has failed; it last moved on at `moved_at`."""
        # A batch may be large, and the network or the disk slow: a part of a batch is progress.
        heard_at = moved_at if self._catchup is None else self._catchup.heard_at
        patience = self.state.timeouts.leader_heartbeat_timeout
        patience += self.store.unsynced / SLOWEST_DISK
        return max(moved_at, heard_at, self.catchup_rate.paused_until) + patience

    async def record_replay(self, stream: FrameStream, stop: int) -> None:
        """Record a replay of earlier terms, up to `stop` or the end of the stream, durably."""
        with self.catchup_rate.active():
            await self._record(stream, stop=stop)
            # I-26: the state closes the term's row next, which must not promise more than the disk
            # has.
            while self.store.unsynced:
                await self.changed.wait()

    async def install_snapshot(self, oldest: int) -> SnapshotHead:
        """Begin anew with a snapshot from which the leader's log goes on.

        Args:
            oldest: where the leader's log begins.

        Raises:
            TransportError: no member has sent one; what has arrived is kept.
        """
        with self.catchup_rate.active():
            # From now on the leader keeps the log that we will need after the snapshot.
            self.flags = AppendFlags.INSTALL
            self.report()
            return await self._install.install(self.leader_id, oldest)

    async def _record(self, stream: FrameStream, *, stop: int | None) -> None:
        store = self.store
        replayed = ReplayReceiver(stream, self.term, lambda: store.submitted_position, stop)
        while not replayed.over:
            await self.catchup_rate.throttle(store.submitted_position, self.notified_commit)
            try:
                await replayed.receive(self.notified_commit)
            except Exception:
                # What has arrived is kept. (If we are cancelled instead, the role is over, or
                # another stream has taken the place of this one.)
                self._take(replayed)
                raise
            self._take(replayed)
            if self.ended is not None:
                return
            while store.unsynced > MAX_UNSYNCED_BYTES:
                await self.changed.wait()

    def _take(self, replayed: ReplayReceiver) -> None:
        """Record the batches of a replay, and the live batches that it has reached."""
        store = self.store
        live = self._ahead.reached(lambda: store.submitted_position)
        for header, batch in itertools.chain(replayed.take(), live):
            # Both streams may have brought it: the first copy counts, and any other is dropped.
            if header.position == store.submitted_position:
                self._append(header, batch)

    # --- tasks ------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Report, watch the leader, and wait for a termination; until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._reports)
                nursery.start_soon(self._watch_leader)
                nursery.start_soon(self._termination.run)
                self._nursery = nursery
                self._begin_to_probe()
        finally:
            self._nursery = None
            self._catchup_scope.cancel()

    async def _reports(self) -> None:
        self.report()  # after this first report, each heartbeat of the leader is answered by one
        while True:
            while not self.state.needs_claim:
                await self._membership.wait()
            # Repeated: the leader may have changed, or may not have taken requests when we asked.
            await self._ask_for_admission()
            await sleep_to_shared_tick(self.state.timeouts.leader_heartbeat_timeout / 2)

    def _begin_to_probe(self) -> None:
        """Ask the leader for signs of life from now on, if we are a standby."""
        if self.state.standby and self._nursery is not None and not self._probes:
            self._probes = True
            self._nursery.start_soon(self._probe_leader)

    async def _probe_leader(self) -> None:
        """Ask the leader for a sign of life again and again, while we are a standby."""
        while self.state.standby:
            # An older leader would end the link, since it does not know the question.
            if self.state.versions.get(self.leader_id, 0) >= HEARTBEAT_VERSION:
                self.probe.ask()
            await sleep_to_shared_tick(self.state.timeouts.leader_heartbeat_interval)
        self._probes = False

    async def _ask_for_admission(self) -> None:
        """Claim our seat for our store, once we have the leader's log."""
        # It may be applied already, by a snapshot, or before a crash that came too soon.
        applied = self.state.configurations.at(self.applier.applied_position)
        if await become_voter(self.store, applied):
            self.links.set_history(self.store.voting_status.history)
        elif AppendFlags.READY in self.flags:
            own = self.store.identity
            request = AdmissionRequest(self.term, own.member_id, own.instance_id)
            self.links.send(self.leader_id, request)

    def on_membership(self) -> None:
        """Another configuration is in force: our seat in it may be to claim."""
        self._membership.notify()
        self._begin_to_probe()

    async def _watch_leader(self) -> None:
        timeout = self.state.timeouts.leader_heartbeat_timeout
        # Judged only after all that waits in the sockets was read: after a pause of our own the
        # leader would seem silent.
        await overdue(lambda: self.pulse.heard_at + timeout, timeout)
        self.pulse.lost()
        self.end("leader heartbeat timeout", Cause.HEARTBEAT_TIMEOUT)
