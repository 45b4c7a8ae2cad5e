"""Replication: batches of commands, the window of batches in flight, and each follower's live log.

The hot path is short and synchronous. Commands gather in the window while the event loop turns. At
the end of a client port's turn `flush` makes a batch of all of them, encodes it once, sends the
same bytes to every follower, and gives them to our own store.

Commit positions travel the same way: in the header of the next batch, or, if there is none, in a
message (`announce_commit`). So this file owns all that followers are sent in order.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import trio

from ...errors import RefusedError
from ...storage import DESCRIPTOR_BYTES, BatchHeader, Entry, EntryKind, encode_batch
from ...transport import NULL_VALUE, CommitPosition, LogBatch, LogJoined, encode
from ..requests.journey import Journey
from ..requests.request import still_allowed
from ..state_machine.applier import PendingBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...storage import Store
    from ...transport import Links
    from ..protocol.role import Role
    from ..requests.request import Request
    from ..state import MemberState
    from ..state_machine.applier import Applier
    from .follower_progress import Follower, Followers
    from .reads import Reads

MAX_IN_FLIGHT_BYTES: Final = 32 << 20
"""Bytes of log in flight, after which no batch is added. If smaller, large values wait for each
other. If larger, these bytes and one more request of the largest size overflow a link's queue."""


MARKS: Final = 512
"""Heartbeats for which the leader knows where its log ended. Fewer: the lag of a slow follower is
shown as shorter than it is. More: memory."""


class Window:
    """The commands of a leadership that are in no batch yet, and its batches in flight.

    Args:
        state: of the member.
        applier: knows what is committed, and whether it lags.

    Attributes:
        waiting: commands that are in no batch yet, in the order of their arrival.
        in_flight: the uncommitted batches.
    """

    def __init__(self, state: MemberState, applier: Applier) -> None:
        self._state = state
        self._applier = applier
        self.waiting: list[Request] = []
        self.in_flight: deque[Journey] = deque()
        self._now = trio.lowlevel.current_clock().current_time  # cheaper, per batch

    def withdraw(self) -> list[Request]:
        """Remove and return the commands that are in no batch."""
        waiting, self.waiting = self.waiting, []
        return waiting

    def take(self) -> list[Request]:
        """Remove and return commands for one batch; none if it has to wait.

        As many as fit into a batch, and at least one however large it is.
        """
        if not self.waiting or not self._has_room():
            return []
        if self._state.suspended:
            self.refuse()
            return []
        # Clients may have gone, or lost the right; after this point their commands will take effect
        # all the same.
        self.waiting = [*still_allowed(self.waiting)]
        size, limit = 0, self._state.config.limits.max_batch_bytes
        for count, request in enumerate(self.waiting):
            size += len(request.payload) + DESCRIPTOR_BYTES
            # A larger command is a batch of its own; it must not block the log for ever.
            if size > limit and count:
                taken, self.waiting = self.waiting[:count], self.waiting[count:]
                break
        else:
            taken, self.waiting = self.waiting, []
        return taken

    def refuse(self) -> None:
        """While the cluster is suspended, refuse the commands that do not wait, or have waited.

        A backup of all partitions suspends each for a moment, so there they wait for a while.
        """
        brief = self._state.config.partition.folder is not None
        limit = self._now() if brief else math.inf
        words = "the cluster is suspended by an operator; nothing was done"
        if brief:
            seconds = self._state.config.limits.park_seconds
            words = (
                f"{self._state.config.cluster} is suspended, by an operator or by a backup that "
                f"was killed; nothing was done, after {seconds:g} s of waiting. To have it take "
                "writes again: quorate control resume"
            )
        # Each refusal may make its client send the next command, which is refused or waits too.
        while self._state.suspended and self.waiting:
            overdue = [each for each in self.waiting if each.deadline <= limit]
            if not overdue:
                break
            self.waiting = [each for each in self.waiting if each.deadline > limit]
            for request in overdue:
                request.done(RefusedError(words))

    def _has_room(self) -> bool:
        """Whether one more batch may be in flight; one always may."""
        applier, most = self._applier, self._state.config.limits.batches_in_flight
        # Batches that are committed faster than they are applied would pile up in memory.
        if applier.lagging:
            return False
        if not self.in_flight:
            return True
        size = self.in_flight[-1].end - applier.commit_position
        return len(self.in_flight) < most and size < MAX_IN_FLIGHT_BYTES

    def sent(self, header: BatchHeader, requests: list[Request] | None) -> Journey:
        """Note that a batch is in flight; return its way so far.

        Args:
            header: of the batch.
            requests: those in it, the one that came first at its begin; None if it has none.
        """
        taken = now = self._now()
        if requests:
            # Each got its deadline when this member took it.
            taken = min(requests[0].deadline - self._state.config.limits.park_seconds, now)
        journey = Journey(
            header.position, header.end, header.count, header.timestamp_ms, taken, now
        )
        self.in_flight.append(journey)
        return journey

    def durable(self, position: int) -> None:
        """Note that our own disk has everything below `position`."""
        now = self._now()
        for journey in self.in_flight:
            if journey.end > position:
                break
            # Batches of a group before have theirs already.
            journey.durable = journey.durable or now

    def committed(self, position: int) -> None:
        """Note that everything below `position` is committed."""
        now, took = self._now(), self._state.counts.commit_duration
        while self.in_flight and self.in_flight[0].end <= position:
            journey = self.in_flight.popleft()
            journey.committed = now
            took.observe(now - journey.appended, journey.entries)


