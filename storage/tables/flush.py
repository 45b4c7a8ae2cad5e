"""What a flush writes to the tables on disk: the changes since the one before it.

A flush works in short steps and sleeps for a moment after each, so that the event loop waits for
one of them. To let the interpreter go, as each call of LMDB does, is not enough: where
processors are scarce it has it back before a thread that waits has woken up, until that thread
insists, which takes 5 ms.
"""

from __future__ import annotations

import heapq
import time
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

import attrs

from ..lmdb.checksum import crc32c
from .memtable import Layer, stored_key
from .rows import encode_deadline, encode_note, encode_record, encode_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import lmdb

    from ..lmdb.environment import Transaction
    from .databases import TablesDatabases

T = TypeVar("T")

_STEP: Final = 256
_STEP_BYTES: Final = 256 << 10
_PAUSE_S: Final = 0.00005


@attrs.frozen
class Cut:
    """A frozen layer and the point of the log at which it was cut: what one flush writes.

    Args:
        layer: the changes.
        deadlines: those that have changed, 0 for those taken away.
        notes: those that have changed, None for those deleted.
        position: log position up to which everything is applied.
        timestamp_ms: log time there.
    """

    layer: Layer
    deadlines: dict[bytes, int]
    notes: dict[bytes, bytes | None]
    position: int
    timestamp_ms: int


def write_changes(txn: Transaction, dbs: TablesDatabases, cut: Cut) -> None:
    """Write the changes of a cut in a transaction, over what lies below it; on any thread."""
    _write_records(txn, dbs.records, cut.layer)
    _write_deadlines(txn, dbs.deadlines, cut.deadlines)
    for key, row in cut.notes.items():
        if row is None:
            txn.delete(key, db=dbs.notes)
        else:
            txn.put(key, encode_note(key, row), db=dbs.notes)


def _write_records(txn: Transaction, database: lmdb._Database, layer: Layer) -> None:
    cursor, records, size = txn.cursor(database), layer.records, 0
    for stored in _steps(heapq.merge(*layer.runs())):
        rows, rest = encode_rows(stored, records, crc32c)
        cursor.putmulti(rows)
        for one in rest:
            record = records[key := layer.hashed.get(one, one)]
            if record is None:
                txn.delete(one, db=database)
            else:
                cursor.put(one, row := encode_record(key, record))
                size += len(row)
                if size > _STEP_BYTES:
                    time.sleep(_PAUSE_S)
                    size = 0


def _write_deadlines(
    txn: Transaction, database: lmdb._Database, deadlines: dict[bytes, int]
) -> None:
    for step in _steps(deadlines.items()):
        for key, deadline in step:
            one = stored_key(key)
            if deadline:
                txn.put(one, encode_deadline(key, deadline), db=database)
            else:
                txn.delete(one, db=database)


def _steps(items: Iterable[T]) -> Iterator[list[T]]:
    iterator = iter(items)
    while step := list(islice(iterator, _STEP)):
        yield step
        time.sleep(_PAUSE_S)
