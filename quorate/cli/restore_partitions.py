"""`quorate restore` of a backup of all partitions: the machines of a new cluster."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from ..errors import ConfigurationError, PrunedError, UsageError
from ..keyvalue.slots.cluster_map import META
from ..keyvalue.slots.folder import folder_of
from ..local.restoring import restore_all
from ..local.stores import has_store
from ..local.words import counted
from ..machine.manifest import read_manifest_untrusted
from ..machine.restored import lay_out_restored, members_of, publish
from ..storage.tools.restore import moment, plan_restore
from .whole_cluster import DONE, REFUSED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..keyvalue.slots.cluster_map import ClusterMap
    from ..machine.config import MachineConfig
    from ..machine.manifest import Manifest
    from ..storage.tools.restore import RestorePlan

__all__ = ["restore_partitions"]


async def restore_partitions(
    source: Path,
    to: Path,
    *,
    cluster: str | None,
    machines: int,
    client_port: int,
    as_json: bool,
) -> int:
    """Make the machines of a new cluster from a backup of all partitions; return the exit status.

    Args:
        source: the folder with the manifest.
        to: directory of all machines.
        cluster: name of the new cluster.
        machines: how many.
        client_port: first port of machine 0.
        as_json: print what was made, for programs.

    Raises:
        UsageError: an argument is wrong or missing.
        ConfigurationError: a file is wrong, or there are members already.
        StorageError: the backup is damaged.
    """
    if cluster is None:
        raise UsageError(
            f"--from {source}: it holds a whole cluster with partitions: expected --new-cluster "
            "NAME; for one partition give its folder in there"
        )
    manifest = read_manifest_untrusted(source)
    try:
        plans = _plans(source, manifest)
    except PrunedError as refusal:
        print(refusal, file=sys.stderr)
        return REFUSED
    configs, made = lay_out_restored(
        to, manifest, cluster=cluster, machines=machines, client_port=client_port
    )
    _check_empty(configs, len(plans))
    await _make(plans, configs, made, as_json=as_json)
    positions = {one: plan.point.position for one, plan in plans.items()}
    if as_json:
        folders = [str(each.directory) for each in configs]
        found = {"from": str(source), "cluster": cluster, "machines": folders}
        print(json.dumps({**found, "positions": positions}))
    else:
        _tell(to, configs[0], len(configs))
    return DONE


async def _make(
    plans: dict[int, RestorePlan],
    configs: list[MachineConfig],
    made: ClusterMap,
    *,
    as_json: bool,
) -> None:
    """Make the members of all partitions, and give the machines their first map."""
    for one, plan in plans.items():
        if not as_json:
            when = moment(plan.point.timestamp_ms)
            print(f"partition {one}: up to {plan.point.position}, of {when}", flush=True)
        members = members_of(configs, made, one)
        await restore_all(plan, members, lambda _words: None, recovering=False)
    # Last: a machine without it would begin with a map of its file, and other slots.
    publish(configs, made)


def _plans(source: Path, manifest: Manifest) -> dict[int, RestorePlan]:
    """Return how to restore each partition.

    Raises:
        PrunedError: one of them can't be restored there.
    """
    return {
        one: plan_restore(folder_of(source, one), position=position)
        for one, position in sorted(manifest.positions.items())
    }


def _tell(to: Path, config: MachineConfig, machines: int) -> None:
    """Print what was made, and what to do next."""
    count = config.partitions
    print(
        f'{to}: {counted(machines, "machine", "machines")} of cluster "{config.cluster}", with '
        f"{counted(count, 'partition', 'partitions')}, each verified and started once.\n"
        "Its members ask nobody who they are: before others reach their ports, write a table "
        "[security] into each machine.toml: docs/security.md\n"
        f"To run it here: quorate cluster --dir {to} --partitions {count} --machines {machines} "
        f"--client-port {config.machines[0].port}"
    )


def _check_empty(configs: Sequence[MachineConfig], partitions: int) -> None:
    """Check that no member lies where new ones will.

    Raises:
        ConfigurationError: there is one.
    """
    for config in configs:
        for partition in (META, *range(partitions)):
            place = folder_of(config.directory, partition)
            if has_store(place):
                raise ConfigurationError(
                    f"{place}: a member lies there: expected a new directory for --to"
                )
