"""Plans for one machine that goes, as pure functions of a map.

- `drained`: it leads nothing, and its replicas are on other machines as far as those have room
- `undrained`: it may have leaders and replicas again
- `forgotten`: it is not in the map any more; only one without members can be

A drained machine goes on running: its members serve until others have taken their places. Leaders
leave it at once (:mod:`.health`), and replicas follow (:mod:`.replicas`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from ..errors import ConfigurationError, UsageError
from ..keyvalue.slots.cluster_map import META
from .balance import check_founded, replace_replica

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ..keyvalue.slots.cluster_map import ClusterMap, Machine
    from .replicas import MemberList

__all__ = ["drained", "forgotten", "groups_on", "names_of", "undrained"]

_replace = msgspec.structs.replace


def drained(cluster_map: ClusterMap, machine_id: int, well: Collection[int]) -> ClusterMap:
    """Return a map in which a machine leads nothing, and has no replicas if others have room.

    Args:
        cluster_map: the newest map.
        machine_id: of the machine.
        well: ids of the machines that may get replicas. Those that drain get none.

    Returns:
        The map. A replica stays where it is if all usable machines have one of its partition: see
        `groups_on`.

    Raises:
        UsageError: there is no such machine.
        ConfigurationError: all other machines drain, too; or replicas should move of a group that
            is not founded yet.
    """
    marked = _with_draining(cluster_map, machine_id, draining=True)
    usable = {
        each.machine_id: each.rack
        for each in marked.machines
        if each.machine_id in well and not each.draining
    }
    if all(each.draining for each in marked.machines):
        raise ConfigurationError(
            f"machine {machine_id}: all other machines drain already: expected one that stays: "
            "add a machine, or see quorate machine undrain"
        )
    replicas = [{*each.replicas} for each in marked.partitions]
    metadata = {*marked.metadata}
    for held in (*replicas, metadata):
        if machine_id in held:
            replace_replica(held, machine_id, replicas, usable)
    leads = Counter(each.preferred for each in marked.partitions)
    partitions = list(marked.partitions)
    for number, held in enumerate(replicas):
        preferred = partitions[number].preferred
        fit = sorted(held & usable.keys()) or sorted(held - {machine_id})
        if preferred == machine_id and fit:
            preferred = min(fit, key=lambda one: leads[one])
            leads[preferred] += 1
        partitions[number] = _replace(
            partitions[number], replicas=tuple(sorted(held)), preferred=preferred
        )
    plan = _replace(marked, partitions=tuple(partitions), metadata=tuple(sorted(metadata)))
    check_founded(cluster_map, plan)
    return plan


def undrained(cluster_map: ClusterMap, machine_id: int) -> ClusterMap:
    """Return a map in which a machine may have leaders and replicas again.

    What it had does not come back by itself: see `balance.rebalanced`.

    Raises:
        UsageError: there is no such machine.
    """
    return _with_draining(cluster_map, machine_id, draining=False)


def forgotten(
    cluster_map: ClusterMap, machine_id: int, lists: Mapping[int, MemberList]
) -> ClusterMap:
    """Return a map without a machine that has no member of any group.

    Args:
        cluster_map: the newest map.
        machine_id: of the machine.
        lists: the members that each group has, by partition, `META` among them.

    Raises:
        UsageError: there is no such machine.
        ConfigurationError: it has members, or is to have some; or a group has not said so.
    """
    _known(cluster_map, machine_id)
    if wanted := groups_on(cluster_map, machine_id):
        raise ConfigurationError(
            f"machine {machine_id} is to have members of {names_of(wanted)}: expected none: "
            f"quorate machine drain {machine_id} --apply moves them to other machines, if those "
            "have room"
        )
    numbers = range(META, len(cluster_map.partitions))
    there = [
        each
        for each in numbers
        if machine_id in cluster_map.present_in(each)
        or (each in lists and any(one.member_id == machine_id for one in lists[each].members))
    ]
    if there:
        raise ConfigurationError(
            f"machine {machine_id} still has members of {names_of(there)}: expected none: wait "
            "until other machines have taken their places; quorate partition list shows it"
        )
    if silent := [each for each in numbers if each not in lists]:
        raise ConfigurationError(
            f"{names_of(silent)}: no leader says which members it has: expected to hear that none "
            f"is on machine {machine_id}: see quorate partition list, and try again"
        )
    machines = tuple(each for each in cluster_map.machines if each.machine_id != machine_id)
    return _replace(cluster_map, machines=machines)


def groups_on(cluster_map: ClusterMap, machine_id: int) -> list[int]:
    """Return the partitions, and `META`, that are to have a member on a machine."""
    numbers = range(META, len(cluster_map.partitions))
    return [each for each in numbers if machine_id in cluster_map.replicas_of(each)]


def names_of(groups: Collection[int]) -> str:
    """Write some groups for people: ``the metadata group and partitions 0, 2``."""
    partitions = sorted(each for each in groups if each != META)
    words = ["the metadata group"] if META in groups else []
    if partitions:
        what = "partition" if len(partitions) == 1 else "partitions"
        words.append(f"{what} {', '.join(map(str, partitions))}")
    return " and ".join(words)


def _known(cluster_map: ClusterMap, machine_id: int) -> Machine:
    if (machine := cluster_map.machine(machine_id)) is None:
        known = ", ".join(str(each.machine_id) for each in cluster_map.machines)
        raise UsageError(f"machine {machine_id}: expected one of {known}")
    return machine


def _with_draining(cluster_map: ClusterMap, machine_id: int, *, draining: bool) -> ClusterMap:
    after = _replace(_known(cluster_map, machine_id), draining=draining)
    machines = [after if each.machine_id == machine_id else each for each in cluster_map.machines]
    return _replace(cluster_map, machines=tuple(machines))
