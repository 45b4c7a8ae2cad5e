"""The committed part of a recording in a directory: what there is, where it can be cut, its bytes.

The directory is a member's, running or not, or a copy of one. It is opened for reading only, and
read in short transactions, for pages that a reader still sees can't be used again by the member.

**What is committed** is known from two witnesses: the leader's word in the header of the last
batch, and how far the member has applied the log to its tables, durably. While a cluster is idle
both may lag a little behind the truth; neither is ever ahead of it. What lies behind is not shown,
for a new leader could still cut it off.
"""

from __future__ import annotations

import bisect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import attrs

from ..errors import StoreMismatchError
from ..storage import decode_header_untrusted, open_readonly
from ..storage.pages import DATA_FILE
from ..storage.snapshot_file import SnapshotReader
from ..storage.tables_disk import tables_position
from ..storage.tables_snapshot import notes_untrusted, records_untrusted

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from ..storage import ReadOnlyStore, SnapshotRow, TermRow
    from ..storage.tables_layer import Record

__all__ = ["Facts", "Log", "Moment", "find_recording", "open_log"]

_LEAST_RANGE_BYTES: Final = 4096


def find_recording(directory: Path) -> Path:
    """Return where the recording lies: in the directory itself, or in the member's around it.

    Raises:
        StoreMismatchError: there is none.
    """
    for place in (directory / "log", directory):
        if place.name != "tables" and (place / DATA_FILE).exists():
            return place
    raise StoreMismatchError(
        f"{directory}: no recording there; expected a member's directory, or a copy of one"
    )


@attrs.frozen
class Facts:
    """What there is to read.

    Args:
        cluster: its name.
        member_id: whose recording it is.
        start: first log position that is kept.
        committed: log position up to which the log is known to be committed.
        terms: the terms that begin below.
        snapshots: those whose files are there, ascending by position.
    """

    cluster: str
    member_id: int
    start: int
    committed: int
    terms: tuple[TermRow, ...]
    snapshots: tuple[SnapshotRow, ...] = ()

    def snapshot_at(self, position: int) -> SnapshotRow | None:
        """Return the newest snapshot that covers up to `position` at most."""
        found = [row for row in self.snapshots if row.position <= position]
        return found[-1] if found else None


@attrs.frozen
class Moment:
    """A point of the log: a position at a boundary of batches, and log time there, ms."""

    position: int
    timestamp_ms: int


class Log:
    """An open recording; made by :func:`open_log`.

    Attributes:
        facts: what there is to read, as of the opening.
    """

    def __init__(self, store: ReadOnlyStore, applied: int, snapshots: Path) -> None:
        self._store = store
        self._snapshots = snapshots
        committed = max(store.last_commit_position, min(applied, store.append_position))
        self.facts = Facts(
            cluster=store.identity.cluster,
            member_id=store.identity.member_id,
            start=store.start_position,
            committed=max(committed, store.start_position),
            terms=tuple(row for row in store.terms if row.base < committed),
            snapshots=tuple(row for row in store.snapshots if (snapshots / row.name).is_file()),
        )

    def term_before(self, position: int) -> int:
        """Return the term of the byte in front of `position`, -1 at the start of the log."""
        rows = [row for row in self.facts.terms if row.base < position]
        return rows[-1].term if rows else -1

    def first_at(self, timestamp_ms: int) -> int:
        """Return where the first committed batch begins that is not older; their end without any.

        Raises:
            StorageError: the log is damaged.
        """
        low, high = self.facts.start, self.facts.committed
        while low < high:
            begin = self._store.boundary((low + high) // 2)
            header = decode_header_untrusted(next(iter(self._store.scan(begin, begin + 1))))
            if header.timestamp_ms >= timestamp_ms:
                high = begin
            else:
                low = header.end
        return low

    def moment_before(self, position: int) -> Moment:
        """Return where the batches end that begin below a position, and log time there."""
        stop = self._next_boundary(position)
        if stop <= self.facts.start:
            return Moment(self.facts.start, 0)
        begin = self._store.boundary(stop - 1)
        header = decode_header_untrusted(next(iter(self._store.scan(begin, begin + 1))))
        return Moment(stop, header.timestamp_ms)

    def cut(self, start: int, stop: int, parts: int) -> list[tuple[int, int]]:
        """Cut the batches that begin in ``[start, stop)`` into ranges of about equal length.

        Returns:
            Up to `parts` ranges ``[begin, end)``, all of them at boundaries of batches, without
            gaps; none if there is no batch.
        """
        facts = self.facts
        start, stop = max(start, facts.start), min(stop, facts.committed)
        begin, end = self._next_boundary(start), self._next_boundary(stop)
        if begin >= end:
            return []
        parts = max(1, min(parts, (end - begin) // _LEAST_RANGE_BYTES))
        edges = [begin]
        for part in range(1, parts):
            edge = self._store.boundary(begin + (end - begin) * part // parts)
            if edge > edges[-1]:
                edges.append(edge)
        return list(zip(edges, [*edges[1:], end], strict=True))

    def _next_boundary(self, position: int) -> int:
        """Return the first boundary at or behind `position`."""
        if position >= self.facts.committed:
            return self.facts.committed
        begin = self._store.boundary(position)
        if begin >= position:
            return begin
        return decode_header_untrusted(next(iter(self._store.scan(begin, begin + 1)))).end

    def of_term(self, first: int, last: int) -> tuple[int, int]:
        """Return the positions ``[begin, end)`` that the terms from `first` to `last` cover."""
        rows = self.facts.terms
        begin = bisect.bisect_left(rows, first, key=lambda row: row.term)
        end = bisect.bisect_right(rows, last, key=lambda row: row.term)
        committed = self.facts.committed
        return (
            rows[begin].base if begin < len(rows) else committed,
            rows[end].base if end < len(rows) else committed,
        )

    def records(self, row: SnapshotRow) -> Iterator[tuple[bytes, Record]]:
        """Yield the keys and records of a snapshot of the key-value store.

        Raises:
            StorageError: it is damaged, or of another service.
        """
        with SnapshotReader(self._snapshots / row.name) as reader:
            yield from records_untrusted(reader.pieces())

    def notes(self, row: SnapshotRow) -> Iterator[tuple[bytes, bytes]]:
        """Yield what a snapshot of the key-value store has beside the keys.

        Raises:
            StorageError: it is damaged, or of another service.
        """
        with SnapshotReader(self._snapshots / row.name) as reader:
            yield from notes_untrusted(reader.pieces())

    def batches(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield the batches of a range that :meth:`cut` has cut, each with its checksum checked.

        Raises:
            PrunedError: it was pruned meanwhile.
            DamagedRecordError: a batch is damaged.
        """
        return self._store.scan(begin, end)


@contextmanager
def open_log(directory: Path) -> Generator[Log]:
    """Open the recording in a member's directory, or a copy of it, for the length of a block.

    Raises:
        StoreMismatchError: there is none.
        StorageError: its tables are damaged.
    """
    place = find_recording(directory)
    applied = tables_position(place.parent / "tables")
    with open_readonly(place) as store:
        yield Log(store, applied, place.parent / "snapshots")
