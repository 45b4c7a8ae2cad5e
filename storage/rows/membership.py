"""The configurations of the log: one row for each batch that holds one.

A MEMBERSHIP entry is alone in its batch and holds a whole configuration of the cluster. The row has
the same bytes, so that a member knows its configurations without reading its log. Here they are
only bytes: :mod:`quorate.node` knows their meaning, and which one is in force.

::

    table       key                                     value
    members     end of the batch u64 (big endian)       term i64, payload

A row goes with its batch: it is written by the append, and dropped by a truncation below it. The
newest row at or below the start of the log outlives its batch, since it is in force there. A
snapshot brings a row for its own position. Each value ends with a checksum (`lmdb.sealed_rows`).
"""

from __future__ import annotations

import bisect
import operator
import struct
from typing import Final

import attrs

from ...errors import DamagedRecordError, StorageError
from ..lmdb.sealed_rows import seal, unpack_untrusted, unseal_untrusted

MAX_MEMBERSHIP_BYTES: Final = 64 * 1024
"""Longest payload. All rows are in memory, and the newest one is in the head of each snapshot: with
more, a head gets too long to be read. With less, a large cluster's configuration does not fit."""

_KEY: Final = struct.Struct(">Q")
_TERM: Final = struct.Struct("<q")
_MAX_BYTES: Final = _TERM.size + MAX_MEMBERSHIP_BYTES
_position_of = operator.attrgetter("position")


@attrs.frozen
class MembershipRow:
    """A configuration of the log.

    Args:
        term: of the batch that holds it.
        position: end of that batch.
        payload: of its entry, at most `MAX_MEMBERSHIP_BYTES`.
    """

    term: int
    position: int
    payload: bytes


def up_to(rows: tuple[MembershipRow, ...], position: int) -> tuple[MembershipRow, ...]:
    """Return the rows that a log has which ends at `position`."""
    # The same tuple if no row goes, here and below: callers notice a change by that.
    count = bisect.bisect_right(rows, position, key=_position_of)
    return rows if count == len(rows) else rows[:count]


def needed_from(rows: tuple[MembershipRow, ...], start: int) -> tuple[MembershipRow, ...]:
    """Return the rows that a log needs which begins at `start`."""
    # The newest one at or below the start, too: it is in force until the next one.
    first = max(bisect.bisect_right(rows, start, key=_position_of) - 1, 0)
    return rows[first:] if first else rows


def membership_key(position: int) -> bytes:
    """Return the key of the row at `position`."""
    return _KEY.pack(position)


def encode_membership(row: MembershipRow) -> tuple[bytes, bytes]:
    """Return key and value of a row."""
    key = membership_key(row.position)
    return key, seal(key, _TERM.pack(row.term) + row.payload, max_bytes=_MAX_BYTES)


def decode_membership_untrusted(member_id: int, key: bytes, value: bytes) -> MembershipRow:
    """Decode a row.

    Raises:
        DamagedRecordError: it is damaged; with term -1, since that is unknown.
    """
    # Without a check: the error must name some position, even of a damaged key.
    position = int.from_bytes(key[:8])
    try:
        body = unseal_untrusted(key, value, max_bytes=_MAX_BYTES)
        (term,) = unpack_untrusted(_TERM, key, body[: _TERM.size])
        (position,) = unpack_untrusted(_KEY, key, key)
    except StorageError as error:
        raise DamagedRecordError(
            member_id=member_id, term=-1, position=position, reason=f"configurations: {error}"
        ) from error
    return MembershipRow(term, position, body[_TERM.size :])
