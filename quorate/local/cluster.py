"""Members as child processes on this machine: for trials, for the demo and for crash tests.

A directory holds the cluster. In it ``member-<i>/`` has the configuration of member *i*
(``node.toml``), its stores, its log lines (``member.log``) and, while it runs, its process id
(``pid``). Each child is ``quorate run member-<i>/node.toml``, so a member may be started, stopped
and killed by hand, too.

A child writes its log lines to its file; see :mod:`.child`.
"""

import itertools
import os
import secrets
import socket
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, Literal

import attrs
import trio

from ..errors import ConfigurationError, UsageError
from ..node.config.config import (
    MAX_MEMBERS,
    Etcd,
    MemberConfig,
    NodeConfig,
    Profile,
    Security,
    Web,
    load_config,
)
from ..node.requests.status import MemberAddress
from ..storage.lmdb.file_check import DATA_FILE
from .child import ChildProcess

__all__ = [
    "HOST",
    "LocalCluster",
    "MemberProcess",
    "check_no_store",
    "free_client_port",
    "lay_out",
    "local_configs",
    "open_cluster",
    "ports_for",
    "risky_ports",
    "tls_ports_for",
]

HOST: Final = "127.0.0.1"

_MEMBER_PORT_OFFSET: Final = 10_000  # as Redis Cluster's bus port
_REDIRECT_PORT_OFFSET: Final = 60
_TLS_PORT_OFFSET: Final = 120
_WEB_PORT_OFFSET: Final = 1001
_LAST_PORT: Final = 65_535
_FIRST_OUTGOING_PORT: Final = 32_768
"""Linux usually takes ports from here on for outgoing connections. Such a connection may take the
port of a member that is down. The member cannot start before it closes, and for a minute more
(TIME_WAIT). A connection to such a port may even get that port, and is connected with itself."""

_FREE_PORTS: Final = range(10_240, 22_000)
"""Client ports for `free_client_port`. All ports that follow from them are below the above."""


def lay_out(
    directory: Path,
    *,
    members: int,
    client_port: int,
    cluster: str = "local",
    profile: Profile | None = None,
    hosts: Sequence[str] = (HOST,) * MAX_MEMBERS,
    security: Security | Callable[[int], Security] | None = None,
    tls: bool = False,
    web_port: int | Literal["auto"] | None = None,
    etcd_port: int | None = None,
) -> list[NodeConfig]:
    """Write ``member-<i>/node.toml`` for each member that has none, and return all configurations.

    Args:
        directory: of the cluster; created if it is missing.
        members: number of members.
        client_port: of member 0; member *i* listens for clients on ``client_port + i``, and on
            60 above that for cluster clients.
        cluster: name of the cluster.
        profile: how patient the members are; if left out, what existing files say, or "lan".
        hosts: of member 0, 1 and so on.
        security: of new files, or what returns that of a member.
        tls: listen for clients with TLS, too, on 120 above the port of others.
        web_port: of member 0, for browsers, member *i* has it + *i*; 0 for none. If left out: what
            existing files say, or none; "auto" likewise, or 1001 above the port of clients.
        etcd_port: of member 0, for clients of etcd, member *i* has it + *i*; 0 for none. If left
            out: what existing files say, or none.

    Raises:
        UsageError: a number is out of range.
        ConfigurationError: an existing file disagrees.
        OSError: the directory cannot be created.
    """
    _check_numbers(members, client_port)
    everyone = _everyone(members, client_port, hosts, tls=tls)
    webs = _webs(members, client_port, web_port)
    usual = partial(NodeConfig, cluster, members=everyone, profile=profile or "lan")
    configs: list[NodeConfig] = []
    etcds = _etcds(members, etcd_port, tls=tls)
    for i, (web, etcd) in enumerate(zip(webs, etcds, strict=True)):
        folder, proof = directory / f"member-{i}", _security_of(i, security)
        made = usual(member_id=i, directory=folder, security=proof, web=web, etcd=etcd)
        configs.append(_one(made))
    for config, web, etcd in zip(configs, webs, etcds, strict=True):
        ports = {"web": web.port if isinstance(web_port, int) else None}
        ports["etcd"] = None if etcd_port is None else etcd.port
        _check_found(config, profile, ports)
    return configs


def _check_numbers(members: int, client_port: int) -> None:
    if not 1 <= members <= MAX_MEMBERS:
        raise UsageError(f"--members {members}: expected 1 to {MAX_MEMBERS}")
    if not 1 <= client_port <= _LAST_PORT + 1 - members:
        raise UsageError(f"--client-port {client_port}: expected 1 to {_LAST_PORT + 1 - members}")


