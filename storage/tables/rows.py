"""The encoding of the tables' rows, each with a checksum.

::

    record      tag       u8
                expires   u64   log time in ms, 0 for never
                revision  u64
                checksum  u32   CRC-32C of the key, of the 17 bytes above, and of the value
                [length   u32   of the key; only if the key is stored hashed, see `memtable`]
                [key            likewise]
                value

    deadline    expires   u64
                checksum  u32   CRC-32C of the text "<expires> <key>"
                [key            only if it is stored hashed]

    note        checksum  u32   CRC-32C of key and row
                row

Integers are little endian. LMDB does not check what it stores. Our checksum covers the key too, so
a row under a wrong key is noticed. A row whose checksum differs is never used: the log, or a
snapshot, can rebuild the tables.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from ...errors import StorageError
from ..lmdb.checksum import crc32c, extend_crc32c
from .memtable import HASHED_BYTES, stored_key

if TYPE_CHECKING:
    from .memtable import Record

__all__ = [
    "decode_deadline_untrusted",
    "decode_note_untrusted",
    "decode_record_untrusted",
    "encode_deadline",
    "encode_note",
    "encode_record",
    "hashed_key_untrusted",
]

_RECORD: Final = struct.Struct("<BQQ")
_SUM: Final = struct.Struct("<I")
_HEAD_BYTES: Final = _RECORD.size + _SUM.size
_LENGTH: Final = struct.Struct("<I")
_DEADLINE: Final = struct.Struct("<QI")


def encode_record(key: bytes, record: Record) -> bytes:
    """Encode the record of a key."""
    value, expires_at_ms, revision, tag = record
    head = _RECORD.pack(tag, expires_at_ms, revision)
    head += _SUM.pack(extend_crc32c(crc32c(key + head), value))
    if 0 < len(key) < HASHED_BYTES:
        return head + value
    return b"".join((head, _LENGTH.pack(len(key)), key, value))


def decode_record_untrusted(key: bytes, data: bytes) -> Record:
    """Decode the record of `key`.

    Raises:
        StorageError: this is not what was encoded for that key.
    """
    if len(data) < _HEAD_BYTES:
        raise _damaged(key, f"{len(data)} bytes, expected {_HEAD_BYTES} at least")
    at = _HEAD_BYTES
    if not 0 < len(key) < HASHED_BYTES:
        if hashed_key_untrusted(stored_key(key), data) != key:
            raise _damaged(key, "it names another key")
        at += _LENGTH.size + len(key)
    value = data[at:]
    checksum = extend_crc32c(crc32c(key + data[: _RECORD.size]), value)
    if _SUM.unpack_from(data, _RECORD.size) != (checksum,):
        raise _damaged(key, "its checksum differs")
    tag, expires_at_ms, revision = _RECORD.unpack_from(data)
    return value, expires_at_ms, revision, tag


def hashed_key_untrusted(stored: bytes, data: bytes) -> bytes:
    """Return the key in the record of a key that is stored hashed.

    Raises:
        StorageError: it is not the key that is stored under that hash.
    """
    at = _HEAD_BYTES + _LENGTH.size
    if len(data) < at:
        raise StorageError(f"row of a hashed key is damaged: {len(data)} bytes")
    (length,) = _LENGTH.unpack_from(data, _HEAD_BYTES)
    key = data[at : at + length]
    if len(key) != length or stored_key(key) != stored:
        raise StorageError(
            f"row of a hashed key is damaged: {stored[:64]!r}... is the place of another key"
        )
    return key


def encode_deadline(key: bytes, deadline_ms: int) -> bytes:
    """Encode when a key expires."""
    data = _DEADLINE.pack(deadline_ms, _sum_of_deadline(key, deadline_ms))
    return data if 0 < len(key) < HASHED_BYTES else data + key


def decode_deadline_untrusted(stored: bytes, data: bytes) -> tuple[bytes, int]:
    """Decode a key and when it expires.

    Raises:
        StorageError: this is not what was encoded for that stored key.
    """
    key = data[_DEADLINE.size :] if len(stored) == HASHED_BYTES else stored
    fixed = len(data) - len(key) if len(stored) == HASHED_BYTES else len(data)
    if fixed == _DEADLINE.size and stored_key(key) == stored:
        deadline_ms, checksum = _DEADLINE.unpack_from(data)
        if checksum == _sum_of_deadline(key, deadline_ms):
            return key, deadline_ms
    raise _damaged(key, "its deadline is not what was written")


def encode_note(key: bytes, row: bytes) -> bytes:
    """Encode a note."""
    return _SUM.pack(crc32c(key + row)) + row


def decode_note_untrusted(key: bytes, data: bytes) -> bytes:
    """Decode a note.

    Raises:
        StorageError: this is not what was encoded for that key.
    """
    row = data[_SUM.size :]
    if data[: _SUM.size] != _SUM.pack(crc32c(key + row)):
        raise StorageError(f"note {key[:64]!r} is damaged: its checksum differs")
    return row


def _sum_of_deadline(key: bytes, deadline_ms: int) -> int:
    return crc32c(b"%d %b" % (deadline_ms, key))


def _damaged(key: bytes, words: str) -> StorageError:
    return StorageError(f"record of key {key[:64]!r} is damaged: {words}")
