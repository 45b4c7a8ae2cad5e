"""Audits the groups of a cluster with partitions, and what their logs say together of slots.

Each group is audited as any cluster is. Then the commands that moved slots are read from the
longest log of each partition: every slot has one owner at each epoch, and each step of a move comes
after the one that it needs. The rules are in `keyvalue.slots.history`.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import attrs

from ...errors import WireError
from ...keyvalue.protocol.payload import PayloadParser
from ...keyvalue.slots.cluster_map import META, partition_in
from ...keyvalue.slots.history import PartitionLog, wrong_moves
from ...keyvalue.state.ownership_note import SLOTS_NOTE, as_facts, decode_note_untrusted
from ..source.logs import open_log
from ..source.slots import slots_entries
from .audit import Audit, Finding, audit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

    from ..source.logs import Origin

__all__ = ["GroupsAudit", "audit_groups", "moves_in"]

_PARSER: Final = PayloadParser()


@attrs.frozen
class GroupsAudit:
    """The audits of groups, and what is wrong with their slots.

    Args:
        groups: by cluster name.
        moves: what the logs of partitions must not say together; `member` is the partition.
        unchecked: partitions whose moves could not be read, each with the reason.
    """

    groups: Mapping[str, Audit]
    moves: tuple[Finding, ...]
    unchecked: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings."""
        own = [finding for each in self.groups.values() for finding in each.findings]
        return (*own, *self.moves)


def audit_groups(spark: SparkSession, groups: Mapping[str, Sequence[Origin]]) -> GroupsAudit:
    """Audit each group, and the moves between partitions.

    Args:
        spark: a session that knows the source.
        groups: the logs of members, by cluster name.

    Raises:
        ConfigurationError: two origins belong to one member.
    """
    found = {name: audit(spark, origins) for name, origins in groups.items()}
    return GroupsAudit(found, *_moves(found, groups))


def _moves(
    found: Mapping[str, Audit], groups: Mapping[str, Sequence[Origin]]
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Check the moves between groups that were audited; return findings, and what is unchecked."""
    logs: list[PartitionLog] = []
    unchecked: list[str] = []
    for name, origins in groups.items():
        partition = partition_in(name)
        if partition is None or partition == META:
            continue
        log = moves_in(partition, _longest(found[name], origins))
        if log is None:
            unchecked.append(f"the moves of {name}: its log is pruned, and has no snapshot")
        else:
            logs.append(log)
    moves = tuple(
        Finding(wrong.kind, wrong.step.partition, -1, wrong.step.position, wrong.text)
        for wrong in wrong_moves(logs)
    )
    return moves, tuple(unchecked)


def _longest(found: Audit, origins: Sequence[Origin]) -> Origin:
    """Return the log that is known furthest; those with damage come last."""
    damaged = {finding.member for finding in found.findings if finding.kind == "damage"}
    facts = zip(found.members, origins, strict=True)
    return max(facts, key=lambda one: (one[0].member_id not in damaged, one[0].committed))[1]


def moves_in(partition: int, origin: Origin) -> PartitionLog | None:
    """Return what the log of a partition says of its slots; None if its beginning is not known.

    It needs no Spark.

    Args:
        partition: its number.
        origin: a log.

    Raises:
        StorageError, TransportError: the log can't be read.
    """
    with open_log(origin) as log:
        facts, begin, known = log.facts, 0, None
        if facts.start:
            first = next((row for row in facts.snapshots if row.position >= facts.start), None)
            if first is None:
                return None
            note = dict(log.notes(first)).get(SLOTS_NOTE, b"{}")
            begin, known = first.position, as_facts(decode_note_untrusted(note))
        found = PartitionLog(partition, known)
        found.until_ms = log.moment_before(facts.committed).timestamp_ms
        for header, index, entry in slots_entries(log, begin, facts.committed):
            with suppress(WireError):  # the state machine refuses it, and changes nothing
                for words in _PARSER.parse_untrusted(entry.payload):
                    found.apply_untrusted(words, header.position, index, header.timestamp_ms)
    return found