def check_no_store(directory: Path, option: str) -> None:
    """Check that a directory is no member's, and no backup: folders of members would mix with it.

    Raises:
        UsageError: it is.
    """
    if any((place / DATA_FILE).exists() for place in (directory, directory / "log")):
        raise UsageError(
            f"{option} {directory}: a store of a member or a backup lies there; expected a place "
            "for the members' directories: give another one"
        )


def _check_found(
    config: NodeConfig, profile: Profile | None, ports: Mapping[str, int | None]
) -> None:
    """Check that an existing file says what was asked for, if anything was.

    Args:
        config: of the file.
        profile: that was asked for, if any.
        ports: those that were, by the name of the table.

    Raises:
        ConfigurationError: it says something else.
    """
    file = config.directory / "node.toml"
    if profile not in (None, config.profile):
        raise ConfigurationError(
            f'{file}: profile = "{config.profile}", not "{profile}": '
            "change it there, or leave --profile out"
        )
    found = {"web": config.web.port, "etcd": config.etcd.port}
    for name, port in ports.items():
        if port is not None and port != found[name]:
            there = f"port = {found[name]}" if found[name] else "no port"
            raise ConfigurationError(
                f"{file}: [{name}] has {there}, not {port}: "
                f"write [{name}] port = {port} there, or leave --{name}-port out"
            )


def _webs(members: int, client_port: int, wanted: int | Literal["auto"] | None) -> list[Web]:
    """Return the table [web] of each member."""
    if wanted == "auto":
        first = client_port + _offset(members, client_port, _WEB_PORT_OFFSET)
    else:
        first = wanted or 0
    if not 0 <= first <= _LAST_PORT + 1 - members:
        raise UsageError(f"--web-port {first}: expected 0 to {_LAST_PORT + 1 - members}")
    return [Web(first + i if first else 0) for i in range(members)]


def _etcds(members: int, wanted: int | None, *, tls: bool) -> list[Etcd]:
    """Return the table [etcd] of each member."""
    first = wanted or 0
    if not 0 <= first <= _LAST_PORT + 1 - members:
        raise UsageError(f"--etcd-port {first}: expected 0 to {_LAST_PORT + 1 - members}")
    return [Etcd(first + i, tls=tls) if first else Etcd(0) for i in range(members)]


def _security_of(member: int, given: Security | Callable[[int], Security] | None) -> Security:
    """Return the table [security] of a new member."""
    if callable(given):
        return given(member)
    return given or Security()


def _everyone(
    members: int, client_port: int, hosts: Sequence[str], *, tls: bool
) -> tuple[MemberConfig, ...]:
    ports, secure = ports_for(members, client_port), tls_ports_for(members, client_port)
    return tuple(
        MemberConfig(
            i, hosts[i], member, client, redirect_port=redirect, tls_port=secure[i] if tls else 0
        )
        for i, (client, member, redirect) in enumerate(ports)
    )


def local_configs(
    count: int,
    directory: str | os.PathLike[str],
    *,
    client_port: int | None = None,
    cluster: str = "local",
    profile: Profile | None = None,
) -> list[NodeConfig]:
    """Return configurations of members on 127.0.0.1, for tests and for trying things out.

    Each is written to ``member-<i>/node.toml`` in the directory. A second call reads these files,
    so members find their stores and ports again.

    Args:
        count: number of members, 1 to 9.
        directory: of all members; created if it is missing.
        client_port: of member 0; member *i* serves clients on ``client_port + i``. If left out:
            the port in the files, or a free one.
        cluster: name of the cluster.
        profile: how patient the members are; if left out, what the files say, or "lan".

    Raises:
        UsageError: a number is out of range.
        ConfigurationError: a file disagrees with an argument.
        OSError: the directory cannot be created.
    """
    root = Path(directory)
    if client_port is None:
        first = root / "member-0" / "node.toml"
        found = load_config(first).members[0].client_port if first.exists() else None
        client_port = found or free_client_port(min(max(count, 1), MAX_MEMBERS))
    return lay_out(root, members=count, client_port=client_port, cluster=cluster, profile=profile)


def _one(config: NodeConfig) -> NodeConfig:
    file = config.directory / "node.toml"
    try:
        if not file.exists():
            config.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.write_text(attrs.evolve(config, directory=Path()).to_toml(), encoding="utf-8")
    except OSError as error:
        error.filename = f"{config.directory}: cannot be created"
        raise
    found = load_config(file)
    plain = [
        attrs.evolve(member, priority=0, standby=False, redirect_port=0, tls_port=0)
        for member in found.members
    ]
    if plain != [attrs.evolve(each, redirect_port=0, tls_port=0) for each in config.members]:
        ports = [member.client_port for member in found.members]
        raise ConfigurationError(
            f"{file}: its members listen for clients on {ports}, not on "
            f"{[member.client_port for member in config.members]}: use the former, or another "
            "directory"
        )
    return found


