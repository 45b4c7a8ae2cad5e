"""Feeds the committed part of the log to the service, in order, each entry once.

Batches that were just appended wait here in memory; when the commit position passes them they
are applied at once, on the spot, as far as that takes no longer than a slice of the event loop's
time. What then is left, and what is not in memory (after a start, or when a member was far
behind), is the work of :meth:`Applier.run`, which takes turns with the other tasks. Nothing above
the commit position is ever applied, so that truncation never has to undo anything.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Never, TypeAlias

import attrs
import trio

from ...storage import CheckedEntries, EntryKind, Store, check_batch_untrusted
from ..protocol.role import Signal
from .service import BatchService, Command, RemadeService, Service

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from ...storage import BatchHeader, Entry
    from ..requests.request import Request

ReadLog: TypeAlias = "Callable[..., Awaitable[list[bytes]]]"
"""Reads durable batches from a position on; see `Store.read`."""

# How long the event loop waits for commands to be applied before others get their turn. One command
# is never cut in two: how long it may take is the service's to bound.
SLICE_SECONDS = 0.005

CUT_SECONDS: Final = 8.0
"""How long a flush of the tables in front of a snapshot's cut may take on a slow disk: 64 MiB at
`SLOWEST_DISK`. If this is shorter, a leader on a slow disk steps down at a snapshot; if it is
longer, clients wait longer for another leader when the tables' disk hangs."""

# Appended and not yet committed batches kept in memory; beyond it they are read back from disk.
MAX_WAITING_BYTES = 64 << 20


@attrs.define(eq=False)
class Waiting:
    """An appended batch that waits for its commit.

    Args:
        header: of the batch.
        batch: its bytes, checked; None if the entries are given.
        entries: the entries, when they are at hand (on the leader); else empty.
        requests: for each entry the request that waits for its reply, or None.
        done: how many of the entries are applied.
    """

    header: BatchHeader
    batch: bytes | None
    entries: Sequence[Entry]
    requests: Sequence[Request | None] | None = None
    done: int = 0


def _none_at_once(_entries: Sequence[Entry], _start: int, _header: BatchHeader) -> list[bytes]:
    """Stand in for a service that applies one command at a time."""
    return []


