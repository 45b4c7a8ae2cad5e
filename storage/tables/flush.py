"""A flush: what it writes to the tables on disk, which is the changes since the flush before."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import attrs

from .memtable import Layer, stored_key
from .rows import encode_deadline, encode_note, encode_record

if TYPE_CHECKING:
    import lmdb

    from ..lmdb.environment import Transaction
    from .databases import TablesDatabases


@attrs.frozen
class Cut:
    """What one flush writes: a frozen layer, and the point of the log at which it was cut.

    Args:
        layer: the changes.
        deadlines: those that have changed, 0 for removed ones.
        notes: those that have changed, None for deleted ones.
        position: log position up to which everything is applied.
        timestamp_ms: log time there.
    """

    layer: Layer
    deadlines: dict[bytes, int]
    notes: dict[bytes, bytes | None]
    position: int
    timestamp_ms: int


def write_changes(txn: Transaction, dbs: TablesDatabases, cut: Cut) -> None:
    """Write a cut in a transaction, over what is on disk; on any thread."""
    _write_records(txn, dbs.records, cut.layer)
    _write_deadlines(txn, dbs.deadlines, cut.deadlines)
    _write_notes(txn, dbs.notes, cut.notes)
    # In order: rows come by the thousand, and LMDB touches each page once.
    _write_notes(txn, dbs.rows, dict(sorted(cut.layer.rows.items())))


def _write_notes(
    txn: Transaction, database: lmdb._Database, notes: dict[bytes, bytes | None]
) -> None:
    for key, row in notes.items():
        if row is None:
            txn.delete(key, db=database)
        else:
            txn.put(key, encode_note(key, row), db=database)


def _write_records(txn: Transaction, database: lmdb._Database, layer: Layer) -> None:
    cursor, records = txn.cursor(database), layer.records
    # In the order of the tables, so that LMDB touches each page once.
    for stored in heapq.merge(*layer.runs()):
        record = records[key := layer.hashed.get(stored, stored)]
        if record is None:
            # There may be no such row: `delete` never looked below, since that costs a read. LMDB
            # ignores that.
            txn.delete(stored, db=database)
        else:
            # Encoded here, on the writer's thread: applying a command stays one store into a
            # dictionary.
            cursor.put(stored, encode_record(key, record))


def _write_deadlines(
    txn: Transaction, database: lmdb._Database, deadlines: dict[bytes, int]
) -> None:
    # A table of its own: a start reads all deadlines, and must not read all records for that.
    for key, deadline in deadlines.items():
        stored = stored_key(key)
        if deadline:
            txn.put(stored, encode_deadline(key, deadline), db=database)
        else:
            txn.delete(stored, db=database)
