"""The file of each member of a machine, made of the machine's file and of the map.

A group comes into being once. As long as the map says that a group has no member yet, those on the
machines of its founders found it. From then on all members without a store join, those of founders
that have lost their disks, too: they have no vote until the group's log admits them. The founders
of the metadata group are those of the first map, which is made of the machine's file; any map that
this machine has got is from that group, so it is founded. A member that has begun stays what it
was.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from ..errors import ConfigurationError
from ..keyvalue.slots.cluster_map import META, group_name
from ..keyvalue.slots.folder import MAP_FILE, folder_of, replace_file
from ..local.stores import has_store
from ..node.config.config import MemberConfig, NodeConfig, PartitionSettings, load_config

if TYPE_CHECKING:
    from ..keyvalue.slots.cluster_map import ClusterMap, Machine
    from .config import MachineConfig

__all__ = ["NODE_FILE", "SET_ASIDE", "member_config", "write_member"]

NODE_FILE: Final = "node.toml"
SET_ASIDE: Final = ".removed-"
"""What is added to the name of a folder whose member was removed from its group."""


def member_config(config: MachineConfig, cluster_map: ClusterMap, partition: int) -> NodeConfig:
    """Return the configuration of the machine's member of a partition, or of `META`.

    Raises:
        ConfigurationError: a founder of the group is on no machine that is known.
    """
    own, founders = config.machine_id, _founders(config, cluster_map, partition)
    founds = own in founders
    ids = founders if founds else (*cluster_map.members_of(partition), own)
    return NodeConfig(
        group_name(config.cluster, partition),
        own,
        folder_of(config.directory, partition),
        [_seat(config, cluster_map, each, partition) for each in sorted({*ids})],
        config.profile,
        timeouts=config.timeouts,
        limits=config.limits,
        snapshot=config.snapshot,
        join=not founds,
        security=config.security.within(Path.cwd()),
        log=config.log,
        web=config.web_of(partition).within(Path.cwd()),
        etcd=config.etcd_of(partition),
        partition=PartitionSettings(partition, ".."),
    )


def write_member(config: MachineConfig, cluster_map: ClusterMap, partition: int) -> Path:
    """Write the file of the machine's member of a partition; return its path.

    Raises:
        ConfigurationError: see `member_config`.
        OSError: it cannot be written.
    """
    made = member_config(config, cluster_map, partition)
    file = made.directory / NODE_FILE
    replace_file(file, attrs.evolve(made, directory=Path()).to_toml().encode())
    return file


def _founders(config: MachineConfig, cluster_map: ClusterMap, partition: int) -> tuple[int, ...]:
    """Return the machines whose members found a group."""
    folder = folder_of(config.directory, partition)
    if has_store(folder) and (folder / NODE_FILE).exists():
        before = load_config(folder / NODE_FILE)
        return () if before.join else tuple(each.member_id for each in before.members)
    if any(folder.parent.glob(f"{folder.name}{SET_ASIDE}*")):
        return ()  # it was removed, and comes back with an empty store
    if partition == META:
        is_founded = config.join or (config.directory / MAP_FILE).exists()
        return () if is_founded else cluster_map.metadata
    return () if cluster_map.is_founded(partition) else cluster_map.partitions[partition].founders


def _machine(config: MachineConfig, cluster_map: ClusterMap, machine_id: int) -> Machine | None:
    """Return a machine: as the file has it, if it is this one; otherwise as the map has it."""
    if machine_id == config.machine_id:
        return config.own.as_machine()
    if (found := cluster_map.machine(machine_id)) is not None:
        return found
    listed = (each.as_machine() for each in config.machines if each.machine_id == machine_id)
    return next(listed, None)


def _seat(
    config: MachineConfig, cluster_map: ClusterMap, machine_id: int, partition: int
) -> MemberConfig:
    """Return where a machine's member of a group is.

    Raises:
        ConfigurationError: nobody knows the machine.
    """
    if (machine := _machine(config, cluster_map, machine_id)) is not None:
        return MemberConfig(
            machine.machine_id,
            machine.host,
            machine.port_of_member(partition),
            machine.client_port(partition),
            tls_port=machine.client_tls_port(partition),
        )
    # A founder stays one in the files of the other ones, though its machine was forgotten.
    file = folder_of(config.directory, partition) / NODE_FILE
    for each in load_config(file).members if file.exists() else ():
        if each.member_id == machine_id:
            return each
    raise ConfigurationError(
        f"machine {machine_id}: it founded a group, and neither the map nor the file of machine "
        f"{config.machine_id} has its address: add it to [[machines]] of that file"
    )
