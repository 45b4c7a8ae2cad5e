"""Checks the invariant of sessions: no sequence number of a session is applied twice.

A client without an answer sends its command again, so the log may hold it twice. Members apply the
first one only (`keyvalue.sessions`). The members' own table of sessions says which one that is
(:mod:`.once`).

A member need not begin where the log begins: after a restart or a snapshot install it continues
from a snapshot, with that snapshot's sessions. So the log is replayed from each place where a
member may begin, and the applied commands must be the same each time.
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
    """Return all commands of sessions in a log, once for each place where a member may begin.

    These places are the beginning of the log and each snapshot. The driver reads the log once for
    each of them. It reads each snapshot completely, over the network if necessary.

    Returns:
        A row for each command and place: since (log position of the place), member, session,
        sequence, term, position, entry, applied (by a member that began at `since`).

    Raises:
        PrunedError: the sessions at the beginning of the log are not known.
        StorageError: a snapshot or a batch is damaged.
    """
    names = ("member", "session", "sequence", "term", "position", "entry")
    with open_log(origin) as log:
        stop = log.facts.committed  # the log may grow during the read
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
    """Return each sequence number of a session that is applied at two places.

    Args:
        commands: the result of :func:`session_commands`.

    Returns:
        Violations of kind "session", each at the last place where it is applied.
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
        "session %d#%d is applied by entry %d of this batch (by members that begin at %d), and by "
        "entry %d at %d",
        *("session", "sequence", "last.entry", "last.since", "first.entry", "first.position"),
    )
    return violations(wrong, "session", text, member="member")
