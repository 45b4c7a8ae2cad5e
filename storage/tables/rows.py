"""The encoding of the tables' rows, each with a checksum.

LMDB does not check what it stores. Our checksum covers the key too, so a row under a wrong key is
noticed. A row whose checksum differs is never used: the log, or a snapshot, can rebuild the tables.
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
    """Encode a record: tag (1 byte), expiry, revision (8 each), checksum (4), value; little-endian.

    Of a key that is stored hashed, the length (4) and the whole key stand before the value. The
    checksum is the CRC-32C of the key, of what stands before it, and of the value.
    """
    value, expires_at_ms, revision, tag = record
    head = _RECORD.pack(tag, expires_at_ms, revision)
    head += _SUM.pack(extend_crc32c(crc32c(key + head), value))
    if 0 < len(key) < HASHED_BYTES:
        return head + value
    return b"".join((head, _LENGTH.pack(len(key)), key, value))


def decode_record_untrusted(key: bytes, data: bytes) -> Record:
    """Decode the record of `key`.

    Raises:
        StorageError: it is not what was encoded for that key.
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
    """Return the key that the record of a key that is stored hashed names.

    Raises:
        StorageError: it is not the one that is stored so.
    """
    at = _HEAD_BYTES + _LENGTH.size
    if len(data) < at:
        raise StorageError(f"row of a hashed key is damaged: {len(data)} bytes")
    (length,) = _LENGTH.unpack_from(data, _HEAD_BYTES)
    key = data[at : at + length]
    if len(key) != length or stored_key(key) != stored:
        raise StorageError(f"row of a hashed key is damaged: {stored[:64]!r}... is another's place")
    return key


def encode_deadline(key: bytes, deadline_ms: int) -> bytes:
    """Encode when a key expires: time (8 bytes), checksum (4); the key if it is stored hashed."""
    data = _DEADLINE.pack(deadline_ms, _sum_of_deadline(key, deadline_ms))
    return data if 0 < len(key) < HASHED_BYTES else data + key


def decode_deadline_untrusted(stored: bytes, data: bytes) -> tuple[bytes, int]:
    """Decode a key and when it expires.

    Raises:
        StorageError: it is not what was encoded for that stored key.
    """
    key = data[_DEADLINE.size :] if len(stored) == HASHED_BYTES else stored
    whole = len(data) - len(key) if len(stored) == HASHED_BYTES else len(data)
    if whole == _DEADLINE.size and stored_key(key) == stored:
        deadline_ms, checksum = _DEADLINE.unpack_from(data)
        if checksum == _sum_of_deadline(key, deadline_ms):
            return key, deadline_ms
    raise _damaged(key, "when it expires is not what was written")


def encode_note(key: bytes, row: bytes) -> bytes:
    """Encode a note: checksum of its key and of itself (4 bytes), then the row."""
    return _SUM.pack(crc32c(key + row)) + row


def decode_note_untrusted(key: bytes, data: bytes) -> bytes:
    """Decode a note.

    Raises:
        StorageError: it is not what was encoded for that key.
    """
    row = data[_SUM.size :]
    if data[: _SUM.size] != _SUM.pack(crc32c(key + row)):
        raise StorageError(f"note {key[:64]!r} is damaged: its checksum differs")
    return row


def _sum_of_deadline(key: bytes, deadline_ms: int) -> int:
    return crc32c(b"%d %b" % (deadline_ms, key))


def _damaged(key: bytes, words: str) -> StorageError:
    return StorageError(f"record of key {key[:64]!r} is damaged: {words}")
