"""A hash of the rows up to a revision: equal on all members that have applied the same log.

It goes through the index, a slice at a time, so that a member can do other things in between. What
is written then has a later revision, and does not count.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final
from zlib import crc32

from .places import first_place, row_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .keys import Keys

__all__ = ["hash_slices"]

SLICE_ROWS: Final = 500
"""Rows of one slice: some milliseconds."""

SLICE_BYTES: Final = 4 << 20
"""Bytes after which a slice ends early."""


def hash_slices(keys: Keys, revision: int, compacted: int) -> Iterator[int]:
    """Yield the CRC-32 of more and more of the rows up to a revision; the last one has all.

    Rows that a compaction is going to remove do not count: members are not equally far with that at
    the moment when they are asked. Nothing may be compacted further from one slice to the next.
    """
    start, end = first_place(compacted), first_place(revision + 1)
    digest = 0
    last: tuple[bytes, int] = (b"", -1)
    found = [last]
    while found:
        size = 0
        found = list(islice(keys.places_behind(*last, end), SLICE_ROWS))
        for key, place in found:
            last = (key, place)
            if place < start and (place & 1 or keys.is_superseded(key, place, start)):
                continue
            row = keys.row(place)
            digest = crc32(row, crc32(row_key(place), digest))
            size += len(row)
            if size > SLICE_BYTES:
                break
        yield digest
