"""The log table: record batches under the key (term, position), in the order of the log.

::

    key      term       u64, big endian
             position   u64, big endian
    value    one whole record batch, see `batch`

Terms never decrease along the log, so the order of the keys is the order of the log. Appending
relies on that (``MDB_APPEND`` looks at the last key only). Truncating deletes keys from the end,
pruning from the start.

A reader checks each batch's checksum, compares its header with its key, and checks that it begins
where the batch before ended. What does not fit is reported with member, term and position. It is
never skipped.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import attrs

from ...errors import DamagedRecordError, WireError
from .batch import BatchHeader, check_sum_untrusted

if TYPE_CHECKING:
    from ..lmdb.environment import Cursor, Transaction
    from ..rows.databases import Databases

KEY: Final = struct.Struct(">QQ")
END_KEY: Final = b"\xff" * KEY.size
"""Above every key of the log."""


@attrs.frozen
class Record:
    """A row of the log table, unchecked."""

    term: int
    position: int
    batch: bytes

    @property
    def end(self) -> int:
        """Position behind it by the length of its bytes, whatever its header says."""
        return self.position + len(self.batch)


def decode_key_untrusted(member_id: int, key: bytes) -> tuple[int, int]:
    """Return term and position of a key.

    Raises:
        DamagedRecordError: the key has another length.
    """
    # LMDB has no checksum of its keys, so a damaged one may have any length.
    if len(key) != KEY.size:
        raise DamagedRecordError(
            member_id=member_id, term=-1, position=-1, reason=f"key {key.hex()} in the log"
        )
    term, position = KEY.unpack(key)
    return term, position


def check_record_untrusted(member_id: int, record: Record) -> BatchHeader:
    """Check a record's checksum, and that it is the batch that its key names; return its header.

    Raises:
        DamagedRecordError: one of them differs.
    """
    try:
        header = check_sum_untrusted(record.batch)
    except WireError as error:
        reason = str(error)
    else:
        # A whole batch under another key is damage as well: it is no batch of this place (I-43).
        if (header.term, header.position) == (record.term, record.position):
            return header
        reason = f"its header says term {header.term}, position {header.position}"
    raise DamagedRecordError(
        member_id=member_id, term=record.term, position=record.position, reason=reason
    )


def last_record(cursor: Cursor, member_id: int) -> Record | None:
    """Return the last record, unchecked."""
    return _current(cursor, member_id) if cursor.last() else None


def record_at(cursor: Cursor, member_id: int, term: int, position: int) -> Record | None:
    """Return the record with exactly this key, unchecked; the cursor stays there."""
    # Exactly this key: `set_range` would skip a missing batch, and nobody would notice the hole
    # (I-41).
    return _current(cursor, member_id) if cursor.set_key(KEY.pack(term, position)) else None


def next_record(cursor: Cursor, member_id: int) -> Record | None:
    """Return the record behind the cursor's, unchecked."""
    return _current(cursor, member_id) if cursor.next() else None


def record_before(cursor: Cursor, member_id: int, key: bytes) -> Record | None:
    """Return the last record below `key`, unchecked."""
    # `set_range` stops at the first key at or above `key`. Without one, the last record is the one
    # before.
    there = cursor.prev() if cursor.set_range(key) else cursor.last()
    return _current(cursor, member_id) if there else None


def _current(cursor: Cursor, member_id: int) -> Record:
    term, position = decode_key_untrusted(member_id, cursor.key())
    # A copy: LMDB's own memory is valid only until the transaction ends, and batches are checked
    # after that.
    return Record(term, position, cursor.value())


def put_record(txn: Transaction, dbs: Databases, record: Record) -> None:
    """Put a record behind all others."""
    key = KEY.pack(record.term, record.position)
    # MDB_APPEND refuses a key that is not above the last one: a second record for a position.
    stored = txn.put(key, record.batch, append=True, db=dbs.log)
    assert stored, f"term {record.term}, position {record.position} is not behind the last key"


def delete_from(cursor: Cursor, key: bytes) -> None:
    """Delete the records at and above `key`."""
    more = cursor.set_range(key)
    while more:
        cursor.delete()  # which moves the cursor to the next key
        more = bool(cursor.key())


def delete_before(cursor: Cursor, key: bytes) -> None:
    """Delete the records below `key`."""
    more = cursor.first()
    while more and cursor.key() < key:
        cursor.delete()  # which moves the cursor to the next key
        more = bool(cursor.key())