class MemberProcess(ChildProcess):
    """One member: at most one child process at a time.

    Args:
        config: its configuration; ``node.toml`` lies in its directory.
    """

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self.member_id = config.member_id
        self.log = config.directory / "member.log"
        super().__init__(config.directory / "node.toml", self.log)

    @property
    def address(self) -> MemberAddress:
        """The member's client port."""
        own = self.config.own
        return MemberAddress(self.member_id, own.host, own.client_port, tls_port=own.tls_port)


class LocalCluster:
    """All members of one directory."""

    def __init__(self, configs: Sequence[NodeConfig]) -> None:
        self.members = [MemberProcess(config) for config in configs]

    @property
    def addresses(self) -> list[MemberAddress]:
        """The client ports of all members."""
        return [member.address for member in self.members]

    async def start(self) -> None:
        """Start all members.

        Raises:
            OSError: a port that they need is taken.
        """
        for member in self.members:
            _check_ports(member.config)
        for member in self.members:
            await member.start()

    async def stop(self) -> None:
        """Stop all members in order, at the same time."""
        async with trio.open_nursery() as nursery:
            for member in self.members:
                nursery.start_soon(member.stop)

    async def kill(self) -> None:
        """Kill all children, and wait for their ends."""
        with trio.CancelScope(shield=True):
            for member in self.members:
                await member.kill()


def _check_ports(config: NodeConfig) -> None:
    """Check that no port of a member is taken, before a child fails.

    Raises:
        OSError: a port is taken; the error names the member and the port.
    """
    for port in _ports_of(config):
        try:
            _bind(port)
        except OSError as error:
            error.filename = f"member {config.member_id} cannot listen on {HOST}:{port}"
            if port == config.web.port:
                error.filename += " for its web page; choose another --web-port, or 0 for none"
            if port == config.etcd.port:
                error.filename += " for clients of etcd; choose another --etcd-port, or 0 for none"
            raise


def _bind(port: int) -> None:
    """Bind a port for a moment.

    Raises:
        OSError: it is taken.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, port))


def risky_ports(configs: Sequence[NodeConfig]) -> list[int]:
    """Return ports of the members that an outgoing connection may take while a member is down."""
    ports = [port for config in configs for port in _ports_of(config)]
    return [port for port in ports if port >= _FIRST_OUTGOING_PORT]


def _ports_of(config: NodeConfig) -> list[int]:
    own = config.own
    ports = [own.client_port, own.member_port, own.redirect_port, own.tls_port]
    ports += [config.web.port, config.etcd.port]
    return [port for port in ports if port]


def free_client_port(members: int) -> int:
    """Return a client port for :func:`lay_out` such that no port of the members is taken now."""
    while True:
        first = secrets.choice(_FREE_PORTS)
        try:
            usual = itertools.chain.from_iterable(ports_for(members, first))
            web = [each.port for each in _webs(members, first, "auto")]
            for port in (*usual, *tls_ports_for(members, first), *web):
                _bind(port)
        except OSError:
            continue
        return first


def ports_for(members: int, client_port: int) -> list[tuple[int, int, int]]:
    """Return the client, member and redirect port of each member; see :func:`lay_out`."""
    member, redirect = (
        _offset(members, client_port, usual)
        for usual in (_MEMBER_PORT_OFFSET, _REDIRECT_PORT_OFFSET)
    )
    return [
        (first, first + member, first + redirect)
        for first in range(client_port, client_port + members)
    ]


def tls_ports_for(members: int, client_port: int) -> list[int]:
    """Return the port of each member for clients with TLS; see :func:`lay_out`."""
    first = client_port + _offset(members, client_port, _TLS_PORT_OFFSET)
    return list(range(first, first + members))


def _offset(members: int, client_port: int, usual: int) -> int:
    return -usual if client_port + members + usual > _FIRST_OUTGOING_PORT else usual


@asynccontextmanager
async def open_cluster(configs: Sequence[NodeConfig]) -> AsyncGenerator[LocalCluster]:
    """Run all members for the length of a block; then stop them, in order unless it failed."""
    cluster = LocalCluster(configs)
    try:
        await cluster.start()
        yield cluster
        await cluster.stop()
    finally:
        await cluster.kill()
