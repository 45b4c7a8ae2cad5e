"""Members' logs held against each other, and against what the protocol promises.

What is compared is the committed part of each log, record batch by record batch: a batch is encoded
once, and the same bytes lie in every recording. A member that lacks the end, or whose beginning is
pruned, is behind, not wrong. A damaged record ends the reading of its member; it is a finding.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

import re
from functools import reduce
from typing import TYPE_CHECKING, Final

import attrs
from pyspark.errors import PySparkException
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from ..errors import ConfigurationError
from .logs import Connect, Facts, Origin, open_log
from .remote import member_ids
from .versions import read_log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = [
    "Audit",
    "Finding",
    "audit",
    "divergences",
    "each_member",
    "order_findings",
    "term_findings",
]

_DAMAGE: Final = re.compile(r"damaged record at term (-?\d+), position (-?\d+): .*")
_MAX_FINDINGS: Final = 1000
_NEW_TERM: Final = "NEW_LEADERSHIP_TERM"


@attrs.frozen
class Finding:
    """One thing that is not as it should be; -1 where member, term or position are not known."""

    kind: str
    member: int
    term: int
    position: int
    text: str


@attrs.frozen
class Audit:
    """What was looked at, and what was found.

    Args:
        members: whose logs, with how far each is committed.
        batches: record batches that were compared, over all members.
        entries: of the longest log.
        findings: what is wrong, by position; at most a thousand.
        first: position of the first divergence, None without one.
    """

    members: tuple[Facts, ...]
    batches: int
    entries: int
    findings: tuple[Finding, ...]
    first: int | None


def audit(spark: SparkSession, origins: Sequence[Origin]) -> Audit:
    """Compare the logs of members, and check the invariants of the protocol.

    A member that is asked over the wire mends what is damaged before it sends it, and its terms are
    taken from its batches: damage, and a recording log that does not fit, are seen in directories
    only.

    Raises:
        TransportError: a member does not answer.
        ConfigurationError: two of them are of one member, or they are of several clusters.
    """
    facts = [_facts(origin) for origin in origins]
    if len({one.cluster for one in facts}) != 1 or len({one.member_id for one in facts}) < len(
        facts
    ):
        told = ", ".join(f"member {one.member_id} of {one.cluster!r}" for one in facts)
        raise ConfigurationError(f"expected different members of one cluster, found {told}")
    findings: list[Finding] = []
    sound: dict[int, Origin] = {}
    frames: list[DataFrame] = []
    for one, origin in zip(facts, origins, strict=True):
        frame = read_log(spark, origin, "batches").persist()
        try:
            frame.count()
        except PySparkException as error:
            findings.append(_damage(one, error))
            frame.unpersist()
        else:
            sound[one.member_id] = origin
            frames.append(frame)
    kept = [one for one in facts if one.member_id in sound]
    if frames:
        findings += _compare(spark, kept, sound, reduce(_union, frames))
    batches = sum(frame.count() for frame in frames)
    entries = max((_count(frame) for frame in frames), default=0)
    for frame in frames:
        frame.unpersist()
    findings.sort(key=lambda found: (found.position, found.kind, found.member))
    first = min((one.position for one in findings if one.kind == "divergence"), default=None)
    return Audit(tuple(facts), batches, entries, tuple(findings), first)


def each_member(members: str) -> list[Origin]:
    """Return the logs of all members of a running cluster, for :func:`audit`.

    Args:
        members: where members listen for clients, ``HOST:PORT,HOST:PORT``.

    Raises:
        TransportError: none answers.
    """
    return [Connect(members, member) for member in member_ids(members)]


def _facts(origin: Origin) -> Facts:
    with open_log(origin) as log:
        return log.facts


def _union(one: DataFrame, other: DataFrame) -> DataFrame:
    return one.unionByName(other)


def _count(batches: DataFrame) -> int:
    row = batches.agg(F.sum("entries")).first()
    return int(row[0] or 0) if row is not None else 0


def _damage(facts: Facts, error: PySparkException) -> Finding:
    found = _DAMAGE.search(str(error))
    if found is None:
        raise error
    return Finding("damage", facts.member_id, int(found[1]), int(found[2]), found[0])


def _compare(
    spark: SparkSession, facts: list[Facts], sound: dict[int, Origin], batches: DataFrame
) -> list[Finding]:
    entries = reduce(_union, [read_log(spark, place, "entries") for place in sound.values()])
    terms = reduce(_union, [read_log(spark, place, "terms") for place in sound.values()])
    frames = [
        divergences(batches, facts),
        order_findings(batches),
        term_findings(terms, batches, entries),
    ]
    rows = reduce(_union, frames).limit(_MAX_FINDINGS).collect()
    return [Finding(*row) for row in rows]


def _findings(frame: DataFrame, kind: str, text: Column, **columns: str) -> DataFrame:
    return frame.select(
        F.lit(kind).alias("kind"),
        F.expr(columns.get("member", "-1")).cast("int").alias("member"),
        F.expr(columns.get("term", "term")).cast("bigint").alias("term"),
        F.expr(columns.get("position", "position")).cast("bigint").alias("position"),
        text.alias("text"),
    )


def divergences(batches: DataFrame, facts: Sequence[Facts]) -> DataFrame:
    """Find the positions at which members' logs differ, where all of them should have a batch.

    Args:
        batches: of all members, as the source's table "batches".
        facts: from where to where each member's log reaches.

    Returns:
        Rows of kind "divergence".
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
    return _findings(wrong, "divergence", F.col("said"))


