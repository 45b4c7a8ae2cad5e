"""The configuration of a member: its id, all members' addresses, its timeouts and its limits.

A configuration is frozen data. It comes from a TOML file through :func:`load_config`, or an
embedding program builds a :class:`NodeConfig`. Both ways run the same checks (:mod:`.settings`), so
every ``NodeConfig`` that exists is valid. A file looks like this; defaults are in brackets::

    cluster = "orders"              # members of another cluster are refused
    member_id = 0                   # which of the members below this one is
    directory = "."                 # of its stores; relative to this file
    redirect = "auto"               # ["auto"] which clients get -MOVED, see Redirect
    profile = "lan"                 # ["lan"] the default timeouts, see PROFILES
    join = false                    # [false] the cluster runs already, see below

    [[members]]                     # the same list in the same order on every founder
    member_id = 0
    host = "127.0.0.1"
    member_port = 7100              # for other members
    client_port = 7000              # for clients (RESP); 0 for none, if there is a tls_port
    tls_port = 7443                 # [none] for clients with TLS, see Security
    priority = 0                    # [0] leadership returns to the highest
    standby = false                 # [false] follows, and has no vote
    witness = false                 # [false] has a vote, and no tables
    redirect_port = 7060            # [none] where cluster clients are sent, see Redirect

    [timeouts]                      # [of the profile] seconds; each may be set alone
    [limits]                        # each may be set alone
    [snapshot]                      # each may be set alone
    [security]                      # [open, on loopback only] see Security
    [log]                           # each may be set alone, see LogLines
    [web]                           # [no such port] see Web
    [etcd]                          # [no such port] see Etcd
    [partition]                     # [none] see PartitionSettings

A file is how a member begins. With ``join = true`` it is added to a cluster that runs: its list has
members of that time, which it dials first, and the member itself. Once the log has a configuration
(:mod:`..protocol.membership`), that configuration says what the members are. From then on the list
serves for two things: where this member listens, and further addresses to try.

All mistakes of a file are reported at once, each with file, key, value and what was expected. An
unknown key is a mistake too: otherwise a misspelt timeout would be ignored until it is needed.
"""

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

import attrs

from ...errors import ConfigurationError
from ..protocol.hosts import is_host
from ..protocol.promise import MAX_LEASE_MS
from .etcd import Etcd
from .limits import Limits, SnapshotPolicy
from .log_lines import LogFormat, LogLevel, LogLines
from .partition import PartitionSettings
from .security import Security
from .settings import (
    SECONDS,
    Expects,
    between,
    items,
    matching,
    read_tables,
    render,
    seconds_up_to,
    structure,
    unexpected,
)
from .web import Web

__all__ = [
    "HOST",
    "MAX_MEMBERS",
    "MEMBER_ID",
    "PROFILE",
    "PROFILES",
    "Etcd",
    "Limits",
    "LogFormat",
    "LogLevel",
    "LogLines",
    "MemberConfig",
    "NodeConfig",
    "PartitionSettings",
    "Profile",
    "Redirect",
    "Security",
    "SnapshotPolicy",
    "Timeouts",
    "Web",
    "changes",
    "load_config",
    "with_profile",
]

Profile = Literal["lan", "aeron", "test"]

Redirect = Literal["auto", "always", "never"]
"""Which clients a member that does not lead redirects to the leader by -MOVED; it serves the rest.

``auto``: clients that connected to its `redirect_port`, asked for the topology on the same
connection, or sent READONLY. ``always``: all clients. ``never``: none.
"""

MAX_MEMBERS: Final = 9
"""The most members of a cluster. If smaller, clusters spread over many sites are refused. If
larger, every write waits for more disks, and no failure that really happens is survived in
addition."""


MAX_REPLACE_AFTER: Final = 30 * 24 * 3600.0
"""The longest wait for a lost voter, in seconds. Longer: hardly anybody would wait for it."""

