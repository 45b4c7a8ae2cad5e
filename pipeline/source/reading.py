"""What all logs have that can be read here, wherever they lie: facts, and where they can be cut."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import attrs

from ...errors import StorageError, WireError
from ...storage import EntryKind, decode_entries_untrusted, decode_header_untrusted
from ...storage.tables.stream import notes_untrusted, records_untrusted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from ...node.leader.term_event import TermEvent
    from ...storage import BatchHeader, SnapshotRow, TermRow
    from ...storage.snapshots.file import SnapshotReader
    from ...storage.tables.memtable import Record

__all__ = ["Facts", "Log", "Moment"]

_LEAST_RANGE_BYTES: Final = 4096


@attrs.frozen
class Facts:
    """What there is to read.

    Args:
        cluster: its name.
        member_id: whose recording it is; -1 for a backup's, and for no certain member's.
        start: first log position that is kept.
        committed: log position up to which the log is known to be committed.
        snapshots: those that can be read, ascending by position.
    """

    cluster: str
    member_id: int
    start: int
    committed: int
    snapshots: tuple[SnapshotRow, ...] = ()

    @property
    def whose(self) -> str:
        """Whose log it is, in words."""
        return f"member {self.member_id}" if self.member_id >= 0 else f"cluster {self.cluster!r}"

    def snapshot_at(self, position: int) -> SnapshotRow | None:
        """Return the newest snapshot that covers up to `position` at most."""
        found = [row for row in self.snapshots if row.position <= position]
        return found[-1] if found else None


@attrs.frozen
class Moment:
    """A point of the log: a position at a boundary of batches, and log time there, ms."""

    position: int
    timestamp_ms: int


class Log(ABC):
    """The committed part of a log, while it is open.

    Attributes:
        facts: what there is to read, as of the opening.
    """

    facts: Facts

    def reach(self, position: int) -> None:  # noqa: B027 - what does not grow has nothing to do
        """Wait until a log that grows meanwhile is known to be committed up to a position.

        Raises:
            TransportError: it takes too long.
        """

    @abstractmethod
    def header(self, position: int) -> BatchHeader:
        """Return the header of the batch that covers a position, which is kept and committed.

        Raises:
            StorageError, TransportError: it can't be read.
        """

    @abstractmethod
    def batches(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield the batches that begin in a range that :meth:`cut` has cut, each one checked.

        Raises:
            PrunedError: it was pruned meanwhile.
            StorageError, TransportError: it can't be read to its end.
        """

    @abstractmethod
    def terms(self) -> tuple[TermRow, ...]:
        """Return the terms that begin below the commit position, ascending."""

    def opening(self, row: TermRow) -> TermEvent | None:
        """Return what the entry says that opens a term.

        None if it is not kept or not committed, or can't be read: `audit` and `quorate log verify`
        name what is damaged.
        """
        from ...node.leader.term_event import decode_term_event_untrusted  # noqa: PLC0415 - a whole room

        if not self.facts.start <= row.base < self.facts.committed:
            return None
        with suppress(StorageError, WireError):
            for batch in self.batches(row.base, row.base + 1):
                first = decode_entries_untrusted(batch)[0]
                of_term = decode_header_untrusted(batch).term == row.term  # not of an empty one
                if of_term and first.kind is EntryKind.NEW_LEADERSHIP_TERM:
                    return decode_term_event_untrusted(first.payload)
        return None

    @abstractmethod
    def snapshot(self, row: SnapshotRow) -> AbstractContextManager[SnapshotReader]:
        """Open a snapshot for the length of a block; its head tells more than its row.

        Raises:
            StorageError, TransportError: it is damaged, or can't be had.
        """

    def records(self, row: SnapshotRow) -> Iterator[tuple[bytes, Record]]:
        """Yield the keys and records of a snapshot of the key-value store.

        Raises:
            StorageError: it is damaged, or of another service.
        """
        with self.snapshot(row) as reader:
            yield from records_untrusted(reader.pieces())

    def notes(self, row: SnapshotRow) -> Iterator[tuple[bytes, bytes]]:
        """Yield what a snapshot of the key-value store has beside the keys.

        Raises:
            StorageError: it is damaged, or of another service.
        """
        with self.snapshot(row) as reader:
            yield from notes_untrusted(reader.pieces())

    def _edge(self, position: int) -> int:
        """Return where to cut near a position: where the batch begins that covers it."""
        return self.header(position).position

    def term_before(self, position: int) -> int:
        """Return the term of the byte in front of `position`; -1 where the log begins."""
        return self.header(position - 1).term if position > self.facts.start else -1

    def first_at(self, timestamp_ms: int) -> int:
        """Return where the first committed batch begins that is not older; their end without any.

        Raises:
            StorageError: the log is damaged.
        """
        return self._first(lambda header: header.timestamp_ms >= timestamp_ms)

    def of_term(self, first: int, last: int) -> tuple[int, int]:
        """Return the positions ``[begin, end)`` that the terms from `first` to `last` cover."""
        return (
            self._first(lambda header: header.term >= first),
            self._first(lambda header: header.term > last),
        )

    def _first(self, wanted: Callable[[BatchHeader], bool]) -> int:
        """Return where the first batch begins that is wanted, as are all behind it."""
        low, high = self.facts.start, self.facts.committed
        while low < high:
            header = self.header((low + high) // 2)
            if wanted(header):
                high = header.position
            else:
                low = header.end
        return low

    def moment_before(self, position: int) -> Moment:
        """Return where the batches end that begin below a position, and log time there."""
        stop = self._next_boundary(position)
        if stop <= self.facts.start:
            return Moment(self.facts.start, 0)
        return Moment(stop, self.header(stop - 1).timestamp_ms)

    def cut(self, start: int, stop: int, parts: int) -> list[tuple[int, int]]:
        """Cut the batches that begin in ``[start, stop)`` into ranges of about equal length.

        Returns:
            Up to `parts` ranges ``[begin, end)`` without gaps, of which the first begins, and the
            last ends, at a boundary of batches; none if there is no batch.
        """
        facts = self.facts
        start, stop = max(start, facts.start), min(stop, facts.committed)
        if start >= stop:
            return []
        begin, end = self._next_boundary(start), self._next_boundary(stop)
        if begin >= end:
            return []
        parts = max(1, min(parts, (end - begin) // _LEAST_RANGE_BYTES))
        edges = [begin]
        for part in range(1, parts):
            edge = self._edge(begin + (end - begin) * part // parts)
            if edge > edges[-1]:
                edges.append(edge)
        return list(zip(edges, [*edges[1:], end], strict=True))

    def _next_boundary(self, position: int) -> int:
        """Return the first boundary at or behind `position`."""
        if position >= self.facts.committed:
            return self.facts.committed
        if position <= self.facts.start:
            return self.facts.start
        header = self.header(position)
        return position if header.position == position else header.end