def order_findings(batches: DataFrame) -> DataFrame:
    """Find holes in the logs, and clocks and commit positions that go back.

    Returns:
        Rows of kind "hole", "clock" and "commit".
    """
    before = Window.partitionBy("member").orderBy("position")
    seen = batches.withColumns(
        {
            "expected": F.lag(F.col("position") + F.col("length")).over(before),
            "earlier": F.lag("timestamp").over(before),
            "known": F.lag("commit_position").over(before),
            "last_term": F.lag("term").over(before),
        }
    )
    return reduce(
        _union,
        [
            _findings(
                seen.where("expected != position"),
                "hole",
                F.format_string("the batch before ends at %d", "expected"),
                member="member",
            ),
            _findings(
                seen.where("timestamp < earlier"),
                "clock",
                F.format_string(
                    "the log's time goes back from %s", F.col("earlier").cast("string")
                ),
                member="member",
            ),
            _findings(
                seen.where("term < last_term"),
                "term",
                F.format_string("it follows term %d", "last_term"),
                member="member",
            ),
            _findings(
                seen.where("commit_position > position or commit_position < known"),
                "commit",
                F.format_string(
                    "the commit position is %d, before it was %d", "commit_position", "known"
                ),
                member="member",
            ),
        ],
    )


def term_findings(terms: DataFrame, batches: DataFrame, entries: DataFrame) -> DataFrame:
    """Find terms with two leaders, terms about which members disagree, and misplaced batches.

    Args:
        terms: of all members, as the source's table "terms".
        batches: of all members.
        entries: of all members.

    Returns:
        Rows of kind "leaders" and "terms".
    """
    bounds = terms.groupBy("term").agg(
        F.collect_set("base").alias("bases"),
        F.collect_set("end").alias("ends"),
        F.min("base").alias("position"),
    )
    disagreed = _findings(
        bounds.where((F.size("bases") > 1) | (F.size("ends") > 1)),
        "terms",
        F.format_string(
            "members say that it begins at %s and ends at %s",
            F.concat_ws(" or ", F.col("bases").cast("array<string>")),
            F.concat_ws(" or ", F.col("ends").cast("array<string>")),
        ),
    )
    return reduce(_union, [_leaders(entries), disagreed, _misplaced(terms, batches)])


def _leaders(entries: DataFrame) -> DataFrame:
    opened = entries.where(F.col("kind") == _NEW_TERM).withColumn(
        "leader",
        F.get_json_object(F.col("payload").cast("string"), "$.leader_member_id"),
    )
    leaders = opened.groupBy("term").agg(
        F.collect_set("leader").alias("leaders"), F.min("position").alias("position")
    )
    return _findings(
        leaders.where(F.size("leaders") > 1),
        "leaders",
        F.format_string("it has the leaders %s", F.concat_ws(" and ", "leaders")),
    )


def _misplaced(terms: DataFrame, batches: DataFrame) -> DataFrame:
    first = batches.groupBy("member", "term").agg(
        F.min("position").alias("position"),
        F.max(F.col("position") + F.col("length")).alias("stop"),
    )
    placed = first.join(terms.drop("timestamp"), ["member", "term"], "left")
    return _findings(
        placed.where("base is null or position < base or stop > end"),
        "terms",
        F.format_string(
            "its batches lie from %d to %d, the recording log says %s to %s",
            "position",
            "stop",
            F.coalesce(F.col("base").cast("string"), F.lit("nothing")),
            F.coalesce(F.col("end").cast("string"), F.lit("now")),
        ),
        member="member",
    )