_PORT: Final = between(1, 65535, "a port number, 1 to 65535")
_PORT_OR_NONE: Final = between(0, 65535, "a port number, or 0 for none")
_CLIENT_PORT: Final = between(0, 65535, "a port number, 1 to 65535")
MEMBER_ID: Final = between(0, 2**31 - 1, "a member id, 0 to 2147483647")
_FLAG: Final = Expects(lambda value: isinstance(value, bool), "true or false")
HOST: Final = Expects(
    lambda value: isinstance(value, str) and is_host(value),
    "a host name or an address, without port or brackets",
)


@attrs.frozen
class MemberConfig:
    """One member of the cluster: its id, its addresses, and its part in elections.

    The list of members must be the same on all founders of a cluster.

    Args:
        member_id: its number, 0 to 2147483647. It is written into the member's store, so a store
            belongs to one id for ever.
        host: name or IP address under which members and clients reach it, without port or brackets.
            Clients get this text in -MOVED and in the topology.
        member_port: TCP port for the other members, 1 to 65535.
        client_port: TCP port for clients (RESP), 1 to 65535; 0 for none, if there is a `tls_port`.
        priority: preference for leadership, 0 (the default) to 1000. Once the member with the
            highest priority has been caught up and steady for a while, the leader hands over to it.
            If all are equal, leadership stays where it is.
        standby: whether it has no vote and counts for no quorum (default false). It follows and
            serves like any member, and never leads; so its priority must be 0.
        redirect_port: TCP port to which cluster clients are sent, so that it can recognise them. 0
            (the default) sends them to `client_port`. It speaks TLS if `client_port` is 0.
        witness: whether it votes and keeps the log, but has no tables (default false). It answers
            no reads by itself, and if it is elected, it hands the leadership over at once; so its
            priority must be 0, and it is no standby. At most half of the members with a vote may
            be witnesses, so that each majority has a member with tables.
        tls_port: TCP port for clients with TLS; 0 (the default) for none. It needs the files of
            `[security]`.

    Raises:
        ConfigurationError: a value is out of range, or a standby or a witness has a priority, or a
            member is to be both, or no client could reach it.
    """

    member_id: int = attrs.field(validator=MEMBER_ID)
    host: str = attrs.field(validator=HOST)
    member_port: int = attrs.field(validator=_PORT)
    client_port: int = attrs.field(validator=_CLIENT_PORT)
    priority: int = attrs.field(default=0, validator=between(0, 1000, "0 to 1000"))
    standby: bool = attrs.field(default=False, validator=_FLAG)
    redirect_port: int = attrs.field(default=0, validator=_PORT_OR_NONE)
    witness: bool = attrs.field(default=False, validator=_FLAG)
    tls_port: int = attrs.field(default=0, validator=_PORT_OR_NONE)

    def __attrs_post_init__(self) -> None:
        if self.standby and self.witness:
            what = "false, since a standby has no vote, and a witness has nothing else"
            raise ConfigurationError(unexpected("witness", self.witness, what))
        if (self.standby or self.witness) and self.priority:
            kind = "standby never leads" if self.standby else "witness only leads to hand over"
            raise ConfigurationError(unexpected("priority", self.priority, f"0, since a {kind}"))
        if not (self.client_port or self.tls_port):
            what = "a port number, 1 to 65535, since there is no tls_port"
            raise ConfigurationError(unexpected("client_port", self.client_port, what))


TIMEOUTS_AT_LEAST: Final = (
    # One lost heartbeat must not count as silence.
    ("leader_heartbeat_timeout", 2, "leader_heartbeat_interval"),
    # After its vote, a member waits two election timeouts for the winner, which announces its term
    # in the heartbeat's rhythm.
    ("election_timeout", 2, "leader_heartbeat_interval"),
    # A round of pre-votes takes half an election timeout. In it, a silent member is asked again at
    # least once.
    ("election_timeout", 4, "canvass_interval"),
    # A new leader steps down after two heartbeat timeouts without a quorum. Until then the members
    # that voted for it, or for a rival, must have returned from their ballots.
    ("leader_heartbeat_timeout", 1, "election_timeout"),
    # Aeron checks the same: the startup canvass lasts at least two heartbeat timeouts
    # (ConsensusModule.Context).
    ("startup_canvass", 2, "leader_heartbeat_timeout"),
    # A leader that is silent for a heartbeat timeout must be replaced, which a longer lease would
    # forbid.
    ("leader_heartbeat_timeout", 1, "leader_lease"),
    # Heartbeats renew the lease, and a renewal takes a round trip.
    ("leader_lease", 2, "leader_heartbeat_interval"),
    # A voter that an election or a restart of its process silences is not lost.
    ("replace_after", 10, "leader_heartbeat_timeout"),
)
"""Rules between two timeouts: the first is at least this multiple of the second, unless it is 0."""


