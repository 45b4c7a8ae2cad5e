"""Sessions' promise, held against the log: no sequence of a session is applied twice.

A client that was not answered sends its command again, so the log may well have it twice; members
apply the first one only (`keyvalue.sessions`). Which ones they apply is found by the members' own
table of sessions (:mod:`.once`). A member does not always begin where the log does: after a restart
or an installation it goes on from a snapshot, with the sessions that are in it. So the log is gone
through from each place where a member may begin, and what is applied must be the same.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from ..source.logs import open_log
from .invariants import union, violations
from .once import unapplied
from .versions import read_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..source.logs import Log, Origin

__all__ = ["doubly_applied", "session_commands"]


def session_commands(spark: SparkSession, origin: Origin) -> DataFrame:
    """Return the commands of sessions in a log, once for each place where a member may begin.

    The log is gone through by the driver, once for each such place: the beginning of the log, and
    each snapshot. Snapshots are read whole, over the wire if it must be.

    Returns:
        A row for each command and place: since (log position of the place), member, session,
        sequence, term, position, entry, applied (by whoever began there).

    Raises:
        PrunedError: the log does not tell which sessions there were where it begins.
        StorageError: a snapshot or a batch is damaged.
    """
    names = ("member", "session", "sequence", "term", "position", "entry")
    with open_log(origin) as log:
        stop = log.facts.committed  # the log may grow meanwhile
        beginnings = _beginnings(log)
        found = [(since, *place) for since in beginnings for place in unapplied(log, since, stop)]
    commands = read_log(spark, origin, "entries", names, endPosition=stop).where("session != 0")
    left_out = spark.createDataFrame(found, "since bigint, position bigint, entry int")
    frames = [
        commands.where(F.col("position") >= since).withColumn("since", F.lit(since).cast("bigint"))
        for since in beginnings
    ]
    marked = left_out.withColumn("repeated", F.lit(True))
    joined = union(frames).join(F.broadcast(marked), ["since", "position", "entry"], "left")
    return joined.select("since", *names, F.col("repeated").isNull().alias("applied"))


def _beginnings(log: Log) -> list[int]:
    facts = log.facts
    known = [row.position for row in facts.snapshots]
    kept = [position for position in known if facts.start <= position <= facts.committed]
    return [0, *kept] if facts.start == 0 or not kept else kept


def doubly_applied(commands: DataFrame) -> DataFrame:
    """No sequence of a session is applied at two places.

    Args:
        commands: of :func:`session_commands`.

    Returns:
        Violations of kind "session", each at the place of the last time.
    """
    place = F.struct("position", "entry", "term", "since")
    places = commands.where("applied").groupBy("member", "session", "sequence")
    found = places.agg(
        F.count_distinct("position", "entry").alias("times"),
        F.min(place).alias("first"),
        F.max(place).alias("last"),
    )
    wrong = found.where("times > 1").withColumns(
        {"term": F.col("last.term"), "position": F.col("last.position")}
    )
    text = F.format_string(
        "session %d#%d is applied by entry %d of this batch, by whoever begins at %d, and by entry "
        "%d at %d",
        *("session", "sequence", "last.entry", "last.since", "first.entry", "first.position"),
    )
    return violations(wrong, "session", text, member="member")
