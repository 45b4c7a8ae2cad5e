"""The table of terms: which term covers which positions of the log, and which snapshots exist.

It also tells where an operator has forced a quorum.

A term covers the half-open range `[base, end)`. Rows ascend by term, and each begins where the one
before it ends; only the last may be open. A term of which this member never heard has no row, so a
jump of the term costs nothing, however far it goes. An empty row is a term in which nothing was
recorded. The rules are pure functions from rows to rows; the store writes what changed, a new
term's row in the same transaction as the first batch of that term. (Aeron:
RecordingLog.ensureCoherent, commitLogPosition; there a skipped term gets an empty row, and bases
that do not meet are silently overridden.)
"""

from __future__ import annotations

import bisect
import itertools
import operator
import struct
from typing import TYPE_CHECKING, Final

import attrs

from ...errors import DamagedRecordError, StorageError
from ..lmdb.sealed_rows import seal, unpack_untrusted, unseal_untrusted

if TYPE_CHECKING:
    from collections.abc import Iterator

_TERM_KEY: Final = struct.Struct(">Q")
_TERM: Final = struct.Struct("<qqq")
_SNAPSHOT_KEY: Final = struct.Struct(">QQ")
_SNAPSHOT: Final = struct.Struct("<q")
_OPEN: Final = -1
_term_of = operator.attrgetter("term")
FORCED_PREFIX: Final = b"forced:"
_FORCED_KEY: Final = struct.Struct(">Q")
_FORCED: Final = struct.Struct("<qqQ")


@attrs.frozen
class TermRow:
    """A leadership term.

    Args:
        term: its id, 0 or more.
        base: log position where it begins.
        end: log position where it ends; None = it is still open.
        timestamp_ms: cluster time when it was first seen.
    """

    term: int
    base: int
    end: int | None
    timestamp_ms: int


@attrs.frozen
class SnapshotRow:
    """A snapshot of the service.

    Args:
        position: log position that it covers up to.
        term: leadership term at that position.
        timestamp_ms: cluster time when it was taken.
        name: what it is called on the disk.
    """

    position: int
    term: int
    timestamp_ms: int
    name: str


@attrs.frozen
class ForcedRow:
    """An operator has forced a quorum: the cluster began anew with what this store had.

    Args:
        position: where its log ended; what others had behind it is lost.
        term: the last term of it, -1 = none.
        timestamp_ms: by the clock of the machine.
        instance_id: of the store until then.
    """

    position: int
    term: int
    timestamp_ms: int
    instance_id: int


def with_term(rows: tuple[TermRow, ...], added: TermRow) -> tuple[TermRow, ...]:
    """Return `rows` with a term that is new, or that is there already and may get its end.

    An open row before it is closed at its base.
    """
    assert added.term >= 0
    assert added.end is None or added.end >= added.base, f"{added} ends before it begins"
    if rows and added.term <= rows[-1].term:
        return rows if added.end is None else with_end(rows, added.term, added.end)
    if rows:
        last = rows[-1]
        if last.end is None:
            last = attrs.evolve(last, end=added.base)
        assert last.end == added.base >= last.base, f"{added} does not begin at the end of {last}"
        rows = (*rows[:-1], last)
    return (*rows, added)


def with_end(rows: tuple[TermRow, ...], term: int, end: int) -> tuple[TermRow, ...]:
    """Return `rows` with `term` closed at `end`; one that has no row is left alone if it is older.

    It was skipped here, or is older than the first row.
    """
    assert rows, f"there is no term {term} to close"
    assert term <= rows[-1].term, f"there is no term {term} to close"
    index = _index_of(rows, term)
    row = rows[index]
    if row.term != term:
        return rows
    if row.end is None:
        assert end >= row.base, f"{row} can't end at {end}"
        return (*rows[:index], attrs.evolve(row, end=end))
    assert row.end == end, f"{row} can't end at {end}"
    return rows


def cut_at(
    rows: tuple[TermRow, ...], position: int, last_term: int | None = None
) -> tuple[TermRow, ...]:
    """Return what is left of `rows` when the log is truncated to `position`.

    Terms behind `last_term` go too, if it is given, even where they are empty. The term that is
    then the last one is open again: whoever caused the cut may hold more of it.
    """
    kept = [row for row in rows if row.base <= position]
    while kept and last_term is not None and kept[-1].term > last_term:
        row = kept.pop()
        assert row.base == position, f"{row} begins before the cut at {position}"
    if kept:
        kept[-1] = attrs.evolve(kept[-1], end=None)
    return tuple(kept)


