"""`quorate machine`: take a machine out of a cluster with partitions.

Each verb makes a plan, as those of `quorate partition` do; see `plans`.
"""

from typing import Annotated

import trio
from cyclopts import App, Parameter

from ..keyvalue.slots.cluster_map import META, ClusterMap
from ..partitions.machines import drained, forgotten, groups_on, names_of, undrained
from ..partitions.replicas import MemberList, ask_members
from .params import Addresses
from .plans import Apply, change_to, well_machines
from .whole_cluster import HERE, Cluster, EndedError, open_cluster

__all__ = ["drain", "forget", "machine", "undrain"]

_Machine = Annotated[int, Parameter(show_default=False)]

machine = App(
    name="machine",
    help="Take a machine out of a cluster with partitions.",
    help_epilogue="Exit status: 0 - done, or the plan is shown; 1 - refused, and nothing has "
    "changed; 2 - no member answers, or the outcome is unknown: run quorate partition list.",
)


@machine.command(help_epilogue="")
async def drain(machine_id: _Machine, /, *, apply: Apply = False, connect: Addresses = HERE) -> int:
    """Have a machine lead nothing, and put its replicas on other machines, as far as those can.

    Its leaders go first, within seconds. Then other machines take the places of its members, one
    after the other. Where all other machines have a replica already, it stays.

    Args:
        machine_id: Id of the machine.
        apply: Do it; without, only the plan is shown. quorate partition list shows how far it is.
        connect: Client port of any member, HOST:PORT, or a path; see quorate partition list.
    """
    try:
        async with open_cluster(connect) as cluster:
            after = drained(cluster.map, machine_id, await well_machines(cluster))
            status = await change_to(cluster, after, apply=apply)
            _tell_what_stays(after, machine_id)
            return status
    except EndedError as end:
        return end.status


@machine.command(help_epilogue="")
async def undrain(
    machine_id: _Machine, /, *, apply: Apply = False, connect: Addresses = HERE
) -> int:
    """Let a machine have leaders and replicas again; quorate partition rebalance gives it some.

    Args:
        machine_id: Id of the machine.
        apply: Do it; without, only the plan is shown.
        connect: Client port of any member, HOST:PORT, or a path; see quorate partition list.
    """
    try:
        async with open_cluster(connect) as cluster:
            status = await change_to(cluster, undrained(cluster.map, machine_id), apply=apply)
            print("Then spread leaders and replicas again: quorate partition rebalance")
            return status
    except EndedError as end:
        return end.status


@machine.command(help_epilogue="")
async def forget(
    machine_id: _Machine, /, *, apply: Apply = False, connect: Addresses = HERE
) -> int:
    """Remove a machine from the map, once no group has a member there. Its supervisor ends.

    Args:
        machine_id: Id of the machine. It need not run.
        apply: Do it; without, only the plan is shown.
        connect: Client port of any member, HOST:PORT, or a path; see quorate partition list.
    """
    try:
        async with open_cluster(connect) as cluster:
            after = forgotten(cluster.map, machine_id, await _member_lists(cluster))
            return await change_to(cluster, after, apply=apply)
    except EndedError as end:
        return end.status


async def _member_lists(cluster: Cluster) -> dict[int, MemberList]:
    """Ask all groups for their members; those that have no leader are missing."""
    lists: dict[int, MemberList] = {}
    async with trio.open_nursery() as nursery:
        for partition in range(META, len(cluster.map.partitions)):
            nursery.start_soon(ask_members, cluster.groups, partition, lists)
    return lists


def _tell_what_stays(after: ClusterMap, machine_id: int) -> None:
    stays = groups_on(after, machine_id)
    if stays:
        print(
            f"machine {machine_id} keeps its members of {names_of(stays)}: each other machine that "
            "is well has one already: add a machine, and drain this one again"
        )
    else:
        print(f"Once it has no members: quorate machine forget {machine_id} --apply")
