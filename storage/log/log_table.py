"""The log table: record batches under the key (term, position), in the order of the log.

Keys are two big-endian unsigned 64-bit integers, values are whole batches. Appending relies on
the order (`MDB_APPEND`), truncating drops keys from the end, pruning from the start. Reading
checks the checksum and the key of every batch and that each begins where the one before it
ended; what does not fit is reported with member, term and position, and never skipped.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import attrs

from ...errors import DamagedRecordError, WireError
from .batch import BatchHeader, check_sum_untrusted

if TYPE_CHECKING:
    from ..lmdb.environment import Cursor, Transaction
    from .databases import Databases

KEY: Final = struct.Struct(">QQ")
END_KEY: Final = b"\xff" * KEY.size
"""Behind every key of the log."""


@attrs.frozen
class Record:
    """A raw record of the log table: not checked."""

    term: int
    position: int
    batch: bytes

    @property
    def end(self) -> int:
        """Log position behind it, whatever its header says."""
        return self.position + len(self.batch)


def decode_key_untrusted(member_id: int, key: bytes) -> tuple[int, int]:
    """Return term and position.

    Raises:
        DamagedRecordError: no key of the log has this length.
    """
    if len(key) != KEY.size:
        raise DamagedRecordError(
            member_id=member_id, term=-1, position=-1, reason=f"key {key.hex()} in the log"
        )
    term, position = KEY.unpack(key)
    return term, position


def check_record_untrusted(member_id: int, record: Record) -> BatchHeader:
    """Check a record: its checksum, and that it is the batch that its key names.

    Raises:
        DamagedRecordError: it is not.
    """
    try:
        header = check_sum_untrusted(record.batch)
    except WireError as error:
        reason = str(error)
    else:
        if (header.term, header.position) == (record.term, record.position):
            return header
        reason = f"its header says term {header.term}, position {header.position}"
    raise DamagedRecordError(
        member_id=member_id, term=record.term, position=record.position, reason=reason
    )


def last_record(cursor: Cursor, member_id: int) -> Record | None:
    """Return the last raw record."""
    return _current(cursor, member_id) if cursor.last() else None


def record_at(cursor: Cursor, member_id: int, term: int, position: int) -> Record | None:
    """Return the raw record with just this key, and leave the cursor there."""
    return _current(cursor, member_id) if cursor.set_key(KEY.pack(term, position)) else None


def next_record(cursor: Cursor, member_id: int) -> Record | None:
    """Return the raw record behind the cursor's."""
    return _current(cursor, member_id) if cursor.next() else None


def record_before(cursor: Cursor, member_id: int, key: bytes) -> Record | None:
    """Return the last raw record in front of `key`."""
    found = cursor.prev() if cursor.set_range(key) else cursor.last()
    return _current(cursor, member_id) if found else None


def _current(cursor: Cursor, member_id: int) -> Record:
    term, position = decode_key_untrusted(member_id, cursor.key())
    return Record(term, position, cursor.value())


def put_record(txn: Transaction, dbs: Databases, record: Record) -> None:
    """Put a record behind all others."""
    key = KEY.pack(record.term, record.position)
    stored = txn.put(key, record.batch, append=True, db=dbs.log)
    assert stored, f"term {record.term}, position {record.position} is not behind the last key"


def delete_from(cursor: Cursor, key: bytes) -> None:
    """Delete the records at `key` and behind it."""
    found = cursor.set_range(key)
    while found:
        cursor.delete()
        found = bool(cursor.key())


def delete_before(cursor: Cursor, key: bytes) -> None:
    """Delete the records in front of `key`."""
    found = cursor.first()
    while found and cursor.key() < key:
        cursor.delete()
        found = bool(cursor.key())
