"""Plans for a cluster with partitions: shown first, and stored as a change of the map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
from cyclopts import Parameter

from ..errors import ConfigurationError
from ..local.words import counted
from ..partitions.balance import differences
from ..partitions.health import lasting_faults
from ..partitions.metadata import change, load
from .whole_cluster import DONE

if TYPE_CHECKING:
    from ..keyvalue.slots.cluster_map import ClusterMap
    from .whole_cluster import Cluster

__all__ = ["Apply", "change_to", "well_machines"]

Apply: TypeAlias = Annotated[bool, Parameter(negative="", show_default=False)]


async def well_machines(cluster: Cluster) -> set[int]:
    """Return the machines that are well, by what the leaders say. It takes seconds if one is not.

    Raises:
        ConfigurationError: too few groups answer.
        RequestError: the metadata group does not answer any more.
    """
    found = await lasting_faults(cluster.groups, cluster.map)
    if found is None:
        groups = counted(len(cluster.map.partitions) + 1, "group has", "groups have")
        raise ConfigurationError(
            f"fewer than half of {groups} a leader that answers: no plan is made of that: see "
            "quorate partition list"
        )
    for machine, why in sorted(found.items()):
        print(f"machine {machine} gets nothing: {why}")
    # The director may have changed the map by now, and a plan for an old one is refused.
    cluster.map = await load(cluster.metadata) or cluster.map
    return {each.machine_id for each in cluster.map.machines} - found.keys()


async def change_to(cluster: Cluster, after: ClusterMap, *, apply: bool) -> int:
    """Show how a map differs from the newest one, and store it if it is to be.

    Returns:
        The exit status.

    Raises:
        ConfigurationError: the map has changed since the plan was made.
        RequestError: the metadata group does not answer. The map may be stored.
    """
    plan = differences(cluster.map, after)
    if not plan:
        print("nothing to change")
        return DONE
    print("\n".join(plan))
    if not apply:
        print("This is a plan: --apply does it.")
        return DONE
    before = cluster.map

    def edit(now: ClusterMap) -> ClusterMap | None:
        if msgspec.structs.replace(now, epoch=after.epoch) == after:
            return None  # it is stored, although the answer was lost
        if now.epoch != before.epoch:
            raise ConfigurationError("the map has changed since this plan was made: make a new one")
        return after

    cluster.map = await change(cluster.metadata, edit)
    print(f"map {cluster.map.epoch} says so now, and the cluster follows: quorate partition list")
    return DONE
