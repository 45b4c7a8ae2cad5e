"""Reports on a cluster from its log: terms and the pauses between them, load, sizes, hot keys.

The entry that opens a term says why there was an election, and how long the winner took. Two clocks
measure the time between terms, and neither is complete:

- The *pause* is in log time: from the last batch of a term to the first one of the next, by the
  clocks of two successive leaders. It also grows while a leader exists and no client writes.
- The *election* is by the winner's monotonic clock: from when it left its role to the first entry
  of its term. It begins when the loss was noticed, up to a heartbeat timeout late. A member that
  was cut off has looked for a leader longer than the cluster was without one.

So the time without a leader is reported as the shorter one of the two.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from ..payloads.decoding import COPIED
from ..source.logs import Facts, Origin, open_log
from .invariants import union
from .versions import read_log

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = [
    "Growth",
    "Report",
    "WholeReport",
    "growth",
    "hot_keys",
    "load",
    "operations",
    "report",
    "report_whole",
    "terms",
    "written",
]

_BUCKETS: Final = 120
_SECONDS_PER_DAY: Final = 86_400
_LEAST_BUCKET_S: Final = 1
_HOTTEST: Final = 20


@attrs.frozen(eq=False)
class Report:
    """The tables of a report, each a small DataFrame, and a description of the log.

    Args:
        facts: which log it is, and its range.
        bucket_s: seconds that one row of `load` and `written` covers.
        terms: see :func:`terms`.
        load: see :func:`load`.
        written: see :func:`written`.
        operations: see :func:`operations`.
        keys: see :func:`hot_keys`.
        prefixes: see :func:`hot_keys`.
    """

    facts: Facts
    bucket_s: int
    terms: DataFrame
    load: DataFrame
    written: DataFrame
    operations: DataFrame
    keys: DataFrame
    prefixes: DataFrame


@attrs.frozen(eq=False)
class WholeReport:
    """A report on a cluster with partitions.

    Args:
        parts: a report on each partition, by the name of its group.
        bucket_s: seconds that one row of `written` covers.
        written: see :func:`written`; over all partitions, as what follows.
        operations: see :func:`operations`.
        keys: see :func:`hot_keys`.
        prefixes: see :func:`hot_keys`.
    """

    parts: Mapping[str, Report]
    bucket_s: int
    written: DataFrame
    operations: DataFrame
    keys: DataFrame
    prefixes: DataFrame


def report_whole(
    spark: SparkSession, origins: Mapping[str, Origin], *, separator: str = ":"
) -> WholeReport:
    """Make the tables of a report on all partitions, and on each.

    A row that was copied from partition to partition counts where it was written.

    Args:
        spark: a session that knows the source.
        origins: a log of each partition, by the name of its group.
        separator: ends the prefix of a key.
    """
    parts = {name: report(spark, each, separator=separator) for name, each in origins.items()}
    bucket_s = max(part.bucket_s for part in parts.values())
    asked = union([_asked(spark, each, "operation", "key", "value") for each in origins.values()])
    when = union([_asked(spark, each, "timestamp", "operation") for each in origins.values()])
    return WholeReport(parts, bucket_s, *_of_commands(asked, when, bucket_s, separator))


def report(spark: SparkSession, origin: Origin, *, separator: str = ":") -> Report:
    """Make the tables of a report on a log.

    Args:
        spark: a session that knows the source.
        origin: a member's directory, a copy of one, or a running cluster.
        separator: ends the prefix of a key.
    """
    with open_log(origin) as log:
        facts = log.facts
    batches = read_log(spark, origin, "batches")
    row = batches.agg(F.min("timestamp"), F.max("timestamp")).first()
    assert row is not None
    seconds = (row[1] - row[0]).total_seconds() if row[0] is not None else 0
    bucket_s = max(_LEAST_BUCKET_S, -(-int(seconds) // _BUCKETS))
    asked = _asked(spark, origin, "operation", "key", "value")
    when = _asked(spark, origin, "timestamp", "operation")
    written, operations, keys, prefixes = _of_commands(asked, when, bucket_s, separator)
    return Report(
        facts=facts,
        bucket_s=bucket_s,
        terms=terms(read_log(spark, origin, "terms"), batches),
        load=load(batches, bucket_s),
        written=written,
        operations=operations,
        keys=keys,
        prefixes=prefixes,
    )


def _asked(spark: SparkSession, origin: Origin, *names: str) -> DataFrame:
    """Return some columns of the commands; the source does not send payloads to Spark for that."""
    return read_log(spark, origin, "commands", names).where("operation is not null")


def _of_commands(
    asked: DataFrame, when: DataFrame, bucket_s: int, separator: str
) -> tuple[DataFrame, DataFrame, DataFrame, DataFrame]:
    """Return the tables written, operations, keys and prefixes of a report."""
    here = F.col("operation") != COPIED  # the others were written elsewhere
    own = asked.where(here)
    return (
        written(when.where(here), bucket_s),
        operations(asked),
        hot_keys(own.withColumn("name", F.col("key"))),
        hot_keys(own.withColumn("name", _prefix(separator))),
    )


def _prefix(separator: str) -> Column:
    """The key up to its first separator; the whole key if it has none."""
    text = F.decode("key", "ISO-8859-1")
    place = F.instr(text, separator)
    return F.when(place > 0, F.substring("key", F.lit(1), place)).otherwise(F.col("key"))


def _between(begin: Column, end: Column) -> Column:
    """The seconds between two times."""
    return (F.unix_millis(end) - F.unix_millis(begin)) / 1000


def terms(opened: DataFrame, batches: DataFrame) -> DataFrame:
    """Describe each leadership term.

    Args:
        opened: of one member, as the source's table "terms".
        batches: of the same member, as the source's table "batches".

    Returns:
        A row for each term with a commit. The term itself: term, leader (a member id), reason (of
        the election), base. Its batches: began and ended (times of the first and the last one),
        seconds (between them), batches, entries, bytes. Its election: election_seconds (by the
        winner's clock), pause_seconds (since the last batch of the previous term, in log time) and
        without_leader_seconds (the shorter one). The last two are null for the first term of all.
        Columns from the first entry of a term are null if that entry was pruned.
    """
    by_term = batches.groupBy("term").agg(
        F.min("position").alias("base"),
        F.min("timestamp").alias("began"),
        F.max("timestamp").alias("ended"),
        F.count("*").alias("batches"),
        F.sum("entries").alias("entries"),
        F.sum("length").alias("bytes"),
    )
    before = F.lag("ended").over(Window.orderBy("term"))
    election, pause = F.col("election_seconds"), F.col("pause_seconds")
    said = opened.select("term", "leader", "reason", "election_ms")
    return (
        by_term.join(said, "term", "left")
        .withColumn("seconds", _between(F.col("began"), F.col("ended")))
        .withColumn("election_seconds", F.col("election_ms") / 1000)
        .withColumn("pause_seconds", _between(before, F.col("began")))
        .withColumn("without_leader_seconds", F.when(pause.isNotNull(), F.least(election, pause)))
        .select(
            *("term", "leader", "reason", "base", "began", "ended", "seconds"),
            *("batches", "entries", "bytes"),
            *("election_seconds", "pause_seconds", "without_leader_seconds"),
        )
        .orderBy("term")
    )


def load(batches: DataFrame, bucket_s: int) -> DataFrame:
    """Report how the log has grown; an entry may hold the commands of many clients.

    Args:
        batches: of one member, as the source's table "batches".
        bucket_s: seconds that a row covers.

    Returns:
        A row for each bucket with writes: time (its beginning), entries, bytes, batches, and end
        (the log position at its end).
    """
    return (
        batches.groupBy(_bucket(bucket_s))
        .agg(
            F.sum("entries").alias("entries"),
            F.sum("length").alias("bytes"),
            F.count("*").alias("batches"),
            F.max(F.col("position") + F.col("length")).alias("end"),
        )
        .orderBy("time")
    )


def written(commands: DataFrame, bucket_s: int) -> DataFrame:
    """Count the commands over time.

    Args:
        commands: of one member, as the source's table "commands".
        bucket_s: seconds that a row covers.

    Returns:
        A row for each bucket with writes: time (its beginning), commands.
    """
    counted = commands.groupBy(_bucket(bucket_s)).agg(F.count("*").alias("commands"))
    return counted.orderBy("time")


def _bucket(seconds: int) -> Column:
    return F.window("timestamp", f"{seconds} seconds").start.alias("time")


def operations(commands: DataFrame) -> DataFrame:
    """Count the commands of each operation.

    Args:
        commands: of one member, as the source's table "commands".

    Returns:
        A row for each operation, the most frequent first: operation, commands, bytes (of keys and
        values), keys (exact number of different keys).
    """
    return (
        commands.groupBy("operation")
        .agg(
            F.count("*").alias("commands"),
            _bytes().alias("bytes"),
            F.count_distinct("key").alias("keys"),
        )
        .orderBy(F.desc("commands"), "operation")
    )


def hot_keys(commands: DataFrame) -> DataFrame:
    """Find the names with most writes.

    Args:
        commands: as the source's table "commands", with a column name.

    Returns:
        The twenty names with most writes: name, commands, bytes (of keys and values).
    """
    return (
        commands.where("name is not null")
        .groupBy("name")
        .agg(F.count("*").alias("commands"), _bytes().alias("bytes"))
        .orderBy(F.desc("commands"), "name")
        .limit(_HOTTEST)
    )


def _bytes() -> Column:
    return F.sum(F.coalesce(F.length("key"), F.lit(0)) + F.coalesce(F.length("value"), F.lit(0)))


@attrs.frozen
class Growth:
    """How fast a log grows.

    Args:
        bytes_per_day: slope of a straight line through the load; None if there is too little data.
        days: from the first batch to the last.
    """

    bytes_per_day: float | None
    days: float


def growth(loads: DataFrame) -> Growth:
    """Estimate how fast a log grows: the slope of its length over time."""
    row = loads.agg(
        F.regr_slope("end", F.unix_seconds("time")),
        F.unix_seconds(F.max("time")) - F.unix_seconds(F.min("time")),
    ).first()
    if row is None or row[0] is None:
        return Growth(None, 0.0)
    return Growth(row[0] * _SECONDS_PER_DAY, row[1] / _SECONDS_PER_DAY)