@attrs.frozen
class Timeouts:
    """The timeouts of a member, in seconds. The names are those of Aeron's consensus module.

    The defaults depend on the profile; see :data:`PROFILES`. The values in brackets are those of
    the profile "lan".

    Args:
        startup_canvass: how long the first canvass after a start waits for all members before a
            quorum is enough (2 s). If shorter, a member that starts a moment later misses the
            election, and may have the longer log. If longer, a cluster with a member down starts
            later.
        leader_heartbeat_timeout: silence after which a follower looks for another leader, and a
            leader without its quorum steps down (0.5 s). If shorter, a stalled disk or network
            causes elections. If longer, clients wait longer after a leader's failure.
        leader_heartbeat_interval: how often an idle leader announces its commit position (0.1 s).
            If shorter, an idle cluster costs more processor time. If longer, fewer lost messages
            fit into the timeout.
        election_timeout: how long a ballot stays open (0.25 s). Half of it is a round of pre-votes,
            and the longest random wait before one. If shorter, ballots end before slow disks have
            stored the votes. If longer, a split vote costs more time.
        canvass_interval: how often a member without a leader announces its position, and repeats an
            unanswered question (0.02 s). If shorter, elections send more messages. If longer, they
            take longer.
        leader_lease: for how long followers promise to elect nobody else, so that the leader
            answers reads without asking them (0). If 0, nothing is promised and each read waits for
            a round trip. If longer, fewer reads wait after a delay, and an election after a failure
            waits longer.
        replace_after: how long a voter must be silent before the leader puts a spare in its place,
            if there is one (0: never). If shorter, a machine that only restarts is replaced. If
            longer, the cluster has one voter less for longer.

    Raises:
        ConfigurationError: a value is not positive, or two do not fit together; the message has the
            numbers. See :data:`TIMEOUTS_AT_LEAST`.
    """

    startup_canvass: float = attrs.field(validator=SECONDS)
    leader_heartbeat_timeout: float = attrs.field(validator=SECONDS)
    leader_heartbeat_interval: float = attrs.field(validator=SECONDS)
    election_timeout: float = attrs.field(validator=SECONDS)
    canvass_interval: float = attrs.field(validator=SECONDS)
    leader_lease: float = attrs.field(default=0.0, validator=seconds_up_to(MAX_LEASE_MS / 1000))
    replace_after: float = attrs.field(default=0.0, validator=seconds_up_to(MAX_REPLACE_AFTER))

    def __attrs_post_init__(self) -> None:
        for name, times, other in TIMEOUTS_AT_LEAST:
            value, unit = cast("float", getattr(self, name)), cast("float", getattr(self, other))
            if 0 < value < times * unit:
                product = f"{times} x {unit:g} = {times * unit:g}"
                what = f"at least {times} x {other} ({product})"
                raise ConfigurationError(unexpected(name, value, what))

    @property
    def lease_ms(self) -> int:
        """The lease as messages carry it, in whole milliseconds, rounded up."""
        return math.ceil(self.leader_lease * 1000)

    @classmethod
    def of(cls, profile: Profile) -> "Timeouts":
        """Return the timeouts of a profile.

        Raises:
            ConfigurationError: there is no profile of that name.
        """
        if not PROFILE.holds(profile):
            raise ConfigurationError(unexpected("profile", profile, PROFILE.what))
        return PROFILES[profile]