class Replication:
    """Appends to the log of one term, and sends it to the followers.

    Args:
        term: the leadership term.
        session_id: names the live log of this term.
        role: the leader's role; after its end nothing is flushed.
        state: of the member.
        store: its log.
        links: to the followers.
        applier: applies what is committed, with the requests that wait for it.
        followers: the other members.
        now_ms: returns the log's time, with which batches are stamped.
        reads: its confirmation number travels with each batch and announcement.
        before_append: called before a batch is given to the store.

    Attributes:
        window: commands that wait, and batches in flight.
        end: where the log ends, including what is not durable yet.
        accepting: requests are put into the log; not during the election, a handover or the end.
            `Leadership.open` sets it; `drain` and `Handover` clear it.
        announced: the highest commit position that was sent to the followers.
    """

    def __init__(
        self,
        term: int,
        session_id: int,
        *,
        role: Role,
        state: MemberState,
        store: Store,
        links: Links,
        applier: Applier,
        followers: Followers,
        now_ms: Callable[[], int],
        reads: Reads,
        before_append: Callable[[], None],
    ) -> None:
        self.window = Window(state, applier)
        self.end = store.append_position
        self.accepting = False
        self.announced = 0
        self._term = term
        self._session_id = session_id
        self._role = role
        self._own = state.member_id
        self._store = store
        self._links = links
        self._applier = applier
        self._followers = followers
        self._now_ms = now_ms
        self._reads = reads
        self._before_append = before_append
        self._marks: deque[tuple[int, float]] = deque(maxlen=MARKS)

    @property
    def in_flight(self) -> bool:
        """Whether a batch is not committed yet."""
        return bool(self.window.in_flight)

    # --- appending --------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make batches of the commands that wait, as far as the window allows."""
        while requests := self.window.take():
            kind = EntryKind.COMMAND  # looked up once: a member of an enumeration is slow to get
            entries = [
                Entry(kind, each.payload, each.flags, each.session, each.sequence, each.principal)
                for each in requests
            ]
            self.append(entries, requests)

    def append(self, entries: list[Entry], requests: list[Request] | None = None) -> None:
        """Append a batch of entries: send it to the live followers, and have it recorded here.

        Args:
            entries: of the batch.
            requests: for each entry the request that waits for its reply; none unless given.
        """
        # The disk watch counts from here if nothing waited to be written before.
        self._before_append()
        # The header carries it, so no message has to.
        self.announced = self._applier.commit_position
        # Nothing is awaited from here to the end: two batches must never get one position (I-16).
        position, now_ms = self.end, self._now_ms()
        batch = encode_batch(
            entries,
            term=self._term,
            position=position,
            timestamp_ms=now_ms,
            commit_position=self.announced,
        )
        # Encoded once: all followers get the same bytes, whose checksum they check.
        frame = encode(LogBatch(self._term, self._reads.confirm_id, batch))
        # Sent before it is on our own disk: the disks work in parallel. Only durable copies count,
        # so the order is free (I-19).
        for follower in self._followers.values():
            if follower.live:
                # A full or broken link drops the frame: the follower has a gap from here on, and
                # joins the live log again when it has noticed.
                follower.live = self._links.send_frame(follower.member_id, frame)
        size, count = len(batch), len(entries)
        self.end += size
        header = BatchHeader(self._term, position, size, count, now_ms, self.announced)
        journey = self.window.sent(header, requests)
        # Offered before it can become durable: when it is committed, the applier has it in memory,
        # and need not read it back.
        self._applier.offer(
            PendingBatch(header, None, entries, requests or [None] * count, journey=journey)
        )
        self._store.append(batch, header=header)

    def append_action(self, action: bytes, principal: int = 0) -> int:
        """Append an action of all members (:mod:`..state_machine.actions`); return its position.

        Args:
            action: its name.
            principal: number of the user that asked for it; 0 for the leader itself.
        """
        self.append([Entry(EntryKind.CLUSTER_ACTION, action, principal=principal)])
        return self.end

    def mark(self) -> None:
        """Note where the log ends now; to be called at each heartbeat."""
        self._marks.append((self.end, trio.current_time()))

    def lag_seconds(self, position: int) -> float | None:
        """Return for how long, at most, a follower is behind whose log ends at `position`.

        It has all that had been appended so long ago. Exact to a heartbeat interval; not more than
        `MARKS` of them. None if that was before this leadership, whose leader can't know it.
        """
        if position >= self.end:
            return 0.0
        # The last mark that it has reached.
        place = bisect_right(self._marks, position, key=itemgetter(0)) - 1
        if place < 0 and len(self._marks) < MARKS:
            # The age of a new leadership says nothing: the follower may be hours behind.
            return None
        return trio.current_time() - self._marks[max(place, 0)][1]

    # --- to the followers -------------------------------------------------------------------------

    def subscribe(self, follower: Follower) -> None:
        """Let a follower join the live log: it gets every batch from here on, in order."""
        # Sent on the same ordered link as the batches: the next one begins exactly at `position`.
        position = self.end
        joined = LogJoined(self._term, self._session_id, position, self._own)
        follower.live = self._links.send_frame(follower.member_id, encode(joined))
        # Fixed here: a catch-up that compared with the end of the log would chase it (H9).
        follower.join_position = position

    def announce_commit(self, reached: int = 0, now_ms: int = NULL_VALUE) -> None:
        """Send the commit position, and ask the followers to echo the confirmation number.

        Args:
            reached: committed, although the applier does not know it yet.
            now_ms: the log's time, which a heartbeat carries.
        """
        # Followers may commit it before we apply it: a quorum has it, and that is all that counts.
        self.announced = commit = max(reached, self._applier.commit_position)
        number = self._reads.confirm_id
        self._links.broadcast(CommitPosition(self._term, commit, self._own, number, now_ms))

    # --- pauses -----------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Stop taking requests, and wait until the batches in flight are committed and applied."""
        # Before the wait, or a busy leader would never be drained.
        self.accepting = False
        applier = self._applier
        # Applied as well as committed: only then all clients have their replies.
        while (self.in_flight or applier.lagging) and self._role.ended is None:
            await applier.progressed.wait()

    async def wait_caught_up(self, follower: Follower) -> None:
        """Wait until a follower has the whole log; nothing may be appended during that."""
        while follower.match < self.end:
            await self._role.changed.wait()
