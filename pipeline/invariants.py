"""What the protocol promises of the logs, each promise a query for what breaks it.

Each function takes tables of the source, of one member or of several, and returns the violations: a
DataFrame with the columns kind (a word), member (-1 if it is of no certain one), term, position and
text. So they can be joined with what else is known, or put together by `union`. No rows: it holds.
Only what is committed is in the tables, so only that is judged.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from .logs import Facts

__all__ = [
    "clocks_that_go_back",
    "commits_that_go_back",
    "divergences",
    "holes",
    "misplaced_batches",
    "misplaced_openings",
    "terms_of_two_leaders",
    "terms_that_differ",
    "terms_that_go_back",
    "union",
    "violations",
]

_OPENING: Final = "NEW_LEADERSHIP_TERM"


def union(frames: Sequence[DataFrame]) -> DataFrame:
    """Put DataFrames of the same columns together."""
    return reduce(lambda one, other: one.unionByName(other), frames)


def violations(frame: DataFrame, kind: str, text: Column, *, member: str = "-1") -> DataFrame:
    """Return the rows of a frame that has term and position as violations.

    Args:
        frame: a row for each.
        kind: of all of them.
        text: what is wrong.
        member: an expression for whose log it is.
    """
    return frame.select(
        F.lit(kind).alias("kind"),
        F.expr(member).cast("int").alias("member"),
        F.col("term").cast("bigint").alias("term"),
        F.col("position").cast("bigint").alias("position"),
        text.alias("text"),
    )


def divergences(batches: DataFrame, facts: Sequence[Facts]) -> DataFrame:
    """Members have the same batch at each position that all of them should have.

    Args:
        batches: of all members, as the source's table "batches".
        facts: from where to where each member's log reaches.

    Returns:
        Violations of kind "divergence", with what each member has there.
    """
    start = max(one.start for one in facts)
    stop = min(one.committed for one in facts)
    shared = batches.where((F.col("position") >= start) & (F.col("position") < stop))
    said = F.format_string(
        "member %d: term %d, %d bytes, checksum %08x", "member", "term", "length", "checksum"
    )
    by_position = shared.groupBy("position").agg(
        F.min("term").alias("term"),
        F.count("*").alias("count"),
        F.count_distinct("term", "length", "checksum").alias("kinds"),
        F.concat_ws("; ", F.sort_array(F.collect_list(said))).alias("said"),
    )
    wrong = by_position.where((F.col("count") != len(facts)) | (F.col("kinds") > 1))
    return violations(wrong, "divergence", F.col("said"))


def _before(column: Column) -> Column:
    """The value of a column in the batch before, of the same member."""
    return F.lag(column).over(Window.partitionBy("member").orderBy("position"))


def holes(batches: DataFrame) -> DataFrame:
    """Each batch begins where the one before it ends: violations of kind "hole"."""
    seen = batches.withColumn("expected", _before(F.col("position") + F.col("length")))
    text = F.format_string("the batch before ends at %d", "expected")
    return violations(seen.where("expected != position"), "hole", text, member="member")


def clocks_that_go_back(batches: DataFrame) -> DataFrame:
    """The log's time never goes back: violations of kind "clock"."""
    seen = batches.withColumn("earlier", _before(F.col("timestamp")))
    text = F.format_string("the log's time goes back from %s", F.col("earlier").cast("string"))
    return violations(seen.where("timestamp < earlier"), "clock", text, member="member")


def terms_that_go_back(batches: DataFrame) -> DataFrame:
    """The term never goes back: violations of kind "term"."""
    seen = batches.withColumn("earlier", _before(F.col("term")))
    text = F.format_string("it follows term %d", "earlier")
    return violations(seen.where("term < earlier"), "term", text, member="member")


def commits_that_go_back(batches: DataFrame) -> DataFrame:
    """The commit position never goes back, and never lies in front of what is recorded.

    Each batch tells the commit position that its leader knew when it encoded it.

    Returns:
        Violations of kind "commit".
    """
    seen = batches.withColumn("known", _before(F.col("commit_position")))
    wrong = seen.where("commit_position > position or commit_position < known")
    text = F.format_string(
        "the commit position is %d, before it was %d", "commit_position", "known"
    )
    return violations(wrong, "commit", text, member="member")


def terms_of_two_leaders(entries: DataFrame) -> DataFrame:
    """Each term has one leader, who opens it.

    Args:
        entries: of all members, as the source's table "entries"; those of kind NEW_LEADERSHIP_TERM
            are enough.

    Returns:
        Violations of kind "leaders".
    """
    leader = F.get_json_object(F.col("payload").cast("string"), "$.leader_member_id")
    leaders = (
        entries.where(F.col("kind") == _OPENING)
        .withColumn("leader", leader)
        .groupBy("term")
        .agg(
            F.array_sort(F.collect_set("leader")).alias("leaders"),
            F.max("position").alias("position"),
        )
    )
    text = F.format_string("it has the leaders %s", F.concat_ws(" and ", "leaders"))
    return violations(leaders.where(F.size("leaders") > 1), "leaders", text)


def terms_that_differ(terms: DataFrame) -> DataFrame:
    """Members agree where each term begins and ends.

    Args:
        terms: of all members, as the source's table "terms".

    Returns:
        Violations of kind "terms".
    """
    bounds = terms.groupBy("term").agg(
        F.collect_set("base").alias("bases"),
        F.collect_set("end").alias("ends"),
        F.min("base").alias("position"),
    )
    text = F.format_string(
        "members say that it begins at %s and ends at %s",
        F.concat_ws(" or ", F.col("bases").cast("array<string>")),
        F.concat_ws(" or ", F.col("ends").cast("array<string>")),
    )
    return violations(bounds.where("size(bases) > 1 or size(ends) > 1"), "terms", text)


def misplaced_batches(terms: DataFrame, batches: DataFrame) -> DataFrame:
    """Each batch lies within its term, as its member's own recording log has it: kind "terms"."""
    first = batches.groupBy("member", "term").agg(
        F.min("position").alias("position"),
        F.max(F.col("position") + F.col("length")).alias("stop"),
    )
    placed = first.join(terms.select("member", "term", "base", "end"), ["member", "term"], "left")
    wrong = placed.where("base is null or position < base or stop > end")
    text = F.format_string(
        "its batches lie from %d to %d, the recording log says %s to %s",
        "position",
        "stop",
        F.coalesce(F.col("base").cast("string"), F.lit("nothing")),
        F.coalesce(F.col("end").cast("string"), F.lit("now")),
    )
    return violations(wrong, "terms", text, member="member")


def misplaced_openings(terms: DataFrame, entries: DataFrame) -> DataFrame:
    """Each term begins with the entry that opens it, and no such entry is anywhere else.

    Args:
        terms: of all members; none that begins before what is kept of its member's log.
        entries: of all members; those of kind NEW_LEADERSHIP_TERM, and the first one of each batch
            with which a term begins, are enough.

    Returns:
        Violations of kind "terms".
    """
    bases = terms.select("member", "term", F.col("base").alias("position"))
    opening = F.col("kind") == _OPENING
    first = entries.where("index = 0").join(bases, ["member", "term", "position"])
    unopened = first.where(~opening)
    elsewhere = entries.where(opening).join(
        bases.withColumn("index", F.lit(0)), ["member", "term", "position", "index"], "left_anti"
    )
    return union(
        [
            violations(
                unopened, "terms", F.format_string("it begins with a %s", "kind"), member="member"
            ),
            violations(
                elsewhere,
                "terms",
                F.format_string("entry %d of this batch opens it, not its first one", "index"),
                member="member",
            ),
        ]
    )
