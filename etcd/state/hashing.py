"""A hash of the rows up to a revision: equal on all members that have applied the same log."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from ..messages import rpc_pb2 as rpc
from .places import ROW_KEY_BYTES, first_place, row_place

if TYPE_CHECKING:
    from .keys import Keys
    from .rows import StateTables
    from .work import Work

__all__ = ["hash_rows"]


def hash_rows(tables: StateTables, keys: Keys, work: Work, revision: int, compacted: int) -> int:
    """Return the CRC-32 of the rows up to a revision.

    Rows that a compaction is going to remove do not count: members are not equally far with that at
    the moment when they are asked.

    Raises:
        EtcdError: there are more rows than a request may look at.
    """
    digest = 0
    start, end = first_place(compacted), first_place(revision + 1)
    kv = rpc.KeyValue()
    for found, row in tables.all_rows():
        if len(found) != ROW_KEY_BYTES:  # no row of a version
            continue
        work.look()
        place = row_place(found, deleted=False)
        if place >= end:
            break
        if place < start:
            kv.ParseFromString(row)
            if not kv.version or keys.is_superseded(kv.key, place, start):
                continue
        digest = crc32(row, crc32(found, digest))
    return digest
