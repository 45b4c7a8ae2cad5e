"""Every version that every key has had, as a DataFrame, and the state of the store at a position.

See :mod:`.replay` for how the log is taken apart. Here the pieces are spread over Spark's tasks:
a first pass finds how long values may be, a second one which keys hang together, and a third one
takes the entries apart, sorts the pieces by shard and place, and applies them.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from ..errors import PrunedError
from .columns import ddl
from .logs import Connect, Moment, Origin, open_log
from .once import unapplied
from .replay import Machine, Sizes, keys_coupled, pieces, shard_of, sizes
from .worker import settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from .replay import Piece, Version

    _Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

__all__ = ["Moment", "from_snapshot", "moment_at", "present", "read_log", "state", "versions"]

NOT_OF_STATE: Final = ("valid_to", "valid_to_time", "tag", "change")
"""What :func:`present` tells more than :func:`state`."""

_SHARDS: Final = 32
_ROWS: Final = 4096
_BEFORE: Final = -1  # the position of what was there before the log's part begins

_PIECE: Final = {
    "shard": pa.int32(),
    "key": pa.binary(),
    "term": pa.int64(),
    "position": pa.int64(),
    "index": pa.int32(),
    "number": pa.int32(),
    "timestamp_ms": pa.int64(),
    "flags": pa.int32(),
    "payload": pa.binary(),
    "expires_ms": pa.int64(),
    "revision": pa.int64(),
    "change": pa.int32(),
    "valid_from": pa.int64(),
}
_VERSION: Final = {
    "key": pa.binary(),
    "revision": pa.int64(),
    "change": pa.int32(),
    "value": pa.binary(),
    "tag": pa.int32(),
    "expires_ms": pa.int64(),
    "valid_from": pa.int64(),
    "from_ms": pa.int64(),
    "valid_to": pa.int64(),
    "to_ms": pa.int64(),
}
_SQL: Final = {pa.int32(): "int", pa.int64(): "bigint", pa.binary(): "binary"}


def _ddl(columns: dict[str, pa.DataType]) -> str:
    return ", ".join(f"`{name}` {_SQL[kind]}" for name, kind in columns.items())


def read_log(
    spark: SparkSession, origin: Origin, table: str, names: Sequence[str] = (), **options: int
) -> DataFrame:
    """Read a table of a log, all of its columns or some; options as the source has them."""
    reader = spark.read.format("quorate").option("table", table).options(**options)
    if names:
        reader = reader.schema(ddl(table, names))
    if not isinstance(origin, Connect):
        return reader.load(str(origin))
    if origin.member is not None:
        reader = reader.option("member", origin.member)
    return reader.option("connect", origin.members).load()


def moment_at(
    origin: Origin, *, position: int | None = None, timestamp_ms: int | None = None
) -> Moment:
    """Find a point of the log: behind all batches that begin below a position, or are older.

    Without either, it is the end of what is known to be committed.

    Raises:
        PrunedError: it lies below the first position that is kept.
    """
    with open_log(origin) as log:
        facts = log.facts
        stop = facts.committed if position is None else min(position, facts.committed)
        if timestamp_ms is not None:
            stop = min(stop, log.first_at(timestamp_ms + 1))
        if stop < facts.start:
            raise PrunedError(
                f"{facts.whose}: position {stop} is pruned, the log begins at "
                f"{facts.start}: read from a copy that still has it"
            )
        return log.moment_before(stop)


def state(spark: SparkSession, origin: Origin, at: Moment | None = None) -> DataFrame:
    """Return the store as it was at a point of the log.

    Returns:
        A row for each key that existed then: key, revision (as WATCH compares it), value,
        expires_at, valid_from and valid_from_time (position and time of the batch that made it).

    It is made of the newest snapshot up to there and the log behind it; for a key that is in the
    snapshot and has not changed since, valid_from and valid_from_time are null.

    Raises:
        PrunedError: the log no longer begins at position 0, and there is no such snapshot.
    """
    found = present(spark, origin, at or moment_at(origin))
    return found.drop(*NOT_OF_STATE)


def present(spark: SparkSession, origin: Origin, at: Moment) -> DataFrame:
    """Return those :func:`versions` that were there at a point of the log."""
    with open_log(origin) as log:
        row = log.facts.snapshot_at(at.position)
    begin = row.position if row else 0
    before = from_snapshot(spark, origin, begin) if row else None
    return versions(spark, origin, end=at, begin=begin, before=before).where("valid_to is null")


def from_snapshot(spark: SparkSession, origin: Origin, position: int) -> DataFrame:
    """Return the snapshot at a log position in the columns of :func:`versions`."""
    found = read_log(spark, origin, "snapshot", endPosition=position)
    return found.select(
        *("key", "revision", F.lit(0).alias("change"), "value", "tag", "expires_at"),
        *(F.expr(f"cast(null as bigint) as {name}") for name in ("valid_from", "valid_to")),
        *(
            F.expr(f"cast(null as timestamp) as {name}")
            for name in ("valid_from_time", "valid_to_time")
        ),
    )


def versions(
    spark: SparkSession,
    origin: Origin,
    *,
    end: Moment,
    begin: int = 0,
    before: DataFrame | None = None,
) -> DataFrame:
    """Apply the commands between two points of the log.

    Args:
        spark: a session that knows the source.
        origin: a member's directory, a copy of one, or a running cluster.
        end: how far.
        begin: log position from which on.
        before: the state there, in the columns that this function returns.

    Returns:
        A row for each version of a key that was there at any time: key, revision, change (its
        place among those of one revision: an entry may set a key several times), value, tag,
        expires_at, valid_from and valid_from_time (the batch that made it), valid_to and
        valid_to_time (the batch that ended it; null if it is there at the end). One whose expiry
        has passed, and that nothing has replaced, ends at `end`.

    Raises:
        PrunedError: the log does not reach back to `begin`.
    """
    _check_begin(origin, begin)
    entries = read_log(
        spark, origin, "entries", startPosition=begin, endPosition=end.position
    ).where("kind = 'COMMAND'")
    bound, stamped = _bound(entries, before)
    if stamped:
        entries = _applied(spark, origin, entries, begin, end)
    coupled = entries.mapInArrow(_coupled_rows(bound), "key binary").distinct().persist()
    try:
        taken = entries.mapInArrow(_piece_rows(bound), _ddl(_PIECE))
        if before is not None:
            taken = taken.unionByName(_as_pieces(before))
        if not coupled.isEmpty():
            marked = coupled.withColumn("together", F.expr("true"))
            taken = taken.join(marked, "key", "left").withColumn(
                "shard", F.expr("if(together, 0, shard)")
            )
        taken = taken.select(*_PIECE).repartition("shard")
        taken = taken.sortWithinPartitions("shard", "position", "index", "number")
        return _in_sql(taken.mapInArrow(_apply, _ddl(_VERSION)), end)
    finally:
        coupled.unpersist()


def _check_begin(origin: Origin, begin: int) -> None:
    """Refuse a log that does not reach back far enough."""
    with open_log(origin) as log:
        if log.facts.start > begin:
            raise PrunedError(
                f"{log.facts.whose}: the log begins at position {log.facts.start}, "
                f"needed is everything from {begin} on: read from a copy that still has it"
            )


def _in_sql(found: DataFrame, end: Moment) -> DataFrame:
    """Give the times their types, and end what has expired."""
    expired = F.expr(f"valid_to is null and expires_ms > 0 and expires_ms <= {end.timestamp_ms}")
    found = found.withColumns(
        {
            "valid_to": F.when(expired, F.lit(end.position)).otherwise(F.col("valid_to")),
            "to_ms": F.when(expired, F.lit(end.timestamp_ms)).otherwise(F.col("to_ms")),
        }
    )
    return found.select(
        "key",
        "revision",
        "change",
        "value",
        "tag",
        F.expr("timestamp_millis(nullif(expires_ms, 0))").alias("expires_at"),
        "valid_from",
        F.expr("timestamp_millis(from_ms)").alias("valid_from_time"),
        "valid_to",
        F.expr("timestamp_millis(to_ms)").alias("valid_to_time"),
    )


def _as_pieces(before: DataFrame) -> DataFrame:
    """Return versions as pieces in front of all others."""
    shard = F.udf(lambda key: shard_of(bytes(key), _SHARDS), "int")
    return before.select(
        shard("key").alias("shard"),
        "key",
        F.lit(_BEFORE).cast("bigint").alias("term"),
        F.lit(_BEFORE).cast("bigint").alias("position"),
        F.lit(0).alias("index"),
        F.lit(0).alias("number"),
        F.unix_millis("valid_from_time").alias("timestamp_ms"),
        F.col("tag").alias("flags"),
        F.col("value").alias("payload"),
        F.coalesce(F.unix_millis("expires_at"), F.lit(0)).alias("expires_ms"),
        "revision",
        "change",
        "valid_from",
    )


def _applied(
    spark: SparkSession, origin: Origin, entries: DataFrame, begin: int, end: Moment
) -> DataFrame:
    """Leave out the commands of sessions that were not applied."""
    with open_log(origin) as log:
        found = unapplied(log, begin, end.position)
    if not found:
        return entries
    left_out = spark.createDataFrame(found, "position bigint, index int")
    return entries.join(F.broadcast(left_out), ["position", "index"], "left_anti")


def _bound(entries: DataFrame, before: DataFrame | None) -> tuple[int, bool]:
    """Return a length that no value exceeds, and whether any command is of a session."""
    found = entries.mapInArrow(_size_rows, "longest bigint, appended bigint, stamped boolean")
    row = found.agg(F.max("longest"), F.sum("appended"), F.max("stamped")).first()
    known = Sizes() if row is None or row[0] is None else Sizes(row[0], row[1])
    stamped = row is not None and bool(row[2])
    if before is not None:
        row = before.agg(F.max(F.length("value"))).first()
        known |= Sizes(row[0]) if row is not None and row[0] is not None else Sizes()
    return known.bound, stamped


# What runs in Spark's tasks ----------------------------------------------------------------------


def _commands(
    batches: Iterable[pa.RecordBatch],
) -> Iterator[tuple[pa.RecordBatch, int, bytes, int]]:
    """Yield batch, place in it, payload and flags of each entry."""
    settle()
    for batch in batches:
        payloads, flags = batch["payload"].to_pylist(), batch["flags"].to_pylist()
        for at, (payload, flag) in enumerate(zip(payloads, flags, strict=True)):
            yield batch, at, payload, flag


def _size_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    known, stamped = Sizes(), False
    for batch, at, payload, _flags in _commands(batches):
        known |= sizes(payload)
        stamped |= at == 0 and bool(batch["session"].to_numpy().any())
    yield pa.record_batch(
        {"longest": [known.longest], "appended": [known.appended], "stamped": [stamped]}
    )


def _coupled_rows(bound: int) -> _Task:
    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        keys: set[bytes] = set()
        for _batch, _at, payload, flags in _commands(batches):
            keys |= keys_coupled(payload, flags, bound)
        yield pa.record_batch({"key": pa.array(sorted(keys), pa.binary())})

    return rows


def _piece_rows(bound: int) -> _Task:
    def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _pieces_of(batch, bound)

    return rows


def _pieces_of(batch: pa.RecordBatch, bound: int) -> pa.RecordBatch:
    """Take the entries of a batch apart."""
    places: list[int] = []
    found: list[tuple[int, Piece, int]] = []
    for _batch, at, payload, flags in _commands([batch]):
        for number, piece in enumerate(pieces(payload, flags, bound)):
            shards = range(_SHARDS + 1) if piece.everywhere else (_shard(piece),)
            for shard in shards:
                places.append(at)
                found.append((shard, piece, number))
    rows = batch.take(pa.array(places, pa.int64()))
    nothing = pa.nulls(len(places), pa.int64())
    columns = {
        "shard": [shard for shard, _, _ in found],
        "key": [piece.key for _, piece, _ in found],
        "term": rows["term"],
        "position": rows["position"],
        "index": rows["index"],
        "number": [number for _, _, number in found],
        "timestamp_ms": rows["timestamp"].cast(pa.int64()).to_numpy() // 1000,
        "flags": [piece.flags for _, piece, _ in found],
        "payload": [piece.payload for _, piece, _ in found],
    }
    made = [_array(columns.get(name, nothing), kind) for name, kind in _PIECE.items()]
    return pa.RecordBatch.from_arrays(made, names=list(_PIECE))


def _array(column: Any, kind: pa.DataType) -> pa.Array:
    return column.cast(kind) if isinstance(column, pa.Array) else pa.array(column, kind)


def _shard(piece: Piece) -> int:
    return 0 if piece.key is None else shard_of(piece.key, _SHARDS)


def _apply(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Apply the pieces of some shards, which come one after the other, each in order."""
    settle()
    machine, shard = Machine(), -1
    ended: list[Version] = []
    for batch in batches:
        for row in batch.to_pylist():
            if row["shard"] != shard:
                ended += [*machine.take_ended(), *machine.still_open()]
                machine, shard = Machine(), row["shard"]
            if row["position"] == _BEFORE:
                machine.load(
                    row["key"],
                    (row["payload"], row["expires_ms"], row["revision"], row["flags"]),
                    change=row["change"],
                    position=row["valid_from"],
                    timestamp_ms=row["timestamp_ms"],
                )
                continue
            machine.apply(
                row["payload"],
                row["flags"],
                term=row["term"],
                position=row["position"],
                index=row["index"],
                timestamp_ms=row["timestamp_ms"],
            )
        ended += machine.take_ended()
        while len(ended) >= _ROWS:
            yield _as_rows(ended[:_ROWS])
            del ended[:_ROWS]
    ended += machine.take_ended()
    ended += machine.still_open()
    for at in range(0, len(ended), _ROWS):
        yield _as_rows(ended[at : at + _ROWS])


def _as_rows(found: list[Version]) -> pa.RecordBatch:
    columns = zip(*found, strict=True)
    made = [pa.array(column, kind) for column, kind in zip(columns, _VERSION.values(), strict=True)]
    return pa.RecordBatch.from_arrays(made, names=list(_VERSION))