PROFILES: Final[dict[Profile, Timeouts]] = {
    # One building: a dead leader is replaced within a second.
    "lan": Timeouts(2.0, 0.5, 0.1, 0.25, 0.02),
    # The defaults of Aeron Cluster.
    "aeron": Timeouts(60.0, 10.0, 0.2, 1.0, 0.1),
    # For simulated time, and small tests on one machine. On real networks it would cause elections.
    "test": Timeouts(0.6, 0.25, 0.025, 0.1, 0.01),
}
PROFILE: Final = Expects(
    lambda value: isinstance(value, str) and value in PROFILES,
    "one of " + ", ".join(f'"{name}"' for name in PROFILES),
)


def _path(key: str, value: object) -> Path:
    if not isinstance(value, str | os.PathLike):
        raise ConfigurationError(unexpected(key, value, "a path"))
    return Path(cast("str", value))


def _directory(value: "str | os.PathLike[str]") -> Path:
    return _path("directory", value)


def _members(value: Iterable[MemberConfig]) -> tuple[MemberConfig, ...]:
    """Check the type and number of the members before anything is looked up in them."""
    given = cast("Any", value)
    several = isinstance(cast("object", value), Iterable)
    found: tuple[object, ...] = tuple(given) if several else (given,)
    for member in found:
        if not isinstance(member, MemberConfig):
            raise ConfigurationError(unexpected("members", given, "a MemberConfig for each member"))
    if not 1 <= len(found) <= MAX_MEMBERS:
        raise ConfigurationError(f"members: {len(found)} of them: expected 1 to {MAX_MEMBERS}")
    return cast("tuple[MemberConfig, ...]", found)


