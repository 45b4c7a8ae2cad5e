"""Every version of every key as a DataFrame, and the state of the store at a position.

See :mod:`.replay` for how the log is split. Here the pieces are spread over Spark's tasks. A first
pass finds how long values may be. A second one finds which keys are coupled. A third one splits the
entries, sorts the pieces by shard and place, and applies them. The tasks' code is in
:mod:`.version_tasks`.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from ...errors import PrunedError
from ...keyvalue.protocol.payload import ETCD
from ...keyvalue.slots.hashing import key_slot
from ..source.columns import REDIS_KEYS, ddl
from ..source.logs import Connect, Moment, Origin, open_log
from .once import partly_applied
from .replay import Machine, Sizes, shard_of
from .slots_note import note_at
from .version_tasks import (
    BEFORE,
    EXECUTED,
    PIECE,
    PLACE,
    SIZES,
    VERSION,
    apply_rows,
    coupled_rows,
    ddl_of,
    piece_rows,
    size_rows,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Moment", "from_snapshot", "moment_at", "present", "read_log", "state", "versions"]

NOT_OF_STATE: Final = (
    *("valid_to", "valid_to_time", "tag", "change"),
    *("moved_in", "moved_out", "hidden"),
)
"""Columns of :func:`present` that :func:`state` leaves out."""

_OF_ENTRY: Final = (
    *("term", "position", "entry", "timestamp"),
    *("kind", "flags", "session", "payload"),
)

_SHARD_BYTES: Final = 8 << 20
"""Bytes of log and earlier state for each shard. A task holds the keys of one shard in memory."""
_LEAST_SHARDS: Final = 32
_MOST_SHARDS: Final = 4096  # FLUSHALL becomes a row for each of them


def read_log(
    spark: SparkSession, origin: Origin, table: str, names: Sequence[str] = (), **options: int
) -> DataFrame:
    """Read a table of a log, all of its columns or some; the options are those of the source."""
    reader = spark.read.format("quorate").option("table", table).options(**options)
    if names:
        reader = reader.schema(ddl(table, names))
    if not isinstance(origin, Connect):
        return reader.load(str(origin))
    if origin.member is not None:
        reader = reader.option("member", origin.member)
    if origin.security:
        reader = reader.option("security", origin.security)
    return reader.option("connect", origin.members).load()


def moment_at(
    origin: Origin, *, position: int | None = None, timestamp_ms: int | None = None
) -> Moment:
    """Find a point of the log: the end of all batches that begin below a position, or are older.

    Without either argument it is the commit position.

    Raises:
        PrunedError: the point lies in the pruned part of the log.
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
    """Return the store at a point of the log.

    Returns:
        A row for each key that existed then: key, revision (as WATCH compares it), value,
        expires_at, valid_from and valid_from_time (position and time of the batch that made it).

    The sources are the newest snapshot up to that point and the log after it. For a key that has
    not changed since the snapshot, valid_from and valid_from_time are null.

    Raises:
        PrunedError: the log is pruned, and there is no snapshot up to that point.
    """
    found = present(spark, origin, at or moment_at(origin))
    return found.drop(*NOT_OF_STATE)


def present(spark: SparkSession, origin: Origin, at: Moment) -> DataFrame:
    """Return those :func:`versions` that were current at a point of the log."""
    with open_log(origin) as log:
        row = log.facts.snapshot_at(at.position)
    begin = row.position if row else 0
    before = from_snapshot(spark, origin, begin) if row else None
    found = versions(spark, origin, end=at, begin=begin, before=before)
    return found.where("valid_to is null and not hidden")


def from_snapshot(spark: SparkSession, origin: Origin, position: int) -> DataFrame:
    """Return the snapshot at a log position, with the columns of :func:`versions`."""
    found = read_log(spark, origin, "snapshot", endPosition=position)
    found = found.where(f"keyspace = '{REDIS_KEYS}'")
    moved_in = came_with_a_move(Machine(note_at(origin, position)))
    return found.select(
        *("key", "revision", F.lit(0).alias("change"), "value", "tag", "expires_at"),
        *(F.expr(f"cast(null as bigint) as {name}") for name in ("valid_from", "valid_to")),
        *(
            F.expr(f"cast(null as timestamp) as {name}")
            for name in ("valid_from_time", "valid_to_time")
        ),
        moved_in.alias("moved_in"),
        *(F.lit(False).alias(name) for name in ("moved_out", "hidden")),
    )