class Applier:
    """Applies what is committed.

    Args:
        store: the log; says what is known to be committed at the start.
        service: the state machine.
        read: reads batches of the log that are not in memory; `store.read` unless given.

    Attributes:
        commit_position: everything below is committed; never decreases.
        applied_position: everything below is applied to the service.
        timestamp_ms: log time of the last applied batch.
        entries: applied since the start.
        batches: likewise.
        wanting: the service has nothing to begin with; nothing is applied before it has (`jump`).
        lagging: a part of what is committed waits for :meth:`run` to apply it.
        waits_since: since when :meth:`run` waits for one action, or for what it reads back;
            infinity if it does not.
        progressed: notified whenever `applied_position` moves.
        caught_up: notified when `lagging` ends.
    """

    def __init__(self, store: Store, service: Service, read: ReadLog | None = None) -> None:
        self.service = service
        self._read = read or store.read
        self._apply_many = (
            service.apply_many if isinstance(service, BatchService) else _none_at_once
        )
        self.applied_position = service.position
        self.commit_position = max(service.position, store.last_commit_position)
        self.timestamp_ms = 0
        self.entries = 0
        self.wanting = False
        self.batches = 0
        self.lagging = self.applied_position < self.commit_position
        self.waits_since = math.inf
        self.progressed = Signal()
        self.caught_up = Signal()
        self._waiting: deque[Waiting] = deque()
        self._waiting_bytes = 0
        self._behind = Signal()
        self._action: tuple[Entry, BatchHeader] | None = None
        self._turn = trio.Lock()
        self._now = trio.lowlevel.current_clock().current_time  # each batch asks

    def offer(self, waiting: Waiting) -> None:
        """Take a batch that was just appended."""
        header = waiting.header
        if header.end <= self.applied_position:
            return
        self._waiting.append(waiting)
        self._waiting_bytes += header.length
        if waiting.requests is None and self._waiting_bytes > MAX_WAITING_BYTES:
            self.forget()

    def forget(self) -> list[Request]:
        """Drop what waits in memory; return the requests whose outcome is now unknown.

        What is committed and has requests that wait for it is kept, and so is a batch of which a
        part is applied already.
        """
        kept: deque[Waiting] = deque()
        lost: list[Request] = []
        for waiting in self._waiting:
            committed = waiting.header.end <= self.commit_position
            if waiting.done or (committed and waiting.requests is not None):
                kept.append(waiting)
            else:
                lost += [request for request in waiting.requests or () if request is not None]
        self._waiting = kept
        self._waiting_bytes = sum(waiting.header.length for waiting in kept)
        return lost

    def commit(self, position: int) -> None:
        """Raise the commit position, and apply what is at hand and takes no longer than a slice."""
        if position <= self.commit_position:
            return
        self.commit_position = position
        if not self.lagging:
            self._apply_waiting()
            if self.applied_position < position or self._action is not None:
                self.lagging = True
                self._behind.notify()

    async def applied(self, position: int) -> None:
        """Wait until everything below `position`, which is committed, is applied."""
        while self.applied_position < position:
            await self.progressed.wait()

    def stalled(self, heartbeat_timeout: float) -> bool:
        """Whether :meth:`run` has waited for one thing for too long for a leader."""
        return self._now() >= self.waits_since + 2 * heartbeat_timeout + CUT_SECONDS

    @property
    def remaking(self) -> bool:
        """Whether the service has lost its state, and has not applied all of the log again."""
        service = self.service
        remade = isinstance(service, RemadeService) and service.remade
        return remade and not self.wanting and self.applied_position < self.commit_position

    async def run(self, act: Callable[[Entry, BatchHeader], Awaitable[None]]) -> Never:
        """Apply what was left, slice by slice; until cancelled.

        Args:
            act: called when a batch with a cluster action or an admission was applied; nothing
                behind that batch is applied before it returns.
        """
        while self.wanting:
            await self.progressed.wait()
        while True:
            if not self.lagging:
                await self._behind.wait()
            await trio.lowlevel.checkpoint()
            async with self._turn:
                self.waits_since = self._now()
                if self._action is not None:
                    await act(*self._action)
                    self._action = None
                self._apply_waiting()
                if self.applied_position < self.commit_position and not self._at_hand():
                    await self._read_back()
                self.waits_since = math.inf
                self._look()

    def _look(self) -> None:
        """Look whether anything is left."""
        self.lagging = self.applied_position < self.commit_position or self._action is not None
        if not self.lagging:
            self.caught_up.notify()

    @asynccontextmanager
    async def halted(self) -> AsyncGenerator[None, None]:
        """Apply nothing for the length of the block, in which the service may be replaced."""
        async with self._turn:
            self.lagging = True
            try:
                yield
            finally:
                self._look()
                if self.lagging:
                    self._behind.notify()

    def jump(self, position: int, timestamp_ms: int) -> None:
        """The service was replaced by one that has everything below a position applied."""
        self.applied_position = position
        self.commit_position = max(self.commit_position, position)
        self.timestamp_ms = timestamp_ms
        self._action = None
        self.wanting = False
        while self._waiting and self._waiting[0].header.position < position:
            self._drop_first()
        self.lagging = position < self.commit_position
        self.progressed.notify()

    def _at_hand(self) -> bool:
        """Whether the next batch to apply is committed and in memory."""
        waiting, applied = self._waiting, self.applied_position
        while waiting:
            header = waiting[0].header
            if header.position == applied:
                return header.end <= self.commit_position
            if header.end > applied:
                return False
            self._drop_first()
        return False

    def _drop_first(self) -> None:
        self._waiting_bytes -= self._waiting.popleft().header.length

    def _apply_waiting(self) -> None:
        """Apply what is at hand, for one slice."""
        if self._action is not None or not self._at_hand():
            return
        until = self._now() + SLICE_SECONDS
        while self._apply(self._waiting[0], until):
            self._drop_first()
            if self._action is not None or not self._at_hand() or self._now() > until:
                break

    def _apply(self, waiting: Waiting, until: float) -> bool:
        """Apply a batch and answer those who wait for its entries; False if time is up before."""
        header, service = waiting.header, self.service
        if waiting.batch is not None:
            waiting.entries, waiting.batch = CheckedEntries(waiting.batch, header), None
        entries, requests = waiting.entries, waiting.requests
        index, count = waiting.done, len(entries)
        while index < count:
            replies = self._apply_many(entries, index, header) or [
                self._apply_one(entries[index], index, header)
            ]
            following = index + len(replies)
            assert following <= count, "more replies than entries"
            if requests is not None:
                mine = requests[index:following]
                for request, reply in zip(mine, replies, strict=True):
                    if request is not None:
                        request.done(reply)
            index = following
            if index < count and self._now() > until:
                waiting.done = index
                return False
        self.applied_position = end = header.end
        self.timestamp_ms = header.timestamp_ms
        self.entries += count
        self.batches += 1
        service.advance(end, header.timestamp_ms)
        self.progressed.notify()
        return True

    def _apply_one(self, entry: Entry, index: int, header: BatchHeader) -> bytes:
        if entry.kind is not EntryKind.COMMAND:
            if entry.kind in {EntryKind.CLUSTER_ACTION, EntryKind.MEMBERSHIP}:
                self._action = entry, header
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
            )
        )

    async def _read_back(self) -> None:
        """Fetch what comes next from the recording: it is committed, and not in memory."""
        end = self.commit_position
        if self._waiting:  # from there on memory has it, with the requests that wait for replies
            end = min(end, self._waiting[0].header.position)
        batches = await self._read(self.applied_position, end=end)
        found = [Waiting(check_batch_untrusted(batch), batch, []) for batch in batches]
        self._waiting.extendleft(reversed(found))
        self._waiting_bytes += sum(waiting.header.length for waiting in found)
