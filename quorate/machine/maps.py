"""Where the map of a cluster is found without asking anybody: in the folders of its machines."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from ..errors import UsageError
from ..keyvalue.slots.cluster_map import decode_map_untrusted
from ..partitions.balance import first_map
from .config import load_machine
from .map_watch import KnownMap

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..keyvalue.slots.cluster_map import ClusterMap
    from .config import MachineConfig

__all__ = ["FIRST_MAP_FILE", "MACHINE_FILE", "map_at", "map_of_file", "newest_map", "placed_evenly"]

MACHINE_FILE: Final = "machine.toml"

FIRST_MAP_FILE: Final = "first-map.json"
"""The first map of a cluster that was made of a backup, in the folder of each machine."""


def map_of_file(config: MachineConfig) -> ClusterMap:
    """Return the map of the cluster as a machine's file describes it, for want of a newer one.

    All machines that found a cluster have the same list, so they all make the same map. A cluster
    that was made of a backup has a first map of its own, with the slots of that.

    Raises:
        ConfigurationError: the first map is none.
    """
    with suppress(FileNotFoundError):
        file = config.directory / FIRST_MAP_FILE
        return decode_map_untrusted(file.read_bytes(), what=str(file))
    return placed_evenly(config)


def placed_evenly(config: MachineConfig) -> ClusterMap:
    """Return a map with slots, replicas and leaders evenly spread over the machines of a file."""
    machines = [each.as_machine() for each in config.machines]
    if config.join:
        # Where the metadata group has its members is not known, so all machines are asked.
        machines = [each for each in machines if each.machine_id != config.machine_id]
    replicas = len(machines) if config.join else config.replicas
    return first_map(config.cluster, machines, config.partitions, replicas)


def newest_map(configs: Sequence[MachineConfig]) -> ClusterMap:
    """Return the newest map that some machines have seen; that of the first one's file if none has.

    Raises:
        ConfigurationError: a folder is of another cluster.
    """
    found = [KnownMap(each.directory, each.cluster, each.machine_id).newest for each in configs]
    seen = [each for each in found if each is not None]
    return max(seen, key=lambda each: each.epoch) if seen else map_of_file(configs[0])


def map_at(place: Path) -> ClusterMap:
    """Return the newest map of the cluster of a machine.

    Args:
        place: the machine's file, or its folder, or the directory of `quorate cluster`.

    Raises:
        UsageError: there is no machine's file.
        ConfigurationError: it has mistakes.
    """
    files = [place] if not place.is_dir() else sorted(place.glob(f"machine-*/{MACHINE_FILE}"))
    if (own := place / MACHINE_FILE).exists():
        files = [own]
    if not files:
        raise UsageError(
            f"{place}: no {MACHINE_FILE} there: expected the file of a machine, its folder, or the "
            "directory of quorate cluster --partitions"
        )
    return newest_map([load_machine(each) for each in files])
