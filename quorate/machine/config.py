"""The configuration of a machine: ``machine.toml``.

A file looks like this; defaults are in brackets::

    cluster = "orders"              # members of another cluster are refused
    machine_id = 0                  # which of the machines below this one is
    directory = "."                 # [.] of its members and of its map; relative to this file
    partitions = 4                  # of a new cluster; one that runs goes by its map
    replicas = 3                    # [3, or as many as there are machines] members of each
    profile = "lan"                 # ["lan"] the default timeouts of the members
    join = false                    # [false] the cluster runs already, without this machine

    [[machines]]                    # the same list on every machine that founds the cluster
    machine_id = 0
    host = "10.0.0.1"
    port = 7000                     # first of its ports for clients
    member_port = 17000             # first of its ports for members
    rack = "a"                      # [none] the members of a partition are spread over racks

    [timeouts]                      # these tables are those of each member; see NodeConfig
    [limits]
    [snapshot]
    [security]
    [log]
    [web]                           # its port is the first of the machine's
    [etcd]                          # of the machine's member of partition 0

The members of the metadata group have the first ports, those of partition 0 the next, and so on. A
machine has :data:`PORTS` of each kind, so that a cluster may get more partitions later.

All mistakes of a file are reported at once, as those of a member's file are.
"""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Final, cast

import attrs

from ..errors import ConfigurationError
from ..keyvalue.slots.cluster_map import META, MOST_MACHINES, MOST_PARTITIONS, Machine
from ..node.config.config import (
    HOST,
    MAX_MEMBERS,
    MEMBER_ID,
    PROFILE,
    Etcd,
    Limits,
    LogLines,
    Profile,
    Security,
    SnapshotPolicy,
    Timeouts,
    Web,
    changes,
    with_profile,
)
from ..node.config.settings import (
    Expects,
    between,
    items,
    matching,
    read_tables,
    render,
    structure,
    unexpected,
)

__all__ = ["PORTS", "MachineConfig", "MachineEntry", "is_machine_file", "load_machine"]

PORTS: Final = MOST_PARTITIONS + 1
"""Ports of one kind that a machine has: for the metadata group, and for the most partitions."""

_LAST: Final = 65_535 - PORTS + 1
_PORT: Final = between(
    1, _LAST, f"a port number, 1 to {_LAST}, since the machine has {PORTS} from there on"
)
_PORT_OR_NONE: Final = between(0, _LAST, f"0 for none, or a port number up to {_LAST}")
_FLAG: Final = Expects(lambda value: isinstance(value, bool), "true or false")
_RACK: Final = Expects(
    lambda value: isinstance(value, str) and value.isprintable() and len(value) <= 64,  # noqa: PLR2004
    "a name of up to 64 characters",
)
_NAME: Final = matching(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,58}", "a name of 1 to 59 letters, digits, '.', '_' or '-'"
)


@attrs.frozen
class MachineEntry:
    """One machine of the cluster.

    Args:
        machine_id: its number; the member id of all its members.
        host: name or IP address under which members and clients reach it.
        port: first of its ports for clients; 0 for none, if there is a `tls_port`.
        member_port: first of its ports for members.
        tls_port: first of its ports for clients with TLS; 0 (the default) for none.
        rack: what it shares with other machines, so that they may fail together; empty (the
            default) for nothing.

    Raises:
        ConfigurationError: a value is out of range.
    """

    machine_id: int = attrs.field(validator=MEMBER_ID)
    host: str = attrs.field(validator=HOST)
    port: int = attrs.field(validator=_PORT_OR_NONE)
    member_port: int = attrs.field(validator=_PORT)
    tls_port: int = attrs.field(default=0, validator=_PORT_OR_NONE)
    rack: str = attrs.field(default="", validator=_RACK)

    def __attrs_post_init__(self) -> None:
        if not (self.port or self.tls_port):
            what = "a port number, since there is no tls_port"
            raise ConfigurationError(unexpected("port", self.port, what))

    def as_machine(self) -> Machine:
        """Return it as the map has it."""
        return Machine(**dict(items(self)))  # type: ignore[arg-type]


def _machines(value: Iterable[MachineEntry]) -> tuple[MachineEntry, ...]:
    return tuple(value)


def _default_replicas(config: "MachineConfig") -> int:
    return min(3, len(config.machines))


