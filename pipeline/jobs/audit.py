"""Compares members' logs with each other, and checks them against the protocol's invariants.

Only the committed part of each log is compared, record batch by record batch. A batch is encoded
once, so every recording holds the same bytes. A member whose log ends early, or was pruned at the
beginning, is behind but not wrong. A damaged record is a finding, and ends the reading of that log.

This module runs all checks and shows the first divergence. Each check is a query in
:mod:`.invariants` or :mod:`.double_apply`; how the members changed is checked in
:mod:`.configurations`.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from ...errors import ConfigurationError, DamagedRecordError, StorageError
from ...keyvalue.access.principals import shown
from ...keyvalue.access.users import DEFAULT_NAME
from ...storage import check_batch_untrusted, decode_entries_untrusted
from ...storage.tools.describe import DumpedBatch
from ..source.logs import Connect, Facts, Origin, open_log
from ..source.principals import names_in
from ..source.remote import member_ids
from . import invariants
from .configurations import decode, wrong_configurations
from .double_apply import doubly_applied, session_commands
from .invariants import union
from .versions import read_log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Audit", "Divergent", "Finding", "Writer", "audit", "each_member"]

_MAX_FINDINGS: Final = 1000
_OF_ENTRIES: Final = ("member", "term", "position", "entry", "kind", "payload")


@attrs.frozen
class Finding:
    """One violation; member, term and position are -1 if they are not known."""

    kind: str
    member: int
    term: int
    position: int
    text: str


@attrs.frozen
class Divergent:
    """The batch of one member that covers a position."""

    member: int
    batch: DumpedBatch


@attrs.frozen
class Writer:
    """What one principal has written, in the longest log.

    Args:
        principal: its number; 0 for `default`, and for programs that name nobody.
        name: of the user, ``#`` and the number if it is not known.
        entries: commands that it sent; many commands of one user may be one entry.
        bytes: of their payloads.
    """

    principal: int
    name: str
    entries: int
    bytes: int


@attrs.frozen
class Audit:
    """The result of an audit: what was compared, and what was found.

    Args:
        members: the members whose logs were compared, and the commit position of each.
        batches: number of record batches compared, summed over all members.
        entries: number of entries in the longest log.
        findings: violations, ordered by position; at most a thousand.
        first: position of the first divergence, None without one.
        records: the members' batches at that position.
        unchecked: checks that could not be run, each with the reason.
        writers: who wrote how much, most first.
    """

    members: tuple[Facts, ...]
    batches: int
    entries: int
    findings: tuple[Finding, ...]
    first: int | None
    records: tuple[Divergent, ...] = ()
    unchecked: tuple[str, ...] = ()
    writers: tuple[Writer, ...] = ()


def audit(spark: SparkSession, origins: Sequence[Origin]) -> Audit:
    """Compare the logs of members, and check the protocol's invariants.

    Damaged batches and a wrong recording log are found in directories only. A running member
    repairs a damaged batch before it sends it, and its terms are derived from its batches.

    Raises:
        TransportError: a member does not answer.
        ConfigurationError: two origins belong to one member, or the origins belong to different
            clusters, or `origins` is not a list.
    """
    if isinstance(origins, str | Path | Connect):
        raise ConfigurationError(f"origins = {origins!r}: expected a list of origins")
    facts = [_facts(origin) for origin in origins]
    if len({one.cluster for one in facts}) != 1 or len({one.member_id for one in facts}) < len(
        facts
    ):
        told = ", ".join(f"member {one.member_id} of {one.cluster!r}" for one in facts)
        raise ConfigurationError(f"expected different members of one cluster, found {told}")
    findings: list[Finding] = []
    sound: dict[int, Origin] = {}
    frames: list[DataFrame] = []
    batches = entries = 0
    for one, origin in zip(facts, origins, strict=True):
        frame = read_log(spark, origin, "batches").persist()
        try:
            count, inside = _count(frame)
        except PySparkException as error:
            findings.append(_damage(one, error))
            frame.unpersist()
        else:
            sound[one.member_id] = origin
            frames.append(frame)
            batches, entries = batches + count, max(entries, inside)
    kept = [one for one in facts if one.member_id in sound]
    unchecked: list[str] = []
    if frames:
        findings += _compare(spark, kept, sound, union(frames))
        findings += _sessions(spark, sound, unchecked)
    writers = _writers(spark, sound, kept)
    for frame in frames:
        frame.unpersist()
    findings.sort(key=lambda found: (found.position, found.kind, found.member))
    first = min((one.position for one in findings if one.kind == "divergence"), default=None)
    records = () if first is None else tuple(_records(sound, first))
    found = tuple(facts), batches, entries, tuple(findings), first, records, tuple(unchecked)
    return Audit(*found, writers)


def each_member(members: str, security: str = "") -> list[Origin]:
    """Return the logs of all members of a running cluster, for :func:`audit`.

    Args:
        members: client addresses of members, ``HOST:PORT,HOST:PORT``.
        security: see :class:`Connect`.

    Raises:
        TransportError: no member answers.
    """
    return [Connect(members, member, security) for member in member_ids(members)]


def _facts(origin: Origin) -> Facts:
    with open_log(origin) as log:
        return log.facts


def _count(batches: DataFrame) -> tuple[int, int]:
    """Return the number of batches, and of entries in them."""
    row = batches.agg(F.count("*"), F.sum("entries")).first()
    return (row[0], row[1] or 0) if row is not None else (0, 0)


def _damage(facts: Facts, error: PySparkException) -> Finding:
    found = DamagedRecordError.quoted_in(str(error))
    if found is None:
        raise error
    words = str(found).partition(": ")[2]  # without the member
    return Finding("damage", facts.member_id, found.term, found.position, words)


def _compare(
    spark: SparkSession, facts: list[Facts], sound: dict[int, Origin], batches: DataFrame
) -> list[Finding]:
    """Return all violations, except those of sessions."""
    entries = union([read_log(spark, one, "entries", _OF_ENTRIES) for one in sound.values()])
    terms = union([read_log(spark, one, "terms") for one in sound.values()]).persist()
    bases = {row["base"] for row in terms.select("base").collect()}
    opening = F.col("kind") == "NEW_LEADERSHIP_TERM"
    first = (F.col("entry") == 0) & F.col("position").isin(*bases)
    changes = F.col("kind") == "MEMBERSHIP"
    marks = entries.where(opening | first | changes).persist()
    batches = invariants.with_before(batches).persist()
    frames = [
        invariants.divergences(batches, facts),
        invariants.holes(batches),
        invariants.clocks_that_go_back(batches),
        invariants.terms_that_go_back(batches),
        invariants.commits_that_go_back(batches),
        invariants.terms_of_two_leaders(marks),
        invariants.terms_that_differ(terms),
        invariants.misplaced_batches(terms, batches),
        invariants.misplaced_openings(
            _inside(terms, "base", facts), _inside(marks, "position", facts)
        ),
    ]
    rows = union(frames).limit(_MAX_FINDINGS).collect()
    found = [Finding(*row) for row in rows]
    found += _configurations(marks.where(changes), facts)
    for frame in (batches, marks, terms):
        frame.unpersist()
    return found


def _configurations(entries: DataFrame, facts: Sequence[Facts]) -> list[Finding]:
    """Check how the members of the cluster changed, by the log of each member."""
    found: list[Finding] = []
    rows = entries.orderBy("position").select("member", "term", "position", "payload").collect()
    for one in facts:
        own = [row for row in rows if row["member"] == one.member_id]
        log = list(decode((row["term"], row["position"], bytes(row["payload"])) for row in own))
        found += [
            Finding(wrong.kind, one.member_id, wrong.term, wrong.position, wrong.text)
            for wrong in wrong_configurations(log, start=one.start)
        ]
    return found


def _inside(frame: DataFrame, column: str, facts: Sequence[Facts]) -> DataFrame:
    """Drop false violations at the two ends of a log.

    At the pruned beginning, a term may have begun earlier. At the end, a log that grows during
    the audit has more rows in one table than in another.
    """
    inside = F.lit(False)
    for one in facts:
        least = one.start + 1 if one.start else 0
        within = F.col(column).between(least, one.committed - 1)
        inside |= (F.col("member") == one.member_id) & within
    return frame.where(inside)


def _sessions(spark: SparkSession, sound: dict[int, Origin], unchecked: list[str]) -> list[Finding]:
    """Check that sessions apply a command once: in each directory, or in one running member."""
    places = [member for member, origin in sound.items() if not isinstance(origin, Connect)]
    found: list[Finding] = []
    looked_at = [
        read_log(spark, sound[member], "entries", ["member", "session"])
        for member in places or [*sound][:1]
    ]
    stamped = union(looked_at).where("session != 0").select("member").distinct().collect()
    for member in sorted(row["member"] for row in stamped):
        try:
            commands = session_commands(spark, sound[member])
            rows = doubly_applied(commands).limit(_MAX_FINDINGS).collect()
        except StorageError as error:
            unchecked.append(f"the sessions of member {member}: {error}")
        else:
            found += [Finding(*row) for row in rows]
    return found


def _writers(
    spark: SparkSession, sound: dict[int, Origin], facts: Sequence[Facts]
) -> tuple[Writer, ...]:
    """Sum up what each principal has written, by the longest log that was read."""
    if not facts:
        return ()
    origin = sound[max(facts, key=lambda one: one.committed - one.start).member_id]
    commands = read_log(spark, origin, "entries", ["kind", "principal", "length"])
    rows = (
        commands.where("kind = 'COMMAND'")
        .groupBy("principal")
        .agg(F.count("*").alias("entries"), F.sum("length").alias("bytes"))
        .orderBy(F.desc("bytes"), "principal")
        .limit(_MAX_FINDINGS)
        .collect()
    )
    names = {0: DEFAULT_NAME}
    if any(row["principal"] for row in rows):
        with open_log(origin) as log:
            names = dict(names_in(log))
    return tuple(
        Writer(at := row["principal"], shown(at, names.get(at)), row["entries"], row["bytes"])
        for row in rows
    )


def _records(sound: dict[int, Origin], position: int) -> list[Divergent]:
    """Fetch the batch that covers a position, from each member that has it."""
    found: list[Divergent] = []
    for member, origin in sorted(sound.items()):
        with open_log(origin) as log, suppress(StorageError):  # a hole has no batch
            if log.facts.start <= position < log.facts.committed:
                begin = log.header(position).position
                for data in log.batches(begin, begin + 1):
                    batch = DumpedBatch(check_batch_untrusted(data), decode_entries_untrusted(data))
                    found.append(Divergent(member, batch))
    return found
