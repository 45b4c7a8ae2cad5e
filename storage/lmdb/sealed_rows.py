"""Small records beside the log (identity, votes, terms, snapshots), each with its own checksum.

LMDB does not check what it stores. A batch of the log carries a checksum in its header; these
rows carry one behind their body. It covers the key too, so that a row found under a key it does
not belong to is noticed.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, TypeVar

from ...errors import LostStoreError, StorageError
from .checksum import crc32c

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_SUM: Final = struct.Struct("<I")
_MAX_ROW_BYTES: Final = 4096


def seal(key: bytes, body: bytes) -> bytes:
    """Return the value to store for `key`."""
    assert len(body) + _SUM.size <= _MAX_ROW_BYTES, f"a row of {len(body)} bytes"
    return body + _SUM.pack(crc32c(key + body))


def unseal_untrusted(key: bytes, value: bytes | None) -> bytes:
    """Return the body that was sealed for `key`.

    Raises:
        StorageError: it is missing, or not what was sealed.
    """
    if value is None:
        raise StorageError(f"row {key!r} is missing")
    body, found = value[: -_SUM.size], value[-_SUM.size :]
    if len(value) > _MAX_ROW_BYTES or found != _SUM.pack(crc32c(key + body)):
        raise StorageError(f"row {key!r} is damaged: its checksum differs")
    return body


def unpack_untrusted(layout: struct.Struct, key: bytes, body: bytes) -> tuple[int, ...]:
    """Unpack a body of integers.

    Raises:
        StorageError: it has another length.
    """
    if len(body) != layout.size:
        raise StorageError(f"row {key!r} is damaged: {len(body)} bytes, expected {layout.size}")
    return layout.unpack(body)


def irreplaceable_row(member_id: int, what: str, read: Callable[[], T]) -> T:
    """Return a row of a member that nobody else has.

    Args:
        member_id: whose it is.
        what: it says, in words.
        read: reads it.

    Raises:
        LostStoreError: it is damaged: the store may not vote as if nothing had been.
    """
    try:
        return read()
    except StorageError as error:
        words = f"member {member_id}: table meta: {error}; {what} is lost with it"
        raise LostStoreError(words) from error
