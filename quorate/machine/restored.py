"""Machines made of a backup of all partitions: their files, and the map of the new cluster.

The partitions keep their numbers and their slots, since each has in its log what it owns. Machines,
replicas and leaders are new. The epoch goes on: partitions remember the numbers of moves, which are
epochs, so none may come twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ..keyvalue.slots.cluster_map import ClusterMap, encode_map
from ..keyvalue.slots.folder import replace_file
from .files import member_config, write_member
from .layout import lay_out_machines
from .maps import FIRST_MAP_FILE, placed_evenly

if TYPE_CHECKING:
    from pathlib import Path

    from ..node.config.config import NodeConfig
    from .config import MachineConfig
    from .manifest import Manifest

__all__ = ["lay_out_restored", "members_of", "new_map"]


def new_map(config: MachineConfig, manifest: Manifest) -> ClusterMap:
    """Return the first map of a cluster that is made of a backup.

    Args:
        config: of one of its machines, all of which have the same list.
        manifest: of the backup.
    """
    placed = placed_evenly(config)
    partitions = [
        msgspec.structs.replace(each, slots=was.slots, founded=was.slots)
        for each, was in zip(placed.partitions, manifest.map.partitions, strict=True)
    ]
    return msgspec.structs.replace(
        placed, epoch=manifest.epoch + 1, partitions=tuple(partitions), moves=()
    )


def lay_out_restored(
    directory: Path, manifest: Manifest, *, cluster: str, machines: int, client_port: int
) -> tuple[list[MachineConfig], ClusterMap]:
    """Write the files of new machines; return their configurations, and the map of the cluster.

    Args:
        directory: of all machines.
        manifest: of the backup.
        cluster: name of the new cluster.
        machines: how many.
        client_port: first port of machine 0; see `lay_out_machines`.

    Raises:
        UsageError: a number is out of range.
        ConfigurationError: an existing file disagrees.
        OSError: a file cannot be written.
    """
    configs = lay_out_machines(
        directory,
        machines=machines,
        partitions=len(manifest.positions),
        client_port=client_port,
        cluster=cluster,
    )
    made = new_map(configs[0], manifest)
    return configs, made


def members_of(
    configs: list[MachineConfig], cluster_map: ClusterMap, partition: int
) -> list[NodeConfig]:
    """Write the files of a partition's members; return their configurations.

    Raises:
        OSError: a file cannot be written.
    """
    replicas = cluster_map.replicas_of(partition)
    chosen = [config for config in configs if config.machine_id in replicas]
    for config in chosen:
        write_member(config, cluster_map, partition)
    return [member_config(config, cluster_map, partition) for config in chosen]


def publish(configs: list[MachineConfig], cluster_map: ClusterMap) -> None:
    """Give each machine the map, with which the new metadata group begins.

    Raises:
        OSError: a file cannot be written.
    """
    for config in configs:
        replace_file(config.directory / FIRST_MAP_FILE, encode_map(cluster_map))