def _is_settings(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    kinds: dict[str, type] = {"timeouts": Timeouts, "limits": Limits, "snapshot": SnapshotPolicy}
    kinds |= {"security": Security, "log": LogLines, "web": Web, "partition": PartitionSettings}
    kinds |= {"etcd": Etcd}
    kind = kinds[attribute.name]
    if not isinstance(value, kind):
        raise ConfigurationError(unexpected(attribute.name, value, f"a {kind.__name__}"))


@attrs.frozen
class NodeConfig:
    """The whole configuration of one member.

    Args:
        cluster: name of the cluster, 1 to 64 letters, digits, '.', '_' or '-'. It is written into
            stores and sent with every connection; members of another cluster are refused.
        member_id: which of `members` this one is.
        directory: folder of its stores (``log``, ``tables``, ``snapshots``). In a file: relative to
            the folder of the file.
        members: all members, this one included, in ascending order of their ids; 1 to
            `MAX_MEMBERS`.
        profile: which default timeouts apply: "lan" (the default), "aeron" or "test".
        timeouts: in seconds; those of the profile unless given.
        limits: bounds on memory, disk and rates; see :class:`Limits`.
        snapshot: when snapshots are taken and how many are kept; see :class:`SnapshotPolicy`.
        member_listen_host: where it listens for members; its own `host` unless given, which must be
            the address that members dial.
        client_listen_host: where it listens for clients; its own `host` unless given.
        redirect: which clients are sent to the leader: "auto" (the default), "always" or "never";
            see :data:`Redirect`.
        join: whether it is added to a cluster that runs (default false). Then its store begins
            without a vote, and `members` has members of that time and itself. It makes no
            difference once the member has joined. A store that founds a cluster is refused with it.
        security: how it proves who it is, and what it asks of others; see :class:`Security`.
        log: what `quorate run` logs, and how; see :class:`LogLines`.
        web: where it shows itself to browsers and monitors; see :class:`Web`.
        etcd: where it serves clients of etcd; see :class:`Etcd`.
        partition: which partition of a larger cluster it belongs to; see
            :class:`PartitionSettings`.

    Raises:
        ConfigurationError: with the key, the value and what was expected.
    """

    cluster: str = attrs.field(
        validator=matching(
            r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}",
            "a name of 1 to 64 letters, digits, '.', '_' or '-'",
        )
    )
    member_id: int = attrs.field(validator=MEMBER_ID)
    directory: Path = attrs.field(
        converter=_directory,
        metadata={"toml": Expects(lambda value: isinstance(value, str) and value != "", "a path")},
    )
    members: tuple[MemberConfig, ...] = attrs.field(
        converter=_members,
        metadata={"toml": Expects(lambda value: isinstance(value, list), "[[members]] tables")},
    )
    profile: Profile = attrs.field(default="lan", validator=PROFILE)
    timeouts: Timeouts = attrs.field(
        default=attrs.Factory(lambda self: Timeouts.of(self.profile), takes_self=True),
        validator=_is_settings,
    )
    limits: Limits = attrs.field(factory=Limits, validator=_is_settings)
    snapshot: SnapshotPolicy = attrs.field(factory=SnapshotPolicy, validator=_is_settings)
    member_listen_host: str = attrs.field(
        default=attrs.Factory(lambda self: self.own.host, takes_self=True), validator=HOST
    )
    client_listen_host: str = attrs.field(
        default=attrs.Factory(lambda self: self.own.host, takes_self=True), validator=HOST
    )
    redirect: Redirect = attrs.field(
        default="auto",
        validator=Expects(
            lambda value: isinstance(value, str) and value in get_args(Redirect),
            "one of " + ", ".join(f'"{name}"' for name in get_args(Redirect)),
        ),
    )
    join: bool = attrs.field(default=False, validator=_FLAG)
    security: Security = attrs.field(factory=Security, validator=_is_settings)
    log: LogLines = attrs.field(factory=LogLines, validator=_is_settings)
    web: Web = attrs.field(factory=Web, validator=_is_settings)
    etcd: Etcd = attrs.field(default=Etcd(0), validator=_is_settings)
    partition: PartitionSettings = attrs.field(factory=PartitionSettings, validator=_is_settings)

    def __attrs_post_init__(self) -> None:
        ids = [member.member_id for member in self.members]
        if ids != sorted(set(ids)):
            raise ConfigurationError(f"members: ids {ids}: expected ascending, each once")
        if not self.voters:
            raise ConfigurationError(
                "members: all are standbys: expected at least one member with a vote"
            )
        witnesses, most = sum(member.witness for member in self.members), len(self.voters) // 2
        # The file of a joiner lists members that come and go; there the leader checks it.
        if witnesses > most and not self.join:
            raise ConfigurationError(
                f"members: {witnesses} of {len(self.voters)} members with a vote are witnesses: "
                f"expected at most {most}, since each majority needs a member with tables"
            )
        self._check_ports()
        if self.join and set(self.voters) <= {self.member_id}:
            raise ConfigurationError(
                "join = true: members: no other member with a vote: expected one of the cluster"
            )

    def _check_ports(self) -> None:
        """Check that all ports differ, and that those of other tables have what they need."""
        seen: dict[tuple[str, int], str] = {}
        for index, member in enumerate(self.members):
            for name in ("member_port", "client_port", "redirect_port", "tls_port"):
                port, key = cast("int", getattr(member, name)), f"members[{index}].{name}"
                if not port:
                    continue  # it has no such port
                other = seen.setdefault((member.host, port), key)
                if other != key:
                    what = f"a port of {member.host} other than that of {other}"
                    raise ConfigurationError(unexpected(key, port, what))
        assert self.own.member_id == self.member_id
        self._check_tables(seen)

    def _check_tables(self, seen: dict[tuple[str, int], str]) -> None:
        """Check the ports of the tables [web] and [etcd].

        Args:
            seen: the members' ports, by host and port.
        """
        tables = (("web", self.web, self.web.host), ("etcd", self.etcd, self.etcd_host))
        for name, table, host in tables:
            if not table.port:
                continue
            taken = seen.setdefault((host, table.port), f"{name}.port")
            if taken != f"{name}.port":
                what = f"a port of {host} other than that of {taken}"
                raise ConfigurationError(unexpected(f"{name}.port", table.port, what))
            if table.tls and self.security.tls is None:
                what = "certificate, key and ca in the table [security], or false"
                raise ConfigurationError(unexpected(f"{name}.tls", table.tls, what))
        if self.etcd.port and self.own.witness:
            what = "0, since a witness has no tables"
            raise ConfigurationError(unexpected("etcd.port", self.etcd.port, what))
        if self.etcd.port and not self.partition.has_etcd:
            what = "0, since partition 0 has all keys of etcd"
            raise ConfigurationError(unexpected("etcd.port", self.etcd.port, what))

    @property
    def etcd_host(self) -> str:
        """Where this member listens for clients of etcd."""
        return self.etcd.host or self.client_listen_host

    @property
    def own(self) -> MemberConfig:
        """The entry of this member.

        Raises:
            ConfigurationError: no member has this id.
        """
        for member in self.members:
            if member.member_id == self.member_id:
                return member
        ids = [member.member_id for member in self.members]
        raise ConfigurationError(unexpected("member_id", self.member_id, f"one of members {ids}"))

    @property
    def peers(self) -> tuple[MemberConfig, ...]:
        """All other members, in ascending order of their ids."""
        return tuple(member for member in self.members if member.member_id != self.member_id)

    @property
    def voters(self) -> tuple[int, ...]:
        """Ids of the members that have a vote, ascending: all except the standbys."""
        return tuple(member.member_id for member in self.members if not member.standby)

    def to_toml(self) -> str:
        """Return the text of a file that :func:`load_config` reads as this configuration.

        Values that equal their defaults are left out.
        """
        head = {"cluster": self.cluster, "member_id": self.member_id}
        head |= {"directory": str(self.directory), "profile": self.profile}
        for key in ("member_listen_host", "client_listen_host"):
            if getattr(self, key) != self.own.host:
                head[key] = cast("str", getattr(self, key))
        if self.redirect != "auto":
            head["redirect"] = self.redirect
        if self.join:
            head["join"] = True
        lines = _lines(head)
        for member in self.members:
            table = dict(items(member))
            for name in ("priority", "standby", "redirect_port", "witness", "tls_port"):
                if not table[name]:
                    del table[name]
            lines += ["", "[[members]]", *_lines(table)]
        lines += changes("timeouts", self.timeouts, Timeouts.of(self.profile))
        lines += changes("limits", self.limits, Limits())
        lines += changes("snapshot", self.snapshot, SnapshotPolicy())
        lines += changes("security", self.security, Security())
        lines += changes("log", self.log, LogLines())
        lines += changes("web", self.web, Web())
        lines += changes("etcd", self.etcd, Etcd(0))
        lines += changes("partition", self.partition, PartitionSettings())
        return "\n".join(lines) + "\n"


