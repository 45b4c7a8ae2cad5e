"""`quorate partition`: who has which slots and who leads where, and changes of that.

A change is a new map in the metadata group; the director brings the cluster there. So each verb
makes a plan, which is a map, shows how it differs from the newest one, and stores it if it is to.
"""

import json
import sys
from collections.abc import Sequence
from typing import Annotated

import trio
from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table

from ..errors import ConfigurationError, UsageError
from ..keyvalue.slots.cluster_map import META, ClusterMap, Move
from ..keyvalue.slots.ranges import parse_slots_untrusted
from ..local.show import make_console, print_table
from ..local.words import counted
from ..machine.partition_survey import GroupSeen, owners_seen, survey_groups
from ..partitions import wishes
from ..partitions.balance import rebalanced, with_replicas
from ..partitions.balance import split as split_map
from ..partitions.machines import names_of
from ..partitions.progress import follow_moves, in_words
from .params import Addresses, AsJson
from .partition_status import lag_in_words, slots_in_words, tell_owners
from .plans import Apply, change_to, well_machines
from .whole_cluster import DONE, HERE, REFUSED, Cluster, EndedError, open_cluster

__all__ = ["abort", "list_partitions", "move", "partition", "rebalance", "replicas", "split"]

_To = Annotated[int, Parameter(show_default=False)]
_Machines = Annotated[str, Parameter(show_default=False)]

partition = App(
    name="partition",
    help="Show the partitions of a cluster, and change who has what.",
    help_epilogue="Exit status: 0 - done, or the plan is shown; 1 - refused, or a move has ended "
    "undone: the message says what is so now; 2 - no member answers, or the outcome is unknown: "
    "run quorate partition list.",
)


@partition.command(name="list", help_epilogue="")
async def list_partitions(*, connect: Addresses = HERE, as_json: AsJson = False) -> int:
    """Show each partition: who leads it, its replicas, its slots, keys and load; and what moves.

    Args:
        connect: Client port of any member, HOST:PORT, or a path: machine.toml, the folder of a
            machine, map.json, or the directory of quorate cluster --partitions. May be given
            several times: the newest map counts. 127.0.0.1:7000 if left out.
        as_json: For programs.
    """
    try:
        async with open_cluster(connect, or_known_map=True) as cluster:
            seen = await survey_groups(cluster.map)
    except EndedError as end:
        return end.status
    if as_json:
        print(json.dumps(_plain(cluster.map, seen), indent=2))
    else:
        _render(cluster.map, seen)
    return DONE


@partition.command(help_epilogue="")
async def move(slots: str, /, *, to: _To, connect: Addresses = HERE) -> int:
    """Move slots to a partition while clients use them, and wait until that is done.

    Clients of these slots wait for some hundredths of a second. Ctrl-C ends only the waiting: the
    move goes on. quorate partition abort ends it.

    Args:
        slots: What is to move, such as 0-4095,5000. What the partition has already stays there.
        to: Number of the partition that is to own them.
        connect: Client port of any member, HOST:PORT, or a path; see quorate partition list.
    """
    wanted = _slots(slots)
    try:
        async with open_cluster(connect) as cluster:
            moves = wishes.plan_move(cluster.map, wanted, to)
            if not moves:
                print(f"partition {to} has these slots already")
                return DONE
            for each in moves:
                print(in_words(each))
            await wishes.request_moves(cluster.metadata, moves)
            return await _follow(cluster, moves)
    except EndedError as end:
        return end.status


@partition.command(help_epilogue="")
async def abort(number: int, /, *, connect: Addresses = HERE) -> int:
    """End a move undone, unless its target owns the slots already.

    Args:
        number: Of the move, as quorate partition list has it. A move that begins again gets a new
            one.
        connect: Client port of any member, HOST:PORT, or a path; see quorate partition list.
    """
    try:
        async with open_cluster(connect) as cluster:
            known = [each for each in cluster.map.moves if each.move == number]
            await wishes.abort_move(cluster.metadata, number)
            outcomes = await follow_moves(cluster.groups, known, print)
            # Undone is what was asked for.
            return REFUSED if any(each.done for each in outcomes) else DONE
    except EndedError as end:
        return end.status


@partition.command(help_epilogue="")
async def rebalance(*, apply: Apply = False, connect: Addresses = HERE) -> int:
    """Spread replicas and leaders evenly over the machines that are well.

    Args:
        apply: Do it; without, only the plan is shown. Leaders move within seconds, replicas one
            after the other.
        connect: Client port of any member, HOST:PORT, or a path; see quorate partition list.
    """
    try:
        async with open_cluster(connect) as cluster:
            well = await well_machines(cluster)
            return await change_to(cluster, rebalanced(cluster.map, well), apply=apply)
    except EndedError as end:
        return end.status


@partition.command(help_epilogue="")
async def split(*, apply: Apply = False, connect: Addresses = HERE) -> int:
    """Double the number of partitions: each new one gets half of the slots of an old one.

    Args:
        apply: Do it, and wait until all slots have moved; without, only the plan is shown.
        connect: Client port of any member, HOST:PORT, or a path; see quorate partition list.
    """
    try:
        async with open_cluster(connect) as cluster:
            before, after = cluster.map, split_map(cluster.map)
            await change_to(cluster, after, apply=apply)
            known = {each.move for each in before.moves}
            moves = [each for each in after.moves if each.move not in known]
            return await _follow(cluster, moves) if apply and moves else DONE
    except EndedError as end:
        return end.status


