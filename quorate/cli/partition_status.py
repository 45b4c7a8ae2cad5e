"""`quorate status` of a cluster with partitions: a line for each, and what is wrong anywhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.table import Table

from ..keyvalue.slots.cluster_map import META
from ..keyvalue.slots.ranges import count_of, parse_slots_untrusted
from ..local.show import make_console, print_table
from ..local.survey import Verdict
from ..local.words import counted, size
from ..machine.maps import map_at
from ..machine.partition_survey import owners_seen, survey_groups

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from ..keyvalue.slots.cluster_map import ClusterMap
    from ..machine.partition_survey import GroupSeen

__all__ = ["lag_in_words", "show_groups", "slots_in_words", "tell_owners", "verdict_of"]


async def show_groups(place: Path, *, as_json: bool) -> int:
    """Ask all members of all groups, and print a line for each group; return the exit status.

    Args:
        place: see `map_at`.
        as_json: print the whole answers, for programs.

    Raises:
        ConfigurationError: there is no machine's file, or it has mistakes.
    """
    cluster_map = map_at(place)
    seen = await survey_groups(cluster_map)
    verdict = verdict_of(seen)
    if verdict is Verdict.AGREED and owners_seen(cluster_map, seen)[0]:
        verdict = Verdict.DISAGREED
    if as_json:
        print(_as_json(cluster_map, seen, verdict))
        return int(verdict)
    console = make_console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("group", "leader", "term"):
        table.add_column(name)
    table.add_column("slots", overflow="fold")
    table.add_column("keys", justify="right")
    for name in ("lag", "members"):
        table.add_column(name)
    for each in seen:
        table.add_row(*_row(each), style="" if each.survey.leader else "red")
    print_table(console, table)
    console.print()
    for each in seen:
        _print_troubles(console, each)
    tell_owners(console, cluster_map, seen)
    if verdict is Verdict.AGREED:
        words = counted(len(cluster_map.partitions), "partition", "partitions")
        words = f'Cluster "{cluster_map.cluster}": {words}, map {cluster_map.epoch}'
        console.print(f"{words}; all members agree.", style="green")
    return int(verdict)


def _print_troubles(console: Console, seen: GroupSeen) -> None:
    for style, lines in (("red", seen.survey.problems), ("yellow", seen.survey.warnings)):
        for line in lines:
            console.print(f"{seen.name}: {line}", style=style, soft_wrap=True)
    if seen.survey.leader is not None and not seen.is_ready:
        words = "it has not said yet that it has got its first slots; the director gives them"
        console.print(f"{seen.name}: {words}", style="yellow", soft_wrap=True)


def tell_owners(console: Console, cluster_map: ClusterMap, seen: Sequence[GroupSeen]) -> None:
    """Print what is wrong with who owns which slots, if anything is."""
    problems, warnings = owners_seen(cluster_map, seen)
    for style, lines in (("red", problems), ("yellow", warnings)):
        for line in lines:
            console.print(line, style=style, soft_wrap=True)


def verdict_of(seen: Sequence[GroupSeen]) -> Verdict:
    """Return the verdict on all groups: agreed if it is that on each, and each has its slots."""
    verdicts = {each.survey.verdict for each in seen}
    if not all(each.is_ready for each in seen):
        verdicts.add(Verdict.DISAGREED)
    if {each.survey.verdict for each in seen} == {Verdict.UNREACHABLE}:
        return Verdict.UNREACHABLE
    return Verdict.AGREED if verdicts == {Verdict.AGREED} else Verdict.DISAGREED


def slots_in_words(slots: str) -> str:
    """Write slots with their number, for people: ``0-8191 (8,192)``."""
    return f"{slots} ({count_of(parse_slots_untrusted(slots)):,})" if slots else "none"


def lag_in_words(seen: GroupSeen) -> str:
    """Write how far the members of a group are, for people; nothing without a leader."""
    if seen.survey.leader is None:
        return ""
    return f"{size(seen.lag_bytes)} behind" if seen.lag_bytes else "up to date"


def _row(seen: GroupSeen) -> list[str]:
    leader = seen.survey.leader
    slots = "" if seen.partition == META else slots_in_words(seen.slots)
    if seen.moving:
        slots += f", {seen.moving:,} on the move"
    return [
        seen.name,
        "none" if leader is None else f"machine {leader.member_id}",
        "-" if leader is None else str(leader.term),
        slots,
        "" if seen.keys is None else f"{seen.keys:,}",
        lag_in_words(seen),
        f"{len(seen.survey.said)} of {len(seen.survey.answers)}",
    ]


def _as_json(cluster_map: ClusterMap, seen: Sequence[GroupSeen], verdict: Verdict) -> str:
    groups = [
        {
            "partition": each.partition,
            "slots": each.slots,
            "keys": each.keys,
            "moving": each.moving,
            "lag_bytes": each.lag_bytes,
            **json.loads(each.survey.as_json()),
        }
        for each in seen
    ]
    problems, warnings = owners_seen(cluster_map, seen)
    found = {
        "verdict": verdict.name.lower(),
        "cluster": cluster_map.cluster,
        "epoch": cluster_map.epoch,
        "problems": problems,
        "warnings": warnings,
        "groups": groups,
    }
    return json.dumps(found, indent=2)
