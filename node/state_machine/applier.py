"""Applies the committed part of the log to the service, in order, each entry once.

The fast path
    A batch that was just appended waits here in memory. When the commit position passes it, it is
    applied at once, in the caller's turn of the event loop, for at most one slice of time.

The rest
    What a slice leaves, and what is not in memory (after a start, or on a lagging member), is the
    work of :meth:`Applier.run`, which takes turns with other tasks.

What never happens
    Nothing above the commit position is applied. So a truncation never has to undo anything.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Never, TypeAlias

import attrs
import trio

from ...metrics import Histogram
from ...storage import CheckedEntries, EntryKind, Store, check_batch_untrusted
from ..protocol.signal import Signal
from ..requests.journey import SlowBatches
from .service import Command, RemadeService, Service, TermService

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from ...storage import BatchHeader, Entry
    from ..requests.journey import Journey
    from ..requests.request import Request

ReadLog: TypeAlias = "Callable[..., Awaitable[list[bytes]]]"
"""Reads durable batches from a position on; see `Store.read`."""

SLICE_SECONDS = 0.005
"""How long commands are applied before other tasks run. If smaller, switching between tasks costs
more. If larger, heartbeats are late. One command is never interrupted: the service bounds it."""

CUT_SECONDS: Final = 8.0
"""How long a flush of the tables before a snapshot's cut may take: 64 MiB at `SLOWEST_DISK`. If
smaller, a leader on a slow disk steps down at a snapshot. If larger, clients wait longer for
another leader when the tables' disk hangs."""

MAX_WAITING_BYTES = 64 << 20
"""Uncommitted batches that a follower keeps in memory. If smaller, more are read back from disk. If
larger, a follower whose leader cannot commit uses more memory."""


@attrs.define(eq=False)
class PendingBatch:
    """An appended batch that waits for its commit.

    Args:
        header: of the batch.
        batch: its bytes, checked; None if the entries are given.
        entries: the entries if they are available (on the leader), else empty.
        requests: for each entry the request that waits for its reply, or None.
        done: how many of the entries are applied.
        journey: its way so far, on the leader that made it.

    Attributes:
        applying: seconds that earlier slices took, replies included.
        replying: seconds that the replies took so far.
    """

    header: BatchHeader
    batch: bytes | None
    entries: Sequence[Entry]
    requests: Sequence[Request | None] | None = None
    done: int = 0
    journey: Journey | None = None
    applying: float = 0.0
    replying: float = 0.0


