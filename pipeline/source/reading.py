"""The base of all readable logs, local or remote: facts about them, and where they can be cut."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import attrs

from ...errors import StorageError, WireError
from ...keyvalue.slots.cluster_map import META, partition_in
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
    """Describes a log that can be read.

    Args:
        cluster: name of the cluster.
        member_id: id of the member with this recording; -1 for a backup, or if not known.
        start: first log position that is kept.
        committed: log position up to which the log is known to be committed.
        snapshots: the snapshots that can be read, ascending by position.
    """

    cluster: str
    member_id: int
    start: int
    committed: int
    snapshots: tuple[SnapshotRow, ...] = ()

    @property
    def whose(self) -> str:
        """Return a description of the log's owner, for messages."""
        return f"member {self.member_id}" if self.member_id >= 0 else f"cluster {self.cluster!r}"

    @property
    def partition(self) -> int | None:
        """Return the number of the partition whose log this is; None if it is of none."""
        found = partition_in(self.cluster)
        return None if found == META else found

    def snapshot_at(self, position: int) -> SnapshotRow | None:
        """Return the newest snapshot that covers at most up to `position`."""
        found = [row for row in self.snapshots if row.position <= position]
        return found[-1] if found else None


@attrs.frozen
class Moment:
    """A point of the log: a position at a boundary of batches, and the log time there (ms)."""

    position: int
    timestamp_ms: int


class Log(ABC):
    """The committed part of a log, while it is open.

    Attributes:
        facts: describes the log at the time of opening.
    """

    facts: Facts

    def reach(self, position: int) -> None:  # noqa: B027 - not all logs grow
        """Wait until a growing log is known to be committed up to a position.

        Raises:
            TransportError: the wait takes too long.
        """

    @abstractmethod
    def header(self, position: int) -> BatchHeader:
        """Return the header of the batch that covers a position. It must be kept and committed.

        Raises:
            StorageError, TransportError: the batch cannot be read.
        """

    @abstractmethod
    def batches(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield the batches that begin in a range from :meth:`cut`, each one verified.

        Raises:
            PrunedError: the range was pruned during the read.
            StorageError, TransportError: the range cannot be read to its end.
        """

    @abstractmethod
    def terms(self) -> tuple[TermRow, ...]:
        """Return the terms that begin below the commit position, ascending."""

    def opening(self, row: TermRow) -> TermEvent | None:
        """Return the content of the entry that opens a term.

        None if the entry is pruned, not committed, or unreadable. `audit` and `quorate log verify`
        report damage.
        """
        from ...node.leader.term_event import decode_term_event_untrusted  # noqa: PLC0415 - large

        if not self.facts.start <= row.base < self.facts.committed:
            return None
        with suppress(StorageError, WireError):
            for batch in self.batches(row.base, row.base + 1):
                first = decode_entries_untrusted(batch)[0]
                of_term = decode_header_untrusted(batch).term == row.term  # False for an empty term
                if of_term and first.kind is EntryKind.NEW_LEADERSHIP_TERM:
                    return decode_term_event_untrusted(first.payload)
        return None

    @abstractmethod
    def snapshot(self, row: SnapshotRow) -> AbstractContextManager[SnapshotReader]:
        """Open a snapshot for the duration of a block; its head has more fields than its row.

        Raises:
            StorageError, TransportError: the snapshot is damaged or not available.
        """

    def records(self, row: SnapshotRow) -> Iterator[tuple[bytes, Record]]:
        """Yield the keys and records of a snapshot of the key-value store.

        Raises:
            StorageError: the snapshot is damaged, or belongs to another service.
        """
        with self.snapshot(row) as reader:
            yield from records_untrusted(reader.pieces())

    def notes(self, row: SnapshotRow) -> Iterator[tuple[bytes, bytes]]:
        """Yield the notes of a snapshot of the key-value store: its rows that are not keys.

        Raises:
            StorageError: the snapshot is damaged, or belongs to another service.
        """
        with self.snapshot(row) as reader:
            yield from notes_untrusted(reader.pieces())

    def _edge(self, position: int) -> int:
        """Return where to cut near a position: the beginning of the batch that covers it."""
        return self.header(position).position

    def term_before(self, position: int) -> int:
        """Return the term of the byte before `position`; -1 at the beginning of the log."""
        return self.header(position - 1).term if position > self.facts.start else -1

    def first_at(self, timestamp_ms: int) -> int:
        """Return where the first committed batch of this time or later begins; if none, the end.

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
        """Return where the first batch begins for which `wanted` is true, as for all later ones."""
        low, high = self.facts.start, self.facts.committed
        while low < high:
            header = self.header((low + high) // 2)
            if wanted(header):
                high = header.position
            else:
                low = header.end
        return low

    def moment_before(self, position: int) -> Moment:
        """Return the end of the batches that begin below a position, and the log time there."""
        stop = self._next_boundary(position)
        if stop <= self.facts.start:
            return Moment(self.facts.start, 0)
        return Moment(stop, self.header(stop - 1).timestamp_ms)

    def cut(self, start: int, stop: int, parts: int) -> list[tuple[int, int]]:
        """Cut the batches that begin in ``[start, stop)`` into ranges of about equal length.

        Returns:
            Up to `parts` ranges ``[begin, end)`` without gaps; none if there is no batch. The first
            one begins, and the last one ends, at a boundary of batches.
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
        """Return the first boundary of batches at or after `position`."""
        if position >= self.facts.committed:
            return self.facts.committed
        if position <= self.facts.start:
            return self.facts.start
        header = self.header(position)
        return position if header.position == position else header.end
