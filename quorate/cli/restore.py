"""`quorate restore`: make members from a backup, with the state of any point of its log."""

import json
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import attrs
from cyclopts import Parameter

from ..errors import ConfigurationError, PrunedError, UsageError
from ..local.cluster import check_no_store, lay_out
from ..local.restoring import restore_all
from ..local.stores import store_of, whose
from ..machine.manifest import MANIFEST
from ..node.config.config import NodeConfig, load_config
from ..node.store_opening import why_no_founder
from ..node.upkeep.access import read_secret
from ..storage.tools.restore import RestorePlan, moment, plan_restore
from .params import AsJson, needing_certs, parse_point

__all__ = ["restore"]

DONE: Final = 0
REFUSED: Final = 1

At = Annotated[str | None, Parameter(show_default=False)]
Place = Annotated[Path, Parameter(show_default=False)]
From = Annotated[Path, Parameter(name="--from", show_default=False)]
KeyFile = Annotated[Path | None, Parameter(show_default=False)]
EtcdPort = Annotated[int | None, Parameter(show_default=False)]
NewCluster = Annotated[str | None, Parameter(show_default=False)]


async def restore(
    *,
    source: From,
    to: Place,
    at: At = None,
    new_cluster: NewCluster = None,
    members: int = 3,
    client_port: int = 7000,
    etcd_port: EtcdPort = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> int:
    """Make a member, or all members of a new cluster, from a backup, as of any point of its log.

    The result is verified, and started once. `quorate run` then serves exactly that state.

    A new cluster has no table [security]: its members ask nobody who they are, until you write one
    into each node.toml, as docs/security.md describes.

    Exit status: 0 - done; 1 - that point cannot be restored; the message gives the range that can;
    64 - an argument is wrong; 74 - the archive or the backup is damaged; 78 - a file is wrong.

    Args:
        source: Directory of the backup, or of a member; or a file of quorate archive. One of
            quorate backup --all-partitions makes the machines of a new cluster.
        to: Directory of the member, with its node.toml. With --new-cluster: directory of all new
            members.
        at: Log position, or time such as 2026-11-21T12:00:00Z: everything up to there, and nothing
            else. A point inside a batch stands for the end of the batch before. If left out:
            everything.
        new_cluster: Name of a new cluster with that state.
        members: Number of its members, or of its machines with partitions; edit their node.toml to
            run them on several machines.
        client_port: Client port of its member 0; the other members take the ports behind it.
            Machines are 100 apart.
        etcd_port: With --new-cluster, port of its member 0 for clients of etcd; member i has this
            one + i. If left out: none.
        key_file: The key with which the archive was made.
        as_json: For programs.
    """
    options = _Options(
        to, new_cluster, members, client_port, etcd_port, as_json, key_file and source
    )
    whole = (source / MANIFEST).is_file()
    _check_etcd_port(options, source, whole=whole)
    if whole:
        return await _restore_partitions(source, options, given=bool(at or key_file))
    point = parse_point(at)
    with _opened(source, key_file, to) as place:
        return await _restore(place, point, options)


@attrs.frozen
class _Options:
    to: Path
    new_cluster: str | None
    members: int
    client_port: int
    etcd_port: int | None
    as_json: bool
    archive: Path | None


def _check_etcd_port(options: _Options, source: Path, *, whole: bool) -> None:
    """Check that there are new files in which a port for clients of etcd is written."""
    if options.etcd_port is None:
        return
    if whole:
        raise UsageError(
            f"--etcd-port: {source} is of a cluster with partitions: leave it out, and write a "
            "table [etcd] into each machine.toml"
        )
    if options.new_cluster is None:
        raise UsageError(
            f"--etcd-port: without --new-cluster, the table [etcd] is in "
            f"{options.to / 'node.toml'}: leave it out"
        )


async def _restore_partitions(source: Path, options: _Options, *, given: bool) -> int:
    """Restore a cluster with partitions; a point or a key must not be given."""
    if given:
        raise UsageError(
            f"--at, --key-file: {source} is of a cluster with partitions, whose manifest says "
            "up to where each is restored: leave them out"
        )
    from .restore_partitions import restore_partitions  # noqa: PLC0415 - it imports much

    return await restore_partitions(
        source,
        options.to,
        cluster=options.new_cluster,
        machines=options.members,
        client_port=options.client_port,
        as_json=options.as_json,
    )


@contextmanager
def _opened(source: Path, key_file: Path | None, to: Path) -> Generator[Path]:
    """Return the directory to restore from: that of a backup, or one of what an archive holds."""
    if not source.is_file():
        if key_file is not None:
            raise UsageError(f"--key-file: {source} is no file: expected an archive")
        yield store_of(source).parent
        return
    if key_file is None:
        raise UsageError(f"--from {source}: it is a file: expected --key-file, if it is an archive")
    with needing_certs():
        from ..local.archive import unpacked  # noqa: PLC0415 - an extra
    secret = read_secret(key_file, f"--key-file {key_file}")
    with unpacked(source, secret, to) as place:
        yield place


async def _restore(place: Path, point: tuple[int | None, int | None], options: _Options) -> int:
    (position, timestamp_ms), new_cluster = point, options.new_cluster
    try:
        plan = plan_restore(place, position=position, timestamp_ms=timestamp_ms)
    except PrunedError as refusal:
        print(refusal, file=sys.stderr)
        return REFUSED
    configs = _configs(options)
    # A node.toml with another cluster name founds a new cluster, too.
    recovering = new_cluster is None and configs[0].cluster == plan.identity.cluster
    if not recovering and (why_not := why_no_founder(configs[0])):
        raise ConfigurationError(why_not)
    tell: Callable[[str], None] = (lambda _words: None) if options.as_json else print
    _tell(plan, position, tell)
    await restore_all(plan, configs, tell, recovering=recovering)
    if new_cluster is not None and not any(_is_secured(config) for config in configs):
        tell(
            "Its members ask nobody who they are: before others reach their ports, write a table "
            f"[security] into each node.toml in {options.to}: docs/security.md"
        )
    if options.as_json:
        found = _plain(plan, configs)
        print(json.dumps(found | {"from": str(options.archive or plan.source)}, indent=2))
    return DONE


def _is_secured(config: NodeConfig) -> bool:
    return config.security.tls is not None or bool(config.security.cluster_key_file)


def _configs(options: _Options) -> list[NodeConfig]:
    directory, cluster = options.to, options.new_cluster
    if cluster is None:
        return [_config_in(directory)]
    check_no_store(directory, "--to")
    configs = lay_out(
        directory,
        members=options.members,
        client_port=options.client_port,
        cluster=cluster,
        etcd_port=options.etcd_port,
    )
    for config in configs:
        if config.cluster != cluster:
            file = config.directory / "node.toml"
            raise ConfigurationError(f'{file}: cluster = "{config.cluster}", not "{cluster}"')
    return configs


def _config_in(directory: Path) -> NodeConfig:
    file = directory / "node.toml"
    if not file.exists():
        raise UsageError(
            f"{directory}: no node.toml there that says which member it is to be; for a new "
            "cluster give its name with --new-cluster"
        )
    return load_config(file)


def _tell(plan: RestorePlan, asked: int | None, tell: Callable[[str], None]) -> None:
    for words in plan.damaged:
        print(f"a damaged snapshot is skipped: {words}", file=sys.stderr)
    begin = f"the snapshot at {plan.load.position} and the log" if plan.load else "the log"
    other = "" if asked in (None, plan.point.position) else f", the last end before {asked}"
    tell(
        f"{whose(plan.identity)}: {begin} up to {plan.point.position}{other}, of "
        f"{moment(plan.point.timestamp_ms)}"
    )


def _plain(plan: RestorePlan, configs: Sequence[NodeConfig]) -> dict[str, object]:
    return {
        "cluster": plan.identity.cluster,
        "position": plan.point.position,
        "timestamp_ms": plan.point.timestamp_ms,
        "snapshot": plan.load and attrs.asdict(plan.load),
        "damaged": plan.damaged,
        "members": [
            {
                "directory": str(config.directory),
                "cluster": config.cluster,
                "member_id": config.member_id,
            }
            for config in configs
        ],
    }
