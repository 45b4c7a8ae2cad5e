"""`quorate backup --all-partitions`: the logs of all partitions, and a manifest.

1. All logs are copied, side by side. That takes as long as it takes.
2. For one moment of all (--consistent): the groups are suspended and resumed, which gives
   positions, and the logs are copied up to there. Without it each counts up to its copy's end.
3. The manifest is written.

Slots that move meanwhile would be in both of two backups, or in none. So the map must be the same
at the end as at the beginning, and without moves.
"""

from __future__ import annotations

import json
import random
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from ..errors import ConfigurationError, PrunedError, TransportError, leaves
from ..keyvalue.slots.cluster_map import ClusterMap, group_name
from ..keyvalue.slots.folder import folder_of
from ..local.log_lines import print_bounded, unblocked
from ..local.words import counted
from ..machine.manifest import Manifest, check_place, write_manifest
from ..machine.reach import addresses_of
from ..node.config.security import Security, load_security
from ..node.readers.backup import open_backup
from ..node.readers.replay_client import ReplayClient
from ..node.upkeep.access import open_reader_access
from ..partitions.metadata import load
from ..partitions.one_moment import NoMomentError, one_moment
from ..transport import CONNECTION_ERRORS, Address, TcpNetwork
from .whole_cluster import DONE, REFUSED, UNREACHABLE, Cluster, EndedError, open_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["back_up_partitions"]


async def back_up_partitions(
    to: Path,
    connect: Sequence[str],
    *,
    consistent: bool,
    security: Path | None,
    as_json: bool,
) -> int:
    """Copy the logs of all partitions into a folder; return the exit status.

    Args:
        to: the folder; created if it is missing.
        connect: see `find_map`.
        consistent: as of one moment.
        security: see `quorate backup`.
        as_json: print what it holds, for programs.

    Raises:
        ConfigurationError: a file is wrong, or another folder is to be used.
        StoreMismatchError: the folder holds a backup of another cluster.
        StorageError: the disk failed or is full, or something is damaged.
    """
    check_place(to, consistent=consistent)
    found = Security() if security is None else load_security(security)
    status, manifest = DONE, None
    trouble: BaseExceptionGroup | None = None
    try:
        with unblocked(sys.stderr if as_json else sys.stdout) as file:

            def tell(words: str) -> None:
                print(words, file=file, flush=True)

            async with open_cluster(connect) as cluster:
                manifest = await _back_up(to, cluster, found, tell, consistent=consistent)
    except* EndedError as group:
        status = next(leaf.status for leaf in leaves(group) if isinstance(leaf, EndedError))
    except* (PrunedError, NoMomentError) as group:
        status, trouble = REFUSED, group
    except* (*CONNECTION_ERRORS, TransportError) as group:
        status, trouble = UNREACHABLE, group
    for leaf in leaves(trouble) if trouble is not None else ():
        print(leaf, file=sys.stderr)
    if manifest is not None and status == DONE:
        _show(to, manifest, as_json=as_json)
    return status


def _show(to: Path, manifest: Manifest, *, as_json: bool) -> None:
    if as_json:
        plain: dict[str, Any] = {"directory": str(to), **msgspec.to_builtins(manifest)}
        print_bounded(sys.stdout, f"{json.dumps(plain)}\n")
        return
    many = counted(len(manifest.positions), "partition", "partitions")
    moment = "as of one moment" if manifest.consistent else "each as of its own end"
    print_bounded(sys.stdout, f'{to} holds {many} of cluster "{manifest.cluster}", {moment}\n')


async def _back_up(
    to: Path, cluster: Cluster, found: Security, tell: Callable[[str], None], *, consistent: bool
) -> Manifest:
    """Copy all logs, and write the manifest.

    Raises:
        ConfigurationError: slots move, or the map has changed meanwhile.
        NoMomentError: see `one_moment`.
    """
    before = cluster.map
    if before.moves:
        raise ConfigurationError(
            f"{counted(len(before.moves), 'move', 'moves')} of slots under way: expected none: a "
            "slot would be in two partitions, or in none: see quorate partition list"
        )
    positions = await _copy_all(to, before, found, tell)
    taken_ms = time.time_ns() // 1_000_000
    if consistent:
        taken_ms = time.time_ns() // 1_000_000
        moment = await one_moment(cluster.groups, [*positions])
        tell(f"one moment of all partitions: writes waited for {moment.pause_s:.3f} s")
        ends, positions = await _copy_all(to, before, found, tell), moment.positions
        if short := [one for one in positions if ends[one] < positions[one]]:
            raise NoMomentError(f"the logs of partitions {short} end before that: run it again")
    after = await load(cluster.metadata)
    if after is None or after.epoch != before.epoch:
        raise ConfigurationError(
            "the map of the cluster has changed meanwhile, so slots may have moved: run this "
            "again, it goes on where it has ended"
        )
    manifest = Manifest(before.cluster, before.epoch, consistent, taken_ms, positions, before)
    write_manifest(to, manifest)
    return manifest


async def _copy_all(
    to: Path, cluster_map: ClusterMap, found: Security, tell: Callable[[str], None]
) -> dict[int, int]:
    """Bring the copies of all logs up to now; return where they end."""
    ends: dict[int, int] = {}

    async def copy(partition: int) -> None:
        client = _client(cluster_map, partition, found)
        rng = random.Random(random.SystemRandom().getrandbits(64))  # noqa: S311 - not for secrets
        async with open_backup(
            folder_of(to, partition),
            client,
            rng=rng,
            report=lambda words: tell(f"partition {partition}: {words}"),
        ) as opened:
            await opened.run()
            ends[partition] = opened.store.append_position

    async with trio.open_nursery() as nursery:
        for each in cluster_map.partitions:
            nursery.start_soon(copy, each.partition)
    return dict(sorted(ends.items()))


def _client(cluster_map: ClusterMap, partition: int, found: Security) -> ReplayClient:
    group = group_name(cluster_map.cluster, partition)
    addresses = [
        Address(each.host, each.member_port) for each in addresses_of(cluster_map, partition)
    ]
    access = open_reader_access(found, cluster=group, network=TcpNetwork())
    return ReplayClient(group, addresses, network=access.network, security=access.security)
