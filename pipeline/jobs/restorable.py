"""Writes the store at a point of the log as a snapshot for `quorate restore`.

Spark's tasks sort the keys as LMDB would, and the driver writes them, one partition after another.
So neither ever holds more than one partition in memory, except for the keys of etcd's clients:
the driver has them all. The result is the snapshot that a member
would have taken at that point, except for sessions: their stored replies are not known here.

So the snapshot is for new clusters, where clients start with new sessions. It must not be used in
an existing cluster: its cluster has a name that no cluster can have.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import pyarrow as pa
import trio
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from ...errors import PrunedError
from ...node.state_machine.actions import RESUME, SUSPEND
from ...node.state_machine.service import KEY_VALUE
from ...storage import SnapshotHead, head_of
from ...storage.snapshots.folder import SnapshotFolder, write_whole
from ...storage.tables.memtable import stored_key
from ...storage.tables.rows import encode_deadline, encode_note, encode_record
from ...storage.tables.stream import encode_tables
from ...storage.tools.restore import check_empty, make_source
from ..source.etcd_rows import replayed_at
from ..source.logs import open_log
from .once import notes_at
from .versions import present, read_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from random import Random

    from pyspark.sql import DataFrame, SparkSession

    from ...storage import Summary
    from ..source.logs import Log, Moment, Origin

__all__ = ["Written", "write_snapshot"]

PARTITION_BYTES: Final = 32 << 20
"""About how many bytes of keys and values the driver holds in memory at once."""

_ROW: Final = "stored binary, record binary, deadline binary"


@attrs.frozen
class Written:
    """The result of writing a snapshot.

    Args:
        summary: description of the snapshot.
        sessions: number of sessions at that point, which the snapshot does not hold.
    """

    summary: Summary
    sessions: int


def write_snapshot(
    spark: SparkSession,
    origin: Origin,
    at: Moment,
    directory: Path | str,
    *,
    rng: Random,
    there: DataFrame | None = None,
) -> Written:
    """Write the store at a point of the log into a directory, for `quorate restore`.

    Args:
        spark: a session that knows the source.
        origin: a member's directory, a copy of one, or a running cluster.
        at: the point, from `moment_at`.
        directory: a directory without a store; created if missing. The driver writes it.
        rng: draws an instance id.
        there: the result of `versions.present` at that point, if the caller has it.

    Raises:
        PrunedError: the log does not reach back far enough, or is empty before that point.
        StorageError: the directory has a store; the disk failed or is full; something is damaged.
    """
    directory = Path(directory)
    check_empty(directory)
    with open_log(origin) as log:
        head = _head(spark, log, origin, at)
        sessions, kept = 0, dict[bytes, bytes]()
        if _has_notes(spark, log, origin, head.position):
            sessions, kept = notes_at(log, head.position)
        etcd = replayed_at(log, head.position).tables
    there = present(spark, origin, at) if there is None else there
    rows = there.select("key", "value", "tag", "expires_at", "revision")
    notes = _encoded_notes(kept | etcd.notes.rows)
    others = notes, _encoded_notes(etcd.rows)
    summary = _write(rows, others, head, SnapshotFolder(directory / "snapshots"))
    trio.run(partial(make_source, directory, head, rng=rng))
    return Written(summary, sessions)


def _encoded_notes(rows: dict[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return [(key, encode_note(key, row)) for key, row in sorted(rows.items())]


def _write(
    rows: DataFrame,
    others: tuple[list[tuple[bytes, bytes]], list[tuple[bytes, bytes]]],
    head: SnapshotHead,
    folder: SnapshotFolder,
) -> Summary:
    """Sort the records and write them into a file; `others` are notes, and rows of etcd's keys."""
    rows = rows.withColumn("expires_at", F.unix_millis("expires_at")).mapInArrow(_encoded, _ROW)
    rows.persist()
    try:
        size = rows.agg(F.sum(F.length("stored") + F.length("record"))).first()
        parts = 1 if size is None or size[0] is None else 1 + size[0] // PARTITION_BYTES
        ordered = rows.repartitionByRange(parts, "stored").sortWithinPartitions("stored")
        deadlines = ordered.where("deadline is not null").select("stored", "deadline")
        pieces = encode_tables(
            [_pairs(ordered.select("stored", "record")), _pairs(deadlines), *others]
        )
        folder.open([])
        return write_whole(folder.directory, head, pieces)
    finally:
        rows.unpersist()


def _encoded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Encode records and deadlines as in a member's tables."""
    for batch in batches:
        keys: list[bytes] = batch["key"].to_pylist()
        columns = [batch[name].to_pylist() for name in ("value", "expires_at", "revision", "tag")]
        columns[1] = [expires_at or 0 for expires_at in columns[1]]
        records = list(zip(keys, zip(*columns, strict=True), strict=True))
        yield pa.record_batch(
            {
                "stored": pa.array([stored_key(key) for key in keys], pa.binary()),
                "record": pa.array([encode_record(*one) for one in records], pa.binary()),
                "deadline": pa.array(
                    [encode_deadline(key, one[1]) if one[1] else None for key, one in records],
                    pa.binary(),
                ),
            }
        )


def _pairs(frame: DataFrame) -> Iterator[tuple[bytes, bytes]]:
    for row in frame.toLocalIterator():
        yield bytes(row[0]), bytes(row[1])


def _head(spark: SparkSession, log: Log, origin: Origin, at: Moment) -> SnapshotHead:
    """Return the snapshot's head, as a member would write it."""
    position, timestamp_ms, suspended = at.position, at.timestamp_ms, False
    row = log.facts.snapshot_at(position)
    if row is not None:
        with log.snapshot(row) as reader:
            before = reader.head
        suspended = before.suspended
    else:
        before = None
    if before is not None and before.position == position:  # the log may begin after it
        term, timestamp_ms = before.term, before.timestamp_ms
    elif position > log.facts.start:
        term = log.term_before(position)
    else:
        raise PrunedError(f"{log.facts.whose}: the log has no entry before position {position}")
    actions = read_log(
        spark,
        origin,
        "entries",
        ("position", "entry", "kind", "payload"),
        startPosition=before.position if before else 0,
        endPosition=position,
    ).where(F.col("payload").isin(SUSPEND, RESUME) & (F.col("kind") == "CLUSTER_ACTION"))
    last = actions.orderBy(F.desc("position"), F.desc("entry")).first()
    if last is not None:
        suspended = bytes(last["payload"]) == SUSPEND
    return head_of(
        f"{log.facts.cluster}@{position}",
        log.terms(),
        position=position,
        term=term,
        timestamp_ms=timestamp_ms,
        suspended=suspended,
        service=KEY_VALUE,
    )


def _has_notes(spark: SparkSession, log: Log, origin: Origin, position: int) -> bool:
    """Return whether any entry up to a position uses sessions or changes users."""
    row = log.facts.snapshot_at(position)
    if row is not None and any(log.notes(row)):
        return True
    entries = read_log(
        spark,
        origin,
        "entries",
        ("session", "payload"),
        startPosition=row.position if row else 0,
        endPosition=position,
    )
    payload = F.lower(F.decode("payload", "ISO-8859-1"))
    named = (F.instr(payload, "quorate.session") > 0) | (F.instr(payload, "\r\nacl\r\n") > 0)
    return not entries.where((F.col("session") != 0) | named).isEmpty()