class Applier:
    """Applies what is committed.

    Args:
        store: whose log is applied; it knows what is committed at the start.
        service: the state machine.
        read: reads batches of the log that are not in memory; `store.read` unless given.

    Attributes:
        commit_position: everything below is committed; it never decreases.
        applied_position: everything below is applied to the service.
        timestamp_ms: log time of the last applied batch.
        entries: number applied since the start.
        batches: number applied since the start.
        apply_duration: seconds that a batch took to be applied; one observation for each entry.
        batch_entries: entries of each batch.
        slow: batches that took long, from the first of their requests to the last reply.
        wanting: the service has no state to start from; nothing is applied before :meth:`jump`.
        lagging: something committed waits for :meth:`run` to apply it.
        waits_since: since when :meth:`run` waits for one action or one read (trio's clock);
            infinity if it does not.
        progressed: notified whenever `applied_position` moves.
        caught_up: notified when `lagging` ends.
    """

    def __init__(self, store: Store, service: Service, read: ReadLog | None = None) -> None:
        self.service = service
        self._read = read or store.read
        # H19: from here, and not from the commit position: the service may have applied less.
        self.applied_position = service.position
        self.commit_position = max(service.position, store.last_commit_position)
        self.timestamp_ms = 0
        self.entries = 0
        self.wanting = False
        self.batches = 0
        self.apply_duration = Histogram()
        self.batch_entries = Histogram(1.0)
        self.slow = SlowBatches()
        self.lagging = self.applied_position < self.commit_position
        self.waits_since = math.inf
        self.progressed = Signal()
        self.caught_up = Signal()
        self._waiting: deque[PendingBatch] = deque()
        self._waiting_bytes = 0
        self._behind = Signal()
        self._action: tuple[Entry, BatchHeader] | None = None
        self._applying = trio.Lock()
        self._now = trio.lowlevel.current_clock().current_time  # cheaper, per batch

    def offer(self, waiting: PendingBatch) -> None:
        """Take a batch that was just appended."""
        header = waiting.header
        # A snapshot was installed in between; it has this batch already.
        if header.end <= self.applied_position:
            return
        self._waiting.append(waiting)
        self._waiting_bytes += header.length
        # Only a follower drops batches: a leader's have requests, and its window bounds them.
        if waiting.requests is None and self._waiting_bytes > MAX_WAITING_BYTES:
            self.forget()

    def forget(self) -> list[Request]:
        """Drop the batches in memory; return the requests whose outcome is now unknown.

        Committed batches whose requests wait are kept, and so is a batch that is partly applied.
        """
        kept: deque[PendingBatch] = deque()
        lost: list[Request] = []
        for waiting in self._waiting:
            committed = waiting.header.end <= self.commit_position
            # Reading it back would lose the requests, or apply its first entries twice.
            if waiting.done or (committed and waiting.requests is not None):
                kept.append(waiting)
            else:
                lost += [request for request in waiting.requests or () if request is not None]
        self._waiting = kept
        self._waiting_bytes = sum(waiting.header.length for waiting in kept)
        return lost

    def commit(self, position: int) -> None:
        """Raise the commit position, and apply what is in memory for at most one slice."""
        # I-17: a message of an old leader may come late, so a smaller position is no error.
        if position <= self.commit_position:
            return
        self.commit_position = position
        # While `run` has work left, nothing is applied here, to keep the order of the log.
        if not self.lagging:
            self._apply_waiting()
            # Fewer than committed: the slice is over, an action waits, or batches must be read from
            # the log.
            if self.applied_position < position or self._action is not None:
                self.lagging = True
                self._behind.notify()

    async def applied(self, position: int) -> None:
        """Wait until everything below `position`, which is committed, is applied."""
        while self.applied_position < position:
            await self.progressed.wait()

    def stalled(self, heartbeat_timeout: float) -> bool:
        """Whether :meth:`run` has waited for one thing for too long for a leader."""
        # H17: a leader that hangs here would keep the term and serve nobody.
        return self._now() >= self.waits_since + 2 * heartbeat_timeout + CUT_SECONDS

    @property
    def remaking(self) -> bool:
        """Whether the service lost its state, and has not applied the whole log again."""
        if self.wanting or self.applied_position >= self.commit_position:
            return False
        service = self.service
        return isinstance(service, RemadeService) and service.remade

    async def run(self, act: Callable[[Entry, BatchHeader], Awaitable[None]]) -> Never:
        """Apply what the fast path left, slice by slice; until cancelled."""
        while self.wanting:
            await self.progressed.wait()
        while True:
            if not self.lagging:
                await self._behind.wait()
            # Between two slices, every other task that is ready runs once.
            await trio.lowlevel.checkpoint()
            # Not while `halted`: its block replaces the very state that we would apply to.
            async with self._applying:
                # A leader whose applier waits here too long steps down: see `leader.disk_watch`.
                self.waits_since = self._now()
                if self._action is not None:
                    await act(*self._action)
                    self._action = None
                self._apply_waiting()
                if self.applied_position < self.commit_position and not self._next_at_hand():
                    await self._read_back()
                self.waits_since = math.inf
                self._update_lagging()

    def _update_lagging(self) -> None:
        """Update `lagging`, and wake the tasks that wait for its end."""
        self.lagging = self.applied_position < self.commit_position or self._action is not None
        if not self.lagging:
            self.caught_up.notify()

    @asynccontextmanager
    async def halted(self) -> AsyncGenerator[None, None]:
        """Apply nothing during the block, in which the service's state may be replaced."""
        async with self._applying:
            # `commit` does not take the lock. It looks at this alone, and applies nothing now.
            self.lagging = True
            try:
                yield
            finally:
                self._update_lagging()
                if self.lagging:
                    self._behind.notify()

    def jump(self, position: int, timestamp_ms: int) -> None:
        """Continue from `position`: the service's state was replaced by one of that position."""
        self.applied_position = position
        # What a snapshot has is committed, whatever this member had heard before (I-18).
        self.commit_position = max(self.commit_position, position)
        self.timestamp_ms = timestamp_ms
        self._action = None
        self.wanting = False
        # These are in the snapshot; applied once more they would count twice (I-33).
        while self._waiting and self._waiting[0].header.position < position:
            self._drop_first()
        self.lagging = position < self.commit_position
        self.progressed.notify()

    def _next_at_hand(self) -> bool:
        """Drop applied batches; return whether the next one is committed and in memory."""
        waiting, applied = self._waiting, self.applied_position
        while waiting:
            header = waiting[0].header
            if header.position == applied:
                return header.end <= self.commit_position
            # A gap: what lies between was dropped from memory, and must be read back first.
            if header.end > applied:
                return False
            self._drop_first()
        return False

    def _drop_first(self) -> None:
        self._waiting_bytes -= self._waiting.popleft().header.length

    def _apply_waiting(self) -> None:
        """Apply committed batches in memory for one slice, up to the next action."""
        # An action comes first: what follows it in the log must see its effect (I-22).
        if self._action is not None or not self._next_at_hand():
            return
        at = self._now()
        until = at + SLICE_SECONDS
        while (ended := self._apply(self._waiting[0], at, until)) is not None:
            at = ended
            self._drop_first()
            if self._action is not None or not self._next_at_hand() or at > until:
                break

    def _apply(self, waiting: PendingBatch, began: float, until: float) -> float | None:
        """Apply a batch and answer its requests.

        Args:
            waiting: the batch.
            began: the time now.
            until: when to stop, behind any entry of it.

        Returns:
            The time at its end; None if the time was up before that.
        """
        header, service = waiting.header, self.service
        # Decoded only now, and one entry at a time: a batch that is truncated never is.
        if waiting.batch is not None:
            waiting.entries, waiting.batch = CheckedEntries(waiting.batch, header), None
        entries, requests = waiting.entries, waiting.requests
        count = len(entries)
        for index in range(waiting.done, count):
            reply = self._apply_one(entries[index], index, header)
            if requests is not None and (request := requests[index]) is not None:
                applied = self._now()
                # I-34: only here a reply is given, so it always means that the command is committed
                # and applied.
                request.done(reply)
                # It is answered: a client's time is no part of what the state machine takes.
                waiting.replying += self._now() - applied
            # Checked only within the batch: its end is progress that must be recorded.
            if index + 1 < count and (now := self._now()) > until:
                waiting.done = index + 1
                waiting.applying += now - began
                return None
        self.applied_position = end = header.end
        self.timestamp_ms = header.timestamp_ms
        self.entries += count
        self.batches += 1
        # Also for a batch without commands: its time lets timers and keys expire (I-23).
        service.advance(end, header.timestamp_ms)
        self.progressed.notify()
        ended = self._now()
        self._count(waiting, ended - began, ended)
        return ended

    def _count(self, waiting: PendingBatch, last_slice: float, now: float) -> None:
        """Count a batch that is applied."""
        count = len(waiting.entries)
        took = waiting.applying + last_slice - waiting.replying
        # Once per batch, however many entries: this is the hot path.
        self.apply_duration.observe(took, count)
        self.batch_entries.observe(count)
        if waiting.journey is not None:
            self.slow.ended(waiting.journey, now, waiting.replying)

    def _apply_one(self, entry: Entry, index: int, header: BatchHeader) -> bytes:
        """Apply one entry."""
        if entry.kind is not EntryKind.COMMAND:
            if entry.kind in {EntryKind.CLUSTER_ACTION, EntryKind.MEMBERSHIP}:
                # Such an entry is alone in its batch, so that one slot is enough.
                assert self._action is None, "two actions in one batch"
                self._action = entry, header
            elif entry.kind is EntryKind.NEW_LEADERSHIP_TERM and isinstance(
                self.service, TermService
            ):
                self.service.begin_term(header.timestamp_ms)
            return b""
        return self.service.apply(
            Command(
                entry.payload,
                entry.flags,
                entry.session,
                entry.sequence,
                header.term,
                header.position,
                index,
                header.timestamp_ms,
                principal=entry.principal,
            )
        )

    async def _read_back(self) -> None:
        """Read the next committed batches, which are not in memory, from the log."""
        end = self.commit_position
        if self._waiting:
            # From there on they are in memory, with the requests that wait for replies.
            end = min(end, self._waiting[0].header.position)
        batches = await self._read(self.applied_position, end=end)
        # I-43: what comes from the disk is checked once more; the disk may have damaged it since.
        read = [PendingBatch(check_batch_untrusted(batch), batch, []) for batch in batches]
        self._waiting.extendleft(reversed(read))
        self._waiting_bytes += sum(waiting.header.length for waiting in read)
