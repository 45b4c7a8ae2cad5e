"""Where a version of a key lies: one number, so that the history of a key is an array of numbers.

A place is ``revision << 21 | sub << 1 | deleted``. Places are in the order of the changes.
"""

import struct
from typing import Final

__all__ = ["MAX_SUB", "first_place", "place_of", "revision_of", "row_key", "row_place", "sub_of"]

_SUB_BITS: Final = 20
_SHIFT: Final = _SUB_BITS + 1
MAX_SUB: Final = (1 << _SUB_BITS) - 1
"""The last change that one revision can have. `work.py` and `leases.py` keep it far away."""

_ROW_KEY: Final = struct.Struct(">qI")
ROW_KEY_BYTES: Final = _ROW_KEY.size


def place_of(revision: int, sub: int, *, deleted: bool) -> int:
    """Return the place of a change."""
    return revision << _SHIFT | sub << 1 | deleted


def first_place(revision: int) -> int:
    """Return a place that no change of an earlier revision reaches."""
    return revision << _SHIFT


def revision_of(place: int) -> int:
    """Return the revision of a place."""
    return place >> _SHIFT


def sub_of(place: int) -> int:
    """Return which change of its revision lies there."""
    return place >> 1 & MAX_SUB


def row_key(place: int) -> bytes:
    """Return the key of the row of a place."""
    return _ROW_KEY.pack(place >> _SHIFT, place >> 1 & MAX_SUB)


def row_place(key: bytes, *, deleted: bool) -> int:
    """Return the place that belongs to the key of a row."""
    revision, sub = _ROW_KEY.unpack(key)
    return place_of(revision, sub, deleted=deleted)