@partition.command(help_epilogue="")
async def replicas(
    number: int, /, *, to: _Machines, apply: Apply = False, connect: Addresses = HERE
) -> int:
    """Put the replicas of a partition on other machines, one after the other.

    Args:
        number: Of the partition.
        to: Ids of the machines that are to have one, such as 0,1,3.
        apply: Do it; without, only the plan is shown. quorate partition list shows how far it is.
        connect: Client port of any member, HOST:PORT, or a path; see quorate partition list.
    """
    ids = to.split(",")
    if not all(each.isascii() and each.isdigit() for each in ids):
        raise UsageError(f'--to "{to}": expected ids of machines, such as 0,1,3')
    try:
        async with open_cluster(connect) as cluster:
            after = with_replicas(cluster.map, number, [int(each) for each in ids])
            return await change_to(cluster, after, apply=apply)
    except EndedError as end:
        return end.status


def _slots(text: str) -> int:
    try:
        wanted = parse_slots_untrusted(text)
    except ConfigurationError as error:
        raise UsageError(str(error)) from None
    if not wanted:
        raise UsageError("slots: none given: expected some, such as 0-4095,5000")
    return wanted


async def _follow(cluster: Cluster, moves: Sequence[Move]) -> int:
    """Report moves until they have ended; return the exit status."""
    began = trio.current_time()
    outcomes = await follow_moves(cluster.groups, moves, _said)
    undone = [each for each in outcomes if not each.done]
    seconds = trio.current_time() - began
    if not undone:
        print(f"{counted(len(outcomes), 'move', 'moves')} done in {seconds:.1f} s")
        return DONE
    for each in undone:
        why = "aborted, or too many attempts failed: the log of the machine that leads metadata"
        print(
            f"{in_words(each.move)}: ended undone; partition {each.move.source} still owns them "
            f"({why} says why)",
            file=sys.stderr,
        )
    return REFUSED


def _said(words: str) -> None:
    print(words, flush=True)


# --- what is printed


def _render(cluster_map: ClusterMap, seen: Sequence[GroupSeen]) -> None:
    console = make_console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("partition")
    for name in ("leader", "preferred", "replicas"):
        table.add_column(name)
    table.add_column("slots", overflow="fold")
    table.add_column("keys", justify="right")
    table.add_column("op/s", justify="right")
    table.add_column("lag")
    for each in seen:
        table.add_row(*_row(cluster_map, each), style="" if each.survey.leader else "red")
    print_table(console, table)
    console.print()
    for one in cluster_map.moves:
        attempt = f", attempt {one.attempts}" if one.attempts else ""
        console.print(f"move {one.move}: {in_words(one)}: {one.step}{attempt}", soft_wrap=True)
    _tell_machines(console, cluster_map)
    tell_owners(console, cluster_map, seen)
    if all(each.survey.leader is None for each in seen if each.partition == META):
        console.print(
            f"The metadata group has no leader: expected a majority of machines "
            f"{', '.join(map(str, cluster_map.present_in(META)))}. Until then this map may be old, "
            "and nothing is moved.",
            style="red",
            soft_wrap=True,
        )
    console.print(f'Cluster "{cluster_map.cluster}", map {cluster_map.epoch}.')


def _tell_machines(console: Console, cluster_map: ClusterMap) -> None:
    for one in cluster_map.machines:
        if not one.draining:
            continue
        number, numbers = one.machine_id, range(META, len(cluster_map.partitions))
        there = [each for each in numbers if number in cluster_map.present_in(each)]
        words = f"has members of {names_of(there)}"
        if not there:
            words = f"has no members: quorate machine forget {number} --apply removes it"
        console.print(f"machine {number} drains: {words}", soft_wrap=True)


def _row(cluster_map: ClusterMap, seen: GroupSeen) -> list[str]:
    leader, number = seen.survey.leader, seen.partition
    replicas_of = ", ".join(map(str, cluster_map.replicas_of(number)))
    is_meta = number == META
    return [
        "metadata" if is_meta else str(number),
        "none" if leader is None else f"machine {leader.member_id}",
        "" if is_meta else f"machine {cluster_map.partitions[number].preferred}",
        replicas_of,
        "" if is_meta else slots_in_words(seen.slots),
        "" if seen.keys is None else f"{seen.keys:,}",
        "" if seen.commands_per_s is None else f"{seen.commands_per_s:,.0f}",
        lag_in_words(seen),
    ]


def _plain(cluster_map: ClusterMap, seen: Sequence[GroupSeen]) -> dict[str, object]:
    """Return the whole list for programs."""
    found: list[dict[str, object]] = []
    for each in seen:
        leader, number = each.survey.leader, each.partition
        facts: dict[str, object] = {
            "partition": number,
            "leader": None if leader is None else leader.member_id,
            "replicas": cluster_map.replicas_of(number),
            "answer": [said.member_id for said in each.survey.said],
            "lag_bytes": each.lag_bytes,
        }
        if number != META:
            preferred = cluster_map.partitions[number].preferred
            facts |= {"preferred": preferred, "slots": each.slots, "keys": each.keys}
            facts["commands_per_s"] = each.commands_per_s
        found.append(facts)
    moves: list[dict[str, object]] = [
        {
            "move": one.move,
            "slots": one.slots,
            "from": one.source,
            "to": one.target,
            "step": one.step,
            "attempts": one.attempts,
        }
        for one in cluster_map.moves
    ]
    machines = [
        {"machine": one.machine_id, "host": one.host, "rack": one.rack, "draining": one.draining}
        for one in cluster_map.machines
    ]
    problems, warnings = owners_seen(cluster_map, seen)
    return {
        "cluster": cluster_map.cluster,
        "epoch": cluster_map.epoch,
        "problems": problems,
        "warnings": warnings,
        "machines": machines,
        "partitions": found,
        "moves": moves,
    }
