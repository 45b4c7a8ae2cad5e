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

    from ..machine.config import MachineConfig

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
        plans = {
            one: plan_restore(folder_of(source, one), position=position)
            for one, position in sorted(manifest.positions.items())
        }
    except PrunedError as refusal:
        print(refusal, file=sys.stderr)
        return REFUSED
    configs, made = lay_out_restored(
        to, manifest, cluster=cluster, machines=machines, client_port=client_port
    )
    _check_empty(configs, len(plans))
    for one, plan in plans.items():
        if not as_json:
            when = moment(plan.point.timestamp_ms)
            print(f"partition {one}: up to {plan.point.position}, of {when}", flush=True)
        members = members_of(configs, made, one)
        await restore_all(plan, members, lambda _words: None, recovering=False)
    # Last: a machine without it would begin with a map of its file, and other slots.
    publish(configs, made)
    if as_json:
        found = {"cluster": cluster, "machines": [str(each.directory) for each in configs]}
        positions = {one: plan.point.position for one, plan in plans.items()}
        print(json.dumps({**found, "from": str(source), "positions": positions}))
        return DONE
    print(
        f'{to}: {counted(len(configs), "machine", "machines")} of cluster "{cluster}", with '
        f"{counted(len(plans), 'partition', 'partitions')}, each verified and started once.\n"
        "Its members ask nobody who they are: before others reach their ports, write a table "
        "[security] into each machine.toml: docs/security.md\n"
        f"To run it here: quorate cluster --dir {to} --partitions {len(plans)} "
        f"--machines {len(configs)} --client-port {client_port}"
    )
    return DONE


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
