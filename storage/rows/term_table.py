"""The term table: which term covers which positions. Also rows of snapshots and forced quorums.

A term covers the half-open range `[base, end)`. Rows ascend by term. Each begins where the one
before it ends, and only the last may be open::

    term 0   [0 ............ 640)
    term 3                  [640 ... 960)        terms 1 and 2: this member never heard of them
    term 4                          [960, 960)   nothing was recorded in term 4
    term 5                          [960 ...     open

A skipped term has no row, so a jump of the term costs nothing. The rules are pure functions from
rows to rows; the store writes the rows that changed. (Aeron calls this the recording log, see its
`RecordingLog.ensureCoherent` and `commitLogPosition`. There a skipped term gets an empty row, and
bases that do not meet are silently overridden.)

::

    table       key                         value
    terms       term u64                    base i64, end i64 (-1: open), timestamp i64
    snapshots   position u64, term u64      timestamp i64, name UTF-8
    meta        "forced:", time u64         position i64, term i64, instance id u64

Keys are big endian, so that LMDB sorts them by number; values are little endian. Each value ends
with a checksum of key and value (`lmdb.sealed_rows`).
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
# In the place of a position, of which none is negative: each row has the same length.
_OPEN: Final = -1
_term_of = operator.attrgetter("term")
FORCED_PREFIX: Final = b"forced:"
_FORCED_KEY: Final = struct.Struct(">Q")
_FORCED: Final = struct.Struct("<qqQ")


@attrs.frozen
class TermRow:
    """A leadership term.

    Args:
        term: its number, 0 or more.
        base: log position where it begins.
        end: log position where it ends; None = open.
        timestamp_ms: log time when this member first recorded it.
    """

    term: int
    base: int
    end: int | None
    timestamp_ms: int


@attrs.frozen
class SnapshotRow:
    """A snapshot of the service.

    Args:
        position: log position up to which it has everything.
        term: leadership term at that position.
        timestamp_ms: log time when it was taken.
        name: of its file.
    """

    position: int
    term: int
    timestamp_ms: int
    name: str


@attrs.frozen
class ForcedRow:
    """An operator forced a quorum: the cluster began anew with what this store had.

    Args:
        position: where its log ended; entries that other members had behind it are lost.
        term: last term of that log, -1 = none.
        timestamp_ms: by the clock of the machine.
        instance_id: of the store before that.
    """

    position: int
    term: int
    timestamp_ms: int
    instance_id: int


def with_term(rows: tuple[TermRow, ...], added: TermRow) -> tuple[TermRow, ...]:
    """Return `rows` with a new term, or with the end of a term that is there.

    An open row before a new term is closed at the new term's base.
    """
    assert added.term >= 0
    assert added.end is None or added.end >= added.base, f"{added} ends before it begins"
    # A term that is there already, or was skipped: it can get an end, never another base.
    if rows and added.term <= rows[-1].term:
        return rows if added.end is None else with_end(rows, added.term, added.end)
    if rows:
        last = rows[-1]
        # The new term begins behind the last batch, so no batch of the old one can follow (I-12).
        if last.end is None:
            last = attrs.evolve(last, end=added.base)
        # A gap would be positions of no term, an overlap positions of two (I-12).
        assert last.end == added.base >= last.base, f"{added} does not begin at the end of {last}"
        rows = (*rows[:-1], last)
    # A new tuple: the one before may still be the durable state, which readers hold.
    return (*rows, added)


def with_end(rows: tuple[TermRow, ...], term: int, end: int) -> tuple[TermRow, ...]:
    """Return `rows` with `term` closed at `end`.

    An older term without a row was skipped here, or is below the first row; it needs no end.
    """
    assert rows, f"there is no term {term} to close"
    assert term <= rows[-1].term, f"there is no term {term} to close"
    # Found by its term, never used as an index: skipped terms have no row. Aeron's validation of
    # the table mixes up two indices (H12).
    index = _index_of(rows, term)
    row = rows[index]
    # Aeron gives a skipped term an empty row. Here it has none, so there is nothing to close.
    if row.term != term:
        return rows
    if row.end is None:
        assert end >= row.base, f"{row} can't end at {end}"
        return (*rows[:index], attrs.evolve(row, end=end))
    # Two ends of one term would be two histories of it (I-10).
    assert row.end == end, f"{row} can't end at {end}"
    return rows


def cut_at(
    rows: tuple[TermRow, ...], position: int, last_term: int | None = None
) -> tuple[TermRow, ...]:
    """Return what is left of `rows` when the log is truncated to `position`.

    Terms above `last_term`, if given, go too, even empty ones. The last row left is open again: the
    leader that caused the cut may have more of that term.
    """
    kept = [row for row in rows if row.base <= position]
    # The leader's table has no such terms. Kept, they would make this log look newer than the
    # leader's.
    while kept and last_term is not None and kept[-1].term > last_term:
        row = kept.pop()
        assert row.base == position, f"{row} begins before the cut at {position}"
    if kept:
        kept[-1] = attrs.evolve(kept[-1], end=None)
    return tuple(kept)


def term_at(rows: tuple[TermRow, ...], position: int) -> TermRow | None:
    """Return the row that covers `position`, None without one."""
    # To the right: of several terms with this base, all but the last are empty.
    index = bisect.bisect_right(rows, position, key=lambda row: row.base) - 1
    if index < 0:
        return None
    row = rows[index]
    # Behind the last term, if that is closed, no term covers a position.
    return row if row.end is None or position < row.end else None


def row_of(rows: tuple[TermRow, ...], term: int) -> TermRow | None:
    """Return the row of `term`, None without one."""
    index = _index_of(rows, term)
    return rows[index] if index < len(rows) and rows[index].term == term else None


def _index_of(rows: tuple[TermRow, ...], term: int) -> int:
    """Return the index of the row of `term`, or where it would be."""
    if rows and term == rows[-1].term:  # nearly always
        return len(rows) - 1
    return bisect.bisect_left(rows, term, key=_term_of)


def incoherences(rows: tuple[TermRow, ...]) -> Iterator[tuple[int, str]]:
    """Yield term and reason wherever rows break the rules above."""
    for before, row in itertools.pairwise(rows):
        if row.term <= before.term:
            yield row.term, f"it follows term {before.term}"
        if before.end != row.base:
            yield row.term, f"it begins at {row.base}, term {before.term} ends at {before.end}"
    # Each row for itself: pairs say nothing about a table with one row.
    for row in rows:
        if row.base < 0 or (row.end is not None and row.end < row.base):
            yield row.term, f"it covers {row.base} to {row.end}"


def encode_term(row: TermRow) -> tuple[bytes, bytes]:
    """Return key and value of a row of the term table."""
    key = _TERM_KEY.pack(row.term)
    end = _OPEN if row.end is None else row.end
    return key, seal(key, _TERM.pack(row.base, end, row.timestamp_ms))


def decode_term_untrusted(member_id: int, key: bytes, value: bytes) -> TermRow:
    """Decode a row of the term table.

    Raises:
        DamagedRecordError: it is damaged; with position -1, since that is unknown.
    """
    # Without a check: the error must name some term, even of a damaged key.
    term = int.from_bytes(key[:8])
    try:
        base, end, timestamp_ms = unpack_untrusted(_TERM, key, unseal_untrusted(key, value))
        (term,) = unpack_untrusted(_TERM_KEY, key, key)
    except StorageError as error:
        raise DamagedRecordError(
            member_id=member_id, term=term, position=-1, reason=f"term table: {error}"
        ) from error
    return TermRow(term, base, None if end == _OPEN else end, timestamp_ms)


def encode_forced(row: ForcedRow) -> tuple[bytes, bytes]:
    """Return key and value of the row about a forced quorum."""
    # The time is in the key, so a second forcing adds a row: none may hide an earlier one.
    key = FORCED_PREFIX + _FORCED_KEY.pack(row.timestamp_ms)
    return key, seal(key, _FORCED.pack(row.position, row.term, row.instance_id))


def decode_forced_untrusted(key: bytes, value: bytes) -> ForcedRow:
    """Decode the row about a forced quorum.

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
