"""The keys of etcd's clients: their history, and those of a snapshot.

What a transaction did depends on the state, so the history comes from a state machine that follows
the log, in one task.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from ...errors import PrunedError
from ...etcd.messages import rpc_pb2 as rpc
from ...etcd.state.replayed import Replayed
from ...storage import decode_header_untrusted
from ...storage.tables.stream import rows_untrusted
from ..payloads.bounded import gathered
from .columns import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...etcd.keyspace.change import Change
    from ...storage import BatchHeader
    from ...storage.rows.term_table import SnapshotRow
    from .reading import Log

    Changed: TypeAlias = tuple[BatchHeader, Change]

__all__ = ["etcd_table", "living_untrusted", "replayed_at"]


def replayed_at(log: Log, position: int) -> Replayed:
    """Return the keyspace of etcd at a position.

    Raises:
        PrunedError: the log is pruned, and there is no snapshot up to there.
        StorageError, TransportError: the log can't be read.
    """
    found, begin = _beginning(log, position)
    for batch in log.batches(begin, position):
        found.take_untrusted(batch)
    return found


def etcd_table(log: Log, names: list[str], start: int, stop: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the table "etcd": each change of a key, in order.

    Without a snapshot up to `start` the changes begin where the log or a snapshot does.
    """
    schema = arrow_schema("etcd", names)
    stop = min(stop, log.facts.committed)
    for found in gathered(_changes(log, start, stop), lambda one: len(one[1].row)):
        columns = _columns(log, found)
        made = [pa.array(columns[field.name], field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(made, schema=schema)


def living_untrusted(log: Log, row: SnapshotRow) -> Iterator[rpc.KeyValue]:
    """Yield the keys of etcd that a snapshot has, in the order of their changes.

    Raises:
        StorageError: the snapshot is damaged.
    """
    # Twice, since a key may change again later in it: only the places of keys are in memory.
    last: dict[bytes, bytes] = {}
    with log.snapshot(row) as reader:
        for place, data in rows_untrusted(reader.pieces()):
            last[rpc.KeyValue.FromString(data).key] = place
    if not last:
        return
    with log.snapshot(row) as reader:
        for place, data in rows_untrusted(reader.pieces()):
            kv = rpc.KeyValue.FromString(data)
            if kv.version and last[kv.key] == place:
                yield kv


def _beginning(log: Log, position: int) -> tuple[Replayed, int]:
    """Return the keyspace of the newest snapshot up to a position, and that snapshot's position."""
    row = log.facts.snapshot_at(position)
    if row is None:
        if log.facts.start:
            raise PrunedError(
                f"{log.facts.whose}: the log begins at position {log.facts.start}, and there is no "
                f"snapshot up to {position}: read from a copy that still has it"
            )
        return Replayed(), 0
    with log.snapshot(row) as reader:
        rows = dict(rows_untrusted(reader.pieces()))
    return Replayed(rows, dict(log.notes(row)), row.timestamp_ms), row.position


def _changes(log: Log, start: int, stop: int) -> Iterator[Changed]:
    if not log.facts.snapshot_at(start) and log.facts.start:
        start = next((row.position for row in log.facts.snapshots), stop)
    keyspace, begin = _beginning(log, start)
    changes: list[Change] = []

    def note(_revision: int, found: Sequence[Change]) -> None:
        changes.extend(found)

    keyspace.state.listen(note)
    for batch in log.batches(begin, stop):
        keyspace.take_untrusted(batch)
        header = decode_header_untrusted(batch)
        if header.position >= start:
            yield from ((header, change) for change in changes)
        changes.clear()


def _columns(log: Log, found: list[Changed]) -> dict[str, list[object]]:
    kvs = [(rpc.KeyValue.FromString(change.row), change.deleted) for _, change in found]
    return {
        "position": [header.position for header, _ in found],
        "timestamp": [header.timestamp_ms * 1000 for header, _ in found],
        "revision": [change.revision for _, change in found],
        "key": [change.key for _, change in found],
        "value": [None if deleted else kv.value for kv, deleted in kvs],
        "deleted": [deleted for _, deleted in kvs],
        "create_revision": [None if deleted else kv.create_revision for kv, deleted in kvs],
        "version": [None if deleted else kv.version for kv, deleted in kvs],
        "lease": [None if deleted else kv.lease for kv, deleted in kvs],
        "member": [log.facts.member_id] * len(found),
        "partition": [log.facts.partition] * len(found),
    }