def _lines(table: dict[str, object] | dict[str, str | int]) -> list[str]:
    return [f"{key} = {render(value)}" for key, value in table.items()]


def changes(name: str, data: attrs.AttrsInstance, default: attrs.AttrsInstance) -> list[str]:
    """Return the lines of a table with the values that are no defaults; none if all are."""
    usual = dict(items(default))
    needed = {field.name for field in attrs.fields(type(data)) if field.default is attrs.NOTHING}
    shown = {key: value for key, value in items(data) if value != usual[key] or key in needed}
    return ["", f"[{name}]", *_lines(shown)] if data != default else []


def load_config(path: Path | str) -> NodeConfig:
    """Read and check a member's configuration file.

    Raises:
        ConfigurationError: the file cannot be read, is not TOML, or has wrong values; one line for
            each mistake.
    """
    path = _path("path", path)
    config = structure(with_profile(read_tables(path)), NodeConfig, path)
    # Relative to the file, so that a folder with a member's file and stores can be moved.
    return attrs.evolve(
        config,
        directory=path.parent / config.directory.expanduser(),
        security=config.security.within(path.parent),
        web=config.web.within(path.parent),
        partition=config.partition.within(path.parent),
    )


def with_profile(tables: dict[str, object]) -> dict[str, object]:
    """Return a file's tables with the timeouts that it omits, which depend on its profile."""
    given, profile = tables.get("timeouts"), tables.get("profile", "lan")
    if isinstance(given, dict) and isinstance(profile, str) and profile in PROFILES:
        usual = dict(items(PROFILES[profile]))
        return tables | {"timeouts": usual | cast("dict[str, object]", given)}
    return tables
