"""The protocol's invariants of the log, each one a query for its violations.

Each function takes tables of the source, of one member or of several, and returns violations. They
are a DataFrame with the columns kind (a word), member (-1 if it cannot be named), term, position
and text. Several can be joined by `union`. No rows means that the invariant holds. The tables hold
only what is committed, so nothing else is checked.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from ..source.logs import Facts

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
    "with_before",
]

_OF_BEFORE: Final = ("term", "position", "length", "timestamp", "commit_position")
_OPENING: Final = "NEW_LEADERSHIP_TERM"


def union(frames: Sequence[DataFrame]) -> DataFrame:
    """Join DataFrames that have the same columns."""
    return reduce(lambda one, other: one.unionByName(other), frames)


def violations(frame: DataFrame, kind: str, text: Column, *, member: str = "-1") -> DataFrame:
    """Turn the rows of a frame, which has the columns term and position, into violations.

    Args:
        frame: one row for each violation.
        kind: the kind of all of them.
        text: a description of the violation.
        member: an expression for the member with this log.
    """
    return frame.select(
        F.lit(kind).alias("kind"),
        F.expr(member).cast("int").alias("member"),
        F.col("term").cast("bigint").alias("term"),
        F.col("position").cast("bigint").alias("position"),
        text.alias("text"),
    )


def divergences(batches: DataFrame, facts: Sequence[Facts]) -> DataFrame:
    """Check that members have equal batches at each position that all of them should have.

    Args:
        batches: of all members, as the source's table "batches".
        facts: the range of each member's log.

    Returns:
        Violations of kind "divergence", with each member's batch at the position.
    """
    start = max(one.start for one in facts)
    stop = min(one.committed for one in facts)
    shared = batches.where((F.col("position") >= start) & (F.col("position") < stop))
    compared = ("term", "length", "checksum")
    by_position = shared.groupBy("position").agg(
        F.min("term").alias("term"),
        F.count("*").alias("batches"),
        reduce(or_, (F.min(name) != F.max(name) for name in compared)).alias("differ"),
        F.collect_list(F.struct("member", *compared)).alias("there"),
    )
    wrong = by_position.where((F.col("batches") != len(facts)) | F.col("differ"))
    said = F.transform(
        F.sort_array("there"),
        lambda one: F.format_string(
            "member %d: term %d, %d bytes, checksum %08x",
            *(one[name] for name in ("member", *compared)),
        ),
    )
    return violations(wrong, "divergence", F.concat_ws("; ", said))


def with_before(batches: DataFrame) -> DataFrame:
    """Add the column "before" to each batch: the preceding batch of the same member, as a struct.

    The queries below call this themselves if the column is missing. A caller of several queries
    should call it once and persist the result.
    """
    if "before" in batches.columns:
        return batches
    known = F.struct(*(name for name in _OF_BEFORE if name in batches.columns))
    before = F.lag(known).over(Window.partitionBy("member").orderBy("position"))
    return batches.withColumn("before", before)


def holes(batches: DataFrame) -> DataFrame:
    """Check that each batch begins where the previous one ends: violations of kind "hole"."""
    expected = F.expr("before.position + before.length")
    wrong = with_before(batches).where(expected != F.col("position"))
    text = F.format_string("the batch before ends at %d", expected)
    return violations(wrong, "hole", text, member="member")


def clocks_that_go_back(batches: DataFrame) -> DataFrame:
    """Check that log time never goes back: violations of kind "clock"."""
    wrong = with_before(batches).where("timestamp < before.timestamp")
    earlier = F.col("before.timestamp").cast("string")
    text = F.format_string("the log's time goes back from %s", earlier)
    return violations(wrong, "clock", text, member="member")


def terms_that_go_back(batches: DataFrame) -> DataFrame:
    """Check that the term never goes back: violations of kind "term"."""
    wrong = with_before(batches).where("term < before.term")
    text = F.format_string("it follows term %d", "before.term")
    return violations(wrong, "term", text, member="member")


def commits_that_go_back(batches: DataFrame) -> DataFrame:
    """Check that the commit position never goes back, and never exceeds the recorded log.

    Each batch carries the commit position that its leader knew when it encoded the batch.

    Returns:
        Violations of kind "commit".
    """
    known = "before.commit_position"
    seen = with_before(batches)
    wrong = seen.where(f"commit_position > position or commit_position < {known}")
    text = F.format_string("the commit position is %d, before it was %d", "commit_position", known)
    return violations(wrong, "commit", text, member="member")


def terms_of_two_leaders(entries: DataFrame) -> DataFrame:
    """Check that each term has one leader, which opens it.

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
    """Check that members agree where each term begins and ends.

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
    """Check that each batch lies within its term, by its member's recording log: kind "terms"."""
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
    """Check that each term begins with the entry that opens it, and has no other such entry.

    Args:
        terms: of all members, without terms that begin in the pruned part of their member's log.
        entries: of all members; those of kind NEW_LEADERSHIP_TERM, and the first one of each batch
            with which a term begins, are enough.

    Returns:
        Violations of kind "terms".
    """
    bases = terms.select("member", "term", F.col("base").alias("position"))
    opening = F.col("kind") == _OPENING
    first = entries.where("entry = 0").join(bases, ["member", "term", "position"])
    unopened = first.where(~opening)
    elsewhere = entries.where(opening).join(
        bases.withColumn("entry", F.lit(0)), ["member", "term", "position", "entry"], "left_anti"
    )
    return union(
        [
            violations(
                unopened, "terms", F.format_string("it begins with a %s", "kind"), member="member"
            ),
            violations(
                elsewhere,
                "terms",
                F.format_string("entry %d of this batch opens it, not its first one", "entry"),
                member="member",
            ),
        ]
    )