@attrs.frozen
class MachineConfig:
    """The whole configuration of one machine.

    Args:
        cluster: name of the cluster, 1 to 59 letters, digits, '.', '_' or '-'.
        machine_id: which of `machines` this one is.
        machines: all machines that found the cluster, this one included, in ascending order of
            their ids. With `join`: some that run, and this one.
        partitions: how many partitions a new cluster has, 1 to 64.
        directory: folder of its members, its map and its notices. In a file: relative to that.
        replicas: how many members each partition of a new cluster has, 1 to 9.
        profile: which default timeouts apply.
        join: whether the cluster runs already, without this machine (default false). It makes no
            difference once the cluster's map has the machine.
        timeouts: of each member, as the tables that follow.
        limits: bounds on memory, disk and rates of each member.
        snapshot: when snapshots are taken.
        security: how members prove who they are. The machine has one certificate, whose URI is
            ``quorate://CLUSTER/member/MACHINE``; it is that of all its members. The supervisor is a
            client, and logs in as the command line does: see docs/security.md.
        log: what is logged, and how.
        web: where members show themselves; its port is that of the metadata group's member.
        etcd: where the member of partition 0 serves clients of etcd, whose keys are all there.

    Raises:
        ConfigurationError: with the key, the value and what was expected.
    """

    cluster: str = attrs.field(validator=_NAME)
    machine_id: int = attrs.field(validator=MEMBER_ID)
    machines: tuple[MachineEntry, ...] = attrs.field(
        converter=_machines,
        metadata={"toml": Expects(lambda value: isinstance(value, list), "[[machines]] tables")},
    )
    partitions: int = attrs.field(
        validator=between(1, MOST_PARTITIONS, f"a number of partitions, 1 to {MOST_PARTITIONS}")
    )
    directory: Path = attrs.field(
        default=Path(),
        converter=Path,
        metadata={"toml": Expects(lambda value: isinstance(value, str) and value != "", "a path")},
    )
    replicas: int = attrs.field(
        default=attrs.Factory(_default_replicas, takes_self=True),
        validator=between(1, MAX_MEMBERS, f"a number of members, 1 to {MAX_MEMBERS}"),
    )
    profile: Profile = attrs.field(default="lan", validator=PROFILE)
    join: bool = attrs.field(default=False, validator=_FLAG)
    timeouts: Timeouts = attrs.field(
        default=attrs.Factory(lambda self: Timeouts.of(self.profile), takes_self=True)
    )
    limits: Limits = attrs.field(factory=Limits)
    snapshot: SnapshotPolicy = attrs.field(factory=SnapshotPolicy)
    security: Security = attrs.field(factory=Security)
    log: LogLines = attrs.field(factory=LogLines)
    web: Web = attrs.field(factory=Web)
    etcd: Etcd = attrs.field(default=Etcd(0))

    def __attrs_post_init__(self) -> None:
        ids = [each.machine_id for each in self.machines]
        if ids != sorted(set(ids)) or not 1 <= len(ids) <= MOST_MACHINES:
            raise ConfigurationError(
                f"machines: ids {ids}: expected 1 to {MOST_MACHINES}, ascending, each once"
            )
        if self.machine_id not in ids:
            raise ConfigurationError(
                unexpected("machine_id", self.machine_id, f"one of machines {ids}")
            )
        if self.join and len(ids) == 1:
            raise ConfigurationError(
                "join = true: machines: no other one: expected one of the cluster that runs"
            )
        if not self.join and self.replicas > len(ids):
            what = f"{len(ids)} at most, the number of machines"
            raise ConfigurationError(unexpected("replicas", self.replicas, what))
        if self.own.tls_port and not self.security.certificate:
            what = "0, or certificate, key and ca in the table [security]"
            raise ConfigurationError(unexpected("tls_port", self.own.tls_port, what))
        self._check_ports()

    def _check_ports(self) -> None:
        """Check that no two ranges of ports of a host meet."""
        ranges = [
            (machine.host, cast("int", getattr(machine, name)), f"machines[{index}].{name}")
            for index, machine in enumerate(self.machines)
            for name in ("port", "member_port", "tls_port")
            if getattr(machine, name)
        ]
        if self.web.port:
            ranges.append((self.web.host, self.web.port, "web.port"))
        ranges.sort()
        for (host, port, key), (other, second, name) in pairwise(ranges):
            if host == other and second < port + PORTS:
                what = f"{PORTS} ports of {host} that are not those of {key} = {port}"
                raise ConfigurationError(unexpected(name, second, what))
        for host, port, key in ranges:
            if self.etcd.port and port <= self.etcd.port < port + PORTS and host in {
                self.etcd.host, self.own.host}:  # fmt: skip
                what = f"a port of {host} that is not one of the {PORTS} of {key} = {port}"
                raise ConfigurationError(unexpected("etcd.port", self.etcd.port, what))

    @property
    def own(self) -> MachineEntry:
        """The entry of this machine."""
        return next(each for each in self.machines if each.machine_id == self.machine_id)

    def web_of(self, partition: int) -> Web:
        """Return the table [web] of its member of a partition, or of the metadata group."""
        port = self.web.port and self.web.port + partition - META
        return attrs.evolve(self.web, port=port)

    def etcd_of(self, partition: int) -> Etcd:
        """Return the table [etcd] of its member of a partition, or of the metadata group."""
        # The keys of etcd's clients are not spread: one partition has them all.
        return self.etcd if partition == 0 else Etcd(0)

    def to_toml(self) -> str:
        """Return the text of a file that :func:`load_machine` reads as this configuration.

        Most tables of the members are left out: the file is for clusters that are tried out.
        """
        head = {
            "cluster": self.cluster,
            "machine_id": self.machine_id,
            "partitions": self.partitions,
            "replicas": self.replicas,
            "profile": self.profile,
        }
        lines = [f"{key} = {render(value)}" for key, value in head.items()]
        for machine in self.machines:
            table = {key: value for key, value in items(machine) if value}
            table = {"machine_id": machine.machine_id} | table
            lines += [
                "",
                "[[machines]]",
                *(f"{key} = {render(value)}" for key, value in table.items()),
            ]
        if self.web.port:
            lines += ["", "[web]", f"port = {self.web.port}"]
        lines += changes("etcd", self.etcd, Etcd(0))
        lines += changes("security", self.security, Security())
        return "\n".join(lines) + "\n"


def is_machine_file(path: Path) -> bool:
    """Say whether a file configures a machine, not a member.

    Raises:
        ConfigurationError: it cannot be read, or is not TOML.
    """
    return "machines" in read_tables(path)


def load_machine(path: Path) -> MachineConfig:
    """Read and check a machine's file.

    Raises:
        ConfigurationError: it cannot be read, is not TOML, or has wrong values; one line for each
            mistake.
    """
    config = structure(with_profile(read_tables(path)), MachineConfig, path)
    return attrs.evolve(
        config,
        directory=path.parent / config.directory.expanduser(),
        security=config.security.within(path.parent),
        web=config.web.within(path.parent),
    )
