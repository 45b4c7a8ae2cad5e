"""Small rows (identity, vote, terms, snapshots), each with a checksum of its own.

::

    value    body
             checksum  u32, little endian: CRC-32C of key and body

LMDB does not check what it stores. The checksum covers the key too, so a row that is found under
another row's key is noticed.
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
_MAX_BODY_BYTES: Final = 4092
"""Longest body unless the caller says otherwise. A longer value is damage, and is not summed."""


def seal(key: bytes, body: bytes, *, max_bytes: int = _MAX_BODY_BYTES) -> bytes:
    """Return the value to store for `key`."""
    assert len(body) <= max_bytes, f"a row of {len(body)} bytes"
    return body + _SUM.pack(crc32c(key + body))


def unseal_untrusted(key: bytes, value: bytes | None, *, max_bytes: int = _MAX_BODY_BYTES) -> bytes:
    """Return the body that was sealed for `key`.

    Raises:
        StorageError: the value is missing, or is not what was sealed.
    """
    if value is None:
        raise StorageError(f"row {key!r} is missing")
    body, checksum = value[: -_SUM.size], value[-_SUM.size :]
    if len(body) > max_bytes or checksum != _SUM.pack(crc32c(key + body)):
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
    """Return a row that no other member can send again, such as the vote.

    Args:
        member_id: of the store.
        what: the row says, in words.
        read: reads the row.

    Raises:
        LostStoreError: the row is damaged. The store may not go on as if nothing had been there.
    """
    try:
        return read()
    except StorageError as error:
        words = f"member {member_id}: table meta: {error}; {what} is lost with it"
        raise LostStoreError(words) from error