def term_at(rows: tuple[TermRow, ...], position: int) -> TermRow | None:
    """Return the term that covers `position`."""
    index = bisect.bisect_right(rows, position, key=lambda row: row.base) - 1
    if index < 0:
        return None
    row = rows[index]
    return row if row.end is None or position < row.end else None


def row_of(rows: tuple[TermRow, ...], term: int) -> TermRow | None:
    """Return the row of `term`."""
    index = _index_of(rows, term)
    return rows[index] if index < len(rows) and rows[index].term == term else None


def _index_of(rows: tuple[TermRow, ...], term: int) -> int:
    """Return where the row of `term` is, or would be."""
    if rows and term == rows[-1].term:  # as mostly
        return len(rows) - 1
    return bisect.bisect_left(rows, term, key=_term_of)


def incoherences(rows: tuple[TermRow, ...]) -> Iterator[tuple[int, str]]:
    """Yield term and words wherever rows break the rules at the top of this page."""
    for before, row in itertools.pairwise(rows):
        if row.term <= before.term:
            yield row.term, f"it follows term {before.term}"
        if before.end != row.base:
            yield row.term, f"it begins at {row.base}, term {before.term} ends at {before.end}"
    for row in rows:
        if row.base < 0 or (row.end is not None and row.end < row.base):
            yield row.term, f"it covers {row.base} to {row.end}"


def encode_term(row: TermRow) -> tuple[bytes, bytes]:
    """Return key and value of a row of the table of terms."""
    key = _TERM_KEY.pack(row.term)
    end = _OPEN if row.end is None else row.end
    return key, seal(key, _TERM.pack(row.base, end, row.timestamp_ms))


def decode_term_untrusted(member_id: int, key: bytes, value: bytes) -> TermRow:
    """Decode a row of the table of terms.

    Raises:
        DamagedRecordError: it is damaged; the position is -1, for it is not known.
    """
    term = int.from_bytes(key[:8])
    try:
        base, end, timestamp_ms = unpack_untrusted(_TERM, key, unseal_untrusted(key, value))
        (term,) = unpack_untrusted(_TERM_KEY, key, key)
    except StorageError as error:
        raise DamagedRecordError(
            member_id=member_id, term=term, position=-1, reason=f"table of terms: {error}"
        ) from error
    return TermRow(term, base, None if end == _OPEN else end, timestamp_ms)


def encode_forced(row: ForcedRow) -> tuple[bytes, bytes]:
    """Return key and value of the row that says that a quorum was forced."""
    key = FORCED_PREFIX + _FORCED_KEY.pack(row.timestamp_ms)
    return key, seal(key, _FORCED.pack(row.position, row.term, row.instance_id))


def decode_forced_untrusted(key: bytes, value: bytes) -> ForcedRow:
    """Decode the row that says that a quorum was forced.

    Raises:
        StorageError: it is damaged.
    """
    body = unseal_untrusted(key, value)
    (timestamp_ms,) = unpack_untrusted(_FORCED_KEY, key, key[len(FORCED_PREFIX) :])
    position, term, instance_id = unpack_untrusted(_FORCED, key, body)
    return ForcedRow(position, term, timestamp_ms, instance_id)


def encode_snapshot(row: SnapshotRow) -> tuple[bytes, bytes]:
    """Return key and value of a row of the table of snapshots."""
    key = _SNAPSHOT_KEY.pack(row.position, row.term)
    return key, seal(key, _SNAPSHOT.pack(row.timestamp_ms) + row.name.encode())


def decode_snapshot_untrusted(member_id: int, key: bytes, value: bytes) -> SnapshotRow:
    """Decode a row of the table of snapshots.

    Raises:
        DamagedRecordError: it is damaged.
    """
    position, term = int.from_bytes(key[:8]), int.from_bytes(key[8:16])
    try:
        body = unseal_untrusted(key, value)
        (timestamp_ms,) = unpack_untrusted(_SNAPSHOT, key, body[: _SNAPSHOT.size])
        name = body[_SNAPSHOT.size :].decode()
        position, term = unpack_untrusted(_SNAPSHOT_KEY, key, key)
    except (StorageError, UnicodeDecodeError) as error:
        raise DamagedRecordError(
            member_id=member_id, term=term, position=position, reason=f"snapshots: {error}"
        ) from error
    return SnapshotRow(position, term, timestamp_ms, name)
