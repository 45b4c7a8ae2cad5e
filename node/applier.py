"""Feeds the committed part of the log to the service, in order, each entry once.

Batches that were just appended wait here in memory; when the commit position passes them they
are applied at once, on the spot. What is not in memory (after a start, or when a member was far
behind) is read back from the recording by :meth:`Applier.run`. Nothing above the commit position
is ever applied, so that truncation never has to undo anything.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Never

import attrs
import trio

from ..storage import EntryKind, Store, check_batch_untrusted, decode_entries_untrusted
from .roles import Signal
from .service import Command, Service

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..storage import BatchHeader, Entry
    from .gateway import Request

# Appended and not yet committed batches kept in memory; beyond it they are read back from disk.
MAX_WAITING_BYTES = 64 << 20


@attrs.define(eq=False)
class Waiting:
    """An appended batch that waits for its commit.

    Args:
        header: of the batch.
        batch: its bytes, decoded when it is applied; None if the entries are given.
        entries: the entries, when they are at hand (on the leader).
        requests: for each entry the request that waits for its reply, or None.
    """

    header: BatchHeader
    batch: bytes | None = None
    entries: Sequence[Entry] = ()
    requests: Sequence[Request | None] | None = None


class Applier:
    """Applies what is committed.

    Attributes:
        commit_position: everything below is committed; never decreases.
        applied_position: everything below is applied to the service.
        timestamp_ms: log time of the last applied batch.
        progressed: notified whenever `applied_position` moves.
    """

    def __init__(self, store: Store, service: Service) -> None:
        self.service = service
        self.applied_position = service.position
        self.commit_position = max(service.position, store.last_commit_position)
        self.timestamp_ms = 0
        self.progressed = Signal()
        self._store = store
        self._waiting: deque[Waiting] = deque()
        self._waiting_bytes = 0
        self._behind = Signal()

    def offer(self, waiting: Waiting) -> None:
        """Take a batch that was just appended."""
        if waiting.header.end <= self.applied_position:
            return
        self._waiting.append(waiting)
        self._waiting_bytes += waiting.header.length
        if waiting.requests is None and self._waiting_bytes > MAX_WAITING_BYTES:
            self.forget()

    def forget(self) -> list[Request]:
        """Drop what waits in memory; return the requests whose outcome is now unknown."""
        lost = [
            request
            for waiting in self._waiting
            for request in waiting.requests or ()
            if request is not None
        ]
        self._waiting.clear()
        self._waiting_bytes = 0
        return lost

    def commit(self, position: int) -> None:
        """Raise the commit position, and apply what is at hand."""
        if position <= self.commit_position:
            return
        self.commit_position = position
        self._apply_waiting()
        if self.applied_position < position:
            self._behind.notify()

    async def applied(self, position: int) -> None:
        """Wait until everything below `position`, which is committed, is applied."""
        while self.applied_position < position:
            self._behind.notify()
            await self.progressed.wait()

    async def run(self) -> Never:
        """Read back from the recording and apply what is committed and not in memory."""
        while True:
            if not await self._replay():
                await self._behind.wait()

    async def _replay(self) -> bool:
        """Apply some of what memory does not hold; False if there is nothing to do."""
        end = min(self.commit_position, self._store.append_position)
        if self._waiting:  # from there on memory has it, with the requests that wait for replies
            end = min(end, self._waiting[0].header.position)
        if self.applied_position >= end:
            return False
        for batch in await self._store.read(self.applied_position, end=end):
            header = check_batch_untrusted(batch)
            if header.position == self.applied_position and header.end <= self.commit_position:
                self._apply(Waiting(header, batch))
        await trio.lowlevel.checkpoint()
        self._apply_waiting()
        return True

    def _apply_waiting(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0].header.end <= self.commit_position:
            first = waiting[0]
            if first.header.position > self.applied_position:
                return  # what lies before it is read back first
            waiting.popleft()
            self._waiting_bytes -= first.header.length
            if first.header.position == self.applied_position:
                self._apply(first)

    def _apply(self, waiting: Waiting) -> None:
        """Apply one batch, and answer those who wait for its entries."""
        header, service = waiting.header, self.service
        entries = waiting.entries
        if waiting.batch is not None:
            entries = decode_entries_untrusted(waiting.batch)
        requests = waiting.requests
        for index, entry in enumerate(entries):
            if entry.kind is not EntryKind.COMMAND:
                continue
            reply = service.apply(
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
            if requests is not None and (request := requests[index]) is not None:
                request.done(reply)
        self.applied_position = header.end
        self.timestamp_ms = header.timestamp_ms
        service.advance(header.end, header.timestamp_ms)
        self.progressed.notify()