def came_with_a_move(machine: Machine) -> Column:
    """Return whether a row of a snapshot was copied from another partition, and not written since.

    A partition's own writes have revisions above the last one of the source.
    """
    since = machine.since
    if not any(since):
        return F.lit(False)
    came = F.udf(lambda key, revision: revision <= since[key_slot(bytes(key))], "boolean")
    return came("key", "revision")


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
        end: where to stop.
        begin: log position to start from.
        before: the state at `begin`, with the columns that this function returns.

    Returns:
        A row for each version of each key: key, revision, change (its number among the versions of
        one revision, since an entry may set a key several times), value, tag, expires_at,
        valid_from and valid_from_time (the batch that made it), valid_to and valid_to_time (the
        batch that ended it; null if it is current at `end`). An expired version that nothing has
        replaced ends at `end`.

        In the log of a partition: moved_in (it was copied from another one; it begins where this
        partition has taken its slot over), moved_out (it ended since its slot went to another
        partition), hidden (it is copied, but this partition does not own its slot at `end` yet).

    Raises:
        PrunedError: the log does not reach back to `begin`.
    """
    partition = _check_begin(origin, begin)
    entries = read_log(
        spark, origin, "entries", _OF_ENTRY, startPosition=begin, endPosition=end.position
    ).where(f"kind = 'COMMAND' and flags & {ETCD} = 0")
    bound, stamped, loaded = _bound(entries, before)
    shards = min(max((end.position - begin + loaded) // _SHARD_BYTES, _LEAST_SHARDS), _MOST_SHARDS)
    if stamped or partition is not None:
        entries = _applied(spark, origin, entries, begin, end)
    taken = entries.mapInArrow(piece_rows(bound, shards), ddl_of(PIECE))
    if before is not None:
        taken = taken.unionByName(_as_pieces(before, shards))
    taken = _together(taken, entries, bound).select(*PIECE)
    taken = taken.repartition("shard").sortWithinPartitions(*PLACE)
    return _in_sql(taken.mapInArrow(apply_rows(note_at(origin, begin)), ddl_of(VERSION)), end)


def _together(taken: DataFrame, entries: DataFrame, bound: int) -> DataFrame:
    """Put the pieces of all coupled keys into one shard."""
    coupled = entries.select("flags", "payload").mapInArrow(coupled_rows(bound), "key binary")
    coupled = coupled.distinct().persist()
    try:
        if coupled.isEmpty():
            return taken
        marked = coupled.withColumn("together", F.expr("true"))
        joined = taken.join(marked, "key", "left")
        return joined.withColumn("shard", F.expr("if(together, 0, shard)"))
    finally:
        coupled.unpersist()


def _check_begin(origin: Origin, begin: int) -> int | None:
    """Raise an error if the log does not reach back to `begin`; return its partition."""
    with open_log(origin) as log:
        if log.facts.start > begin:
            raise PrunedError(
                f"{log.facts.whose}: the log begins at position {log.facts.start}, "
                f"but is needed from {begin} on: read from a copy that still has it"
            )
        return log.facts.partition


def _in_sql(found: DataFrame, end: Moment) -> DataFrame:
    """Convert the times to Spark's type, and end the versions that have expired."""
    expired = F.expr(
        f"valid_to is null and not hidden and expires_ms > 0 and expires_ms <= {end.timestamp_ms}"
    )
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
        "moved_in",
        "moved_out",
        "hidden",
    )


def _as_pieces(before: DataFrame, shards: int) -> DataFrame:
    """Return versions as pieces that are applied before all others."""
    shard = F.udf(lambda key: shard_of(bytes(key), shards), "int")
    return before.select(
        shard("key").alias("shard"),
        "key",
        F.lit(BEFORE).cast("bigint").alias("term"),
        F.lit(BEFORE).cast("bigint").alias("position"),
        F.lit(0).alias("entry"),
        F.lit(0).alias("number"),
        F.unix_millis("valid_from_time").alias("timestamp_ms"),
        F.col("tag").alias("flags"),
        F.col("value").alias("payload"),
        F.coalesce(F.unix_millis("expires_at"), F.lit(0)).alias("expires_ms"),
        "revision",
        "change",
        "valid_from",
        "moved_in",
    )


def _applied(
    spark: SparkSession, origin: Origin, entries: DataFrame, begin: int, end: Moment
) -> DataFrame:
    """Remove the commands that were not applied; some requests keep a part of theirs."""
    with open_log(origin) as log:
        found = partly_applied(log, begin, end.position)
    if not found:
        return entries
    known = spark.createDataFrame(found, f"position bigint, entry int, {EXECUTED} int")
    joined = entries.join(F.broadcast(known), ["position", "entry"], "left")
    return joined.where(f"{EXECUTED} is null or {EXECUTED} > 0")


def _bound(entries: DataFrame, before: DataFrame | None) -> tuple[int, bool, int]:
    """Return a bound on values, whether any command is of a session, and the bytes in `before`."""
    found = entries.select("session", "flags", "payload").mapInArrow(size_rows, SIZES)
    row = found.agg(F.max("longest"), F.sum("appended"), F.max("stamped")).first()
    known = Sizes() if row is None or row[0] is None else Sizes(row[0], row[1])
    stamped = row is not None and bool(row[2])
    if before is None:
        return known.bound, stamped, 0
    row = before.agg(F.max(F.length("value")), F.sum(F.length("value") + F.length("key"))).first()
    longest, loaded = (0, 0) if row is None or row[0] is None else row
    return (known | Sizes(longest)).bound, stamped, loaded
