"""Snapshots as rows: as a table of their own, or as commands that a reader begins with.

The log before a snapshot is pruned. A reader that needs that part can read the snapshot in its
place: a SET for each key of Redis's clients, a PUT for each of etcd's. Keys that are not among them
did not exist at that point.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from ...errors import PrunedError
from ...keyvalue.protocol.payload import ETCD
from ...keyvalue.slots.hashing import key_slot
from ...storage.tables.stream import records_untrusted
from ..payloads.bounded import gathered
from .columns import ETCD_KEYS, REDIS_KEYS, arrow_schema
from .etcd_rows import living_untrusted
from .owned import epochs_at, owned_in_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...etcd.messages import rpc_pb2 as rpc
    from ...storage.rows.term_table import SnapshotRow
    from ...storage.snapshots.file import SnapshotReader
    from ...storage.tables.memtable import Record
    from .owned import Change
    from .reading import Facts, Log

__all__ = ["BEFORE", "as_commands", "pruned", "snapshot_position", "snapshot_table"]

BEFORE: Final = -1
"""The position of a stream that begins with a snapshot, before it has read the snapshot."""

_US_PER_MS: Final = 1000


def pruned(facts: Facts, position: int) -> PrunedError:
    """Return the error for a pruned position, with advice for the user."""
    return PrunedError(
        f"{facts.whose}: position {position} is wanted, and the log is pruned below {facts.start}: "
        "read from a member or a copy that still has it; or begin a new query, with another "
        f"checkpoint, at startPosition {facts.start}, or with the option snapshot = first, which "
        "reads the newest snapshot in place of the pruned log"
    )


def snapshot_position(log: Log) -> int:
    """Return the position of the newest snapshot, `BEFORE` without one.

    Raises:
        PrunedError: there is no snapshot, though the log is pruned.
    """
    row = log.facts.snapshot_at(log.facts.committed)
    if row is None and log.facts.start > 0:
        raise PrunedError(
            f"{log.facts.whose}: the log is pruned below {log.facts.start}, and there is no "
            "snapshot to begin with: read from a copy that still has it"
        )
    return BEFORE if row is None else row.position


def snapshot_table(log: Log, names: list[str], stop: int) -> Iterator[pa.RecordBatch]:
    """Read the newest snapshot that covers at most up to `stop`; no rows without one."""
    newest = log.facts.snapshot_at(stop)
    if newest is None:
        return
    owned = owned_in_snapshot(log, newest) if "owner_epoch" in names else ()
    with log.snapshot(newest) as reader:
        for found in _groups(reader, b""):
            yield _batch("snapshot", names, _columns(log, reader, found, owned))
        for kvs in _etcd_groups(log, newest, b""):
            yield _batch("snapshot", names, _etcd_columns(log, reader, kvs))


def as_commands(
    log: Log, names: list[str], position: int, prefix: bytes
) -> Iterator[pa.RecordBatch]:
    """Read the snapshot of a position as rows of the table "commands", of kind SNAPSHOT.

    Their entry is -1, so that they precede the batch that begins where the snapshot ends.

    Raises:
        PrunedError: the snapshot was replaced by a newer one.
    """
    row = log.facts.snapshot_at(position)
    if row is None or row.position != position:
        raise PrunedError(
            f"{log.facts.whose}: the snapshot at {position} was replaced by a newer one: begin a "
            "new query, with another checkpoint"
        )
    number = 0
    owned = owned_in_snapshot(log, row) if "owner_epoch" in names else ()
    with log.snapshot(row) as reader:
        groups = (_columns(log, reader, each, owned) for each in _groups(reader, prefix))
        others = (_etcd_columns(log, reader, each) for each in _etcd_groups(log, row, prefix))
        for found in chain(groups, others):
            count, etcd = len(found["key"]), found["keyspace"][0] == ETCD_KEYS
            columns = found | {
                "term": [reader.head.term] * count,
                "entry": [-1] * count,
                "length": [0] * count,
                "kind": ["SNAPSHOT"] * count,
                "flags": [ETCD if etcd else 0] * count,
                "session": [0] * count,
                "sequence": [0] * count,
                "principal": [None] * count,
                "number": list(range(number, number + count)),
                "operation": ["PUT" if etcd else "SET"] * count,
                "payload": [None] * count,
            }
            number += count
            yield _batch("commands", names, columns)


def _groups(reader: SnapshotReader, prefix: bytes) -> Iterator[list[tuple[bytes, Record]]]:
    records = (one for one in records_untrusted(reader.pieces()) if one[0].startswith(prefix))
    yield from gathered(records, lambda one: len(one[0]) + len(one[1][0]))


def _columns(
    log: Log,
    reader: SnapshotReader,
    found: list[tuple[bytes, Record]],
    owned: tuple[Change, ...],
) -> dict[str, list[object]]:
    keys, values = zip(*found, strict=True)
    contents, expiries, revisions, tags = zip(*values, strict=True)
    count = len(found)
    return {
        "position": [reader.head.position] * count,
        "timestamp": [reader.head.timestamp_ms * _US_PER_MS] * count,
        "keyspace": [REDIS_KEYS] * count,
        "key": list(keys),
        "value": list(contents),
        "tag": list(tags),
        "expires_at": [one * _US_PER_MS or None for one in expiries],
        "revision": list(revisions),
        **dict.fromkeys(("create_revision", "version", "lease"), [None] * count),
        "member": [log.facts.member_id] * count,
        "partition": [log.facts.partition] * count,
        **_of_slots(log, keys, owned),
    }


def _etcd_groups(log: Log, row: SnapshotRow, prefix: bytes) -> Iterator[list[rpc.KeyValue]]:
    living = (kv for kv in living_untrusted(log, row) if kv.key.startswith(prefix))
    yield from gathered(living, lambda kv: len(kv.key) + len(kv.value))


def _etcd_columns(
    log: Log, reader: SnapshotReader, found: list[rpc.KeyValue]
) -> dict[str, list[object]]:
    count = len(found)
    return {
        "position": [reader.head.position] * count,
        "timestamp": [reader.head.timestamp_ms * _US_PER_MS] * count,
        "keyspace": [ETCD_KEYS] * count,
        "key": [kv.key for kv in found],
        "value": [kv.value for kv in found],
        "revision": [kv.mod_revision for kv in found],
        "create_revision": [kv.create_revision for kv in found],
        "version": [kv.version for kv in found],
        "lease": [kv.lease for kv in found],
        "member": [log.facts.member_id] * count,
        "partition": [log.facts.partition] * count,
        **dict.fromkeys(("tag", "expires_at", "slot", "owner_epoch"), [None] * count),
    }


def _of_slots(
    log: Log, keys: tuple[bytes, ...], owned: tuple[Change, ...]
) -> dict[str, list[object]]:
    """Return the slots of keys and since when they are owned; nulls for a log of no partition."""
    if log.facts.partition is None:
        return dict.fromkeys(("slot", "owner_epoch"), [None] * len(keys))
    slots = np.array([key_slot(key) for key in keys], np.int64)
    epochs = epochs_at(owned, slots, np.ones(len(keys), np.int64))
    return {"slot": slots.tolist(), "owner_epoch": [int(one) or None for one in epochs]}


def _batch(table: str, names: list[str], columns: dict[str, list[object]]) -> pa.RecordBatch:
    schema = arrow_schema(table, names)
    made = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(made, schema=schema)
