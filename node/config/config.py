"""What a member must be told: who it is, who the others are, how patient to be, and its limits.

A configuration is plain frozen data. It comes from a TOML file through :func:`load_config`, or an
embedder builds :class:`NodeConfig` himself; both ways run the same checks (:mod:`.settings`), so
a ``NodeConfig`` that exists is valid. The file looks like this; what stands in brackets is the
default::

    cluster = "orders"              # members of another cluster are refused
    member_id = 0                   # which of the members below this one is
    directory = "."                 # where its stores lie; relative to this file
    redirect = "auto"               # ["auto"] which clients get -MOVED, see Redirect
    profile = "lan"                 # ["lan"] how patient, see PROFILES

    [[members]]                     # the same list in the same order on every member
    member_id = 0
    host = "127.0.0.1"
    member_port = 7100              # other members
    client_port = 7000              # clients (RESP)
    priority = 0                    # [0] leadership returns to the highest
    standby = false                 # [false] follows, and has no vote
    redirect_port = 7060            # [none] where cluster clients are sent, see Redirect

    [timeouts]                      # [of the profile] seconds; each may be set alone
    [limits]                        # each may be set alone
    [snapshot]                      # each may be set alone

Every error names the file, the key, the value found and what was expected, all of them at once.
An unknown key is an error too: a misspelt timeout that is silently ignored is found in a bad
night.
"""

import math
import os
import re
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args

import attrs

from ...errors import ConfigurationError
from ..protocol.promise import MAX_LEASE_MS
from .limits import Limits, SnapshotPolicy
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

__all__ = [
    "MAX_MEMBERS",
    "PROFILES",
    "Limits",
    "MemberConfig",
    "NodeConfig",
    "Profile",
    "Redirect",
    "SnapshotPolicy",
    "Timeouts",
    "load_config",
]

Profile = Literal["lan", "aeron", "test"]

Redirect = Literal["auto", "always", "never"]
"""Which clients a member that does not lead sends to the leader by -MOVED; it serves all others.

``auto``: those that connected to its `redirect_port`, asked for the topology on the same
connection, or sent READONLY. ``always``: all. ``never``: none.
"""

MAX_MEMBERS: Final = 9
"""More members make every write slower and none of them safer against what really happens."""


_PORT: Final = between(1, 65535, "a port number, 1 to 65535")
_MEMBER_ID: Final = between(0, 2**31 - 1, "a member id, 0 to 2147483647")
_FLAG: Final = Expects(lambda value: isinstance(value, bool), "true or false")
_HOST: Final = Expects(
    lambda value: isinstance(value, str) and _is_host(value),
    "a host name or an address, without port or brackets",
)


def _is_host(text: str) -> bool:
    """Say whether a text can be a host: an IP address, or a name (which has no colon)."""
    try:
        ip_address(text.partition("%")[0])
    except ValueError:
        return re.fullmatch(r"[^\s\[\]:/]{1,253}", text) is not None
    return True


@attrs.frozen
class MemberConfig:
    """Where one member is reached, by the others and by clients."""

    member_id: int = attrs.field(validator=_MEMBER_ID)
    host: str = attrs.field(validator=_HOST)
    member_port: int = attrs.field(validator=_PORT)
    client_port: int = attrs.field(validator=_PORT)
    priority: int = attrs.field(default=0, validator=between(0, 1000, "0 to 1000"))
    """Leadership returns to the member with the highest, once that is level and steady."""
    standby: bool = attrs.field(default=False, validator=_FLAG)
    """It follows and serves like the others, but has no vote and counts for no quorum."""
    redirect_port: int = attrs.field(
        default=0, validator=between(0, 65535, "a port number, or 0 for none")
    )
    """Where cluster clients are sent, so that they are told apart; 0: to ``client_port``."""

    def __attrs_post_init__(self) -> None:
        if self.standby and self.priority:
            raise ConfigurationError(
                unexpected("priority", self.priority, "0, since a standby never leads")
            )


TIMEOUTS_AT_LEAST: Final = (
    # One lost heartbeat is not silence.
    ("leader_heartbeat_timeout", 2, "leader_heartbeat_interval"),
    # Who voted waits two election timeouts for the winner, who tells of its term in this rhythm.
    ("election_timeout", 2, "leader_heartbeat_interval"),
    # A round of scouting is half an election timeout; it asks at least once more who is silent.
    ("election_timeout", 4, "canvass_interval"),
    # A new leader gives up after two heartbeat timeouts without a quorum; till then those that
    # voted for it, or for a rival, must have come back from their ballots.
    ("leader_heartbeat_timeout", 1, "election_timeout"),
    # Aeron: ConsensusModule.Context, the startup canvass holds two heartbeat timeouts.
    ("startup_canvass", 2, "leader_heartbeat_timeout"),
    # A leader that is not heard for so long must be replaced.
    ("leader_heartbeat_timeout", 1, "leader_lease"),
    # Each heartbeat renews it, which takes a round.
    ("leader_lease", 2, "leader_heartbeat_interval"),
)
"""How many times another timeout each must be at least, unless it is 0."""


@attrs.frozen
class Timeouts:
    """How patient a member is; seconds. The names are those of Aeron's consensus module.

    Raises:
        ConfigurationError: two of them don't fit together; the message gives the numbers.
    """

    startup_canvass: float = attrs.field(validator=SECONDS)
    """How long the first canvass after a start waits for all members before a quorum will do."""
    leader_heartbeat_timeout: float = attrs.field(validator=SECONDS)
    """Silence after which a follower canvasses, and a leader without its quorum steps down."""
    leader_heartbeat_interval: float = attrs.field(validator=SECONDS)
    """How often a leader that has nothing else to say tells its commit position."""
    election_timeout: float = attrs.field(validator=SECONDS)
    """How long a ballot is open; half of it is a round of scouting, and the most that a member
    waits at random before one."""
    canvass_interval: float = attrs.field(validator=SECONDS)
    """How often a canvassing member tells its position, and repeats a question."""
    leader_lease: float = attrs.field(default=0.0, validator=seconds_up_to(MAX_LEASE_MS / 1000))
    """For how long followers promise the leader to elect nobody else, so that it answers reads
    without asking them. 0: it asks them for each, and nothing is promised."""

    def __attrs_post_init__(self) -> None:
        for name, times, other in TIMEOUTS_AT_LEAST:
            value, unit = cast("float", getattr(self, name)), cast("float", getattr(self, other))
            if 0 < value < times * unit:
                product = f"{times} x {unit:g} = {times * unit:g}"
                what = f"at least {times} x {other} ({product})"
                raise ConfigurationError(unexpected(name, value, what))

    @property
    def lease_ms(self) -> int:
        """The lease as members tell it, in whole milliseconds."""
        return math.ceil(self.leader_lease * 1000)

    @classmethod
    def of(cls, profile: Profile) -> "Timeouts":
        """The values of a profile.

        Raises:
            ConfigurationError: there is none of that name.
        """
        if not _PROFILE.holds(profile):
            raise ConfigurationError(unexpected("profile", profile, _PROFILE.what))
        return PROFILES[profile]


PROFILES: Final[dict[Profile, Timeouts]] = {
    # one building: a dead leader is replaced within a second
    "lan": Timeouts(2.0, 0.5, 0.1, 0.25, 0.02),
    # Aeron Cluster's defaults
    "aeron": Timeouts(60.0, 10.0, 0.2, 1.0, 0.1),
    # simulated time and small tests on one machine; too nervous for real networks
    "test": Timeouts(0.6, 0.25, 0.025, 0.1, 0.01),
}
_PROFILE: Final = Expects(
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
    """Check the members before anything that depends on them is looked for."""
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
    kind = {"timeouts": Timeouts, "limits": Limits, "snapshot": SnapshotPolicy}[attribute.name]
    if not isinstance(value, kind):
        raise ConfigurationError(unexpected(attribute.name, value, f"a {kind.__name__}"))


@attrs.frozen
class NodeConfig:
    """All that one member is told.

    Raises:
        ConfigurationError: naming the key, the value and what was expected.
    """

    cluster: str = attrs.field(
        validator=matching(
            r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}",
            "a name of 1 to 64 letters, digits, '.', '_' or '-'",
        )
    )
    member_id: int = attrs.field(validator=_MEMBER_ID)
    directory: Path = attrs.field(
        converter=_directory,
        metadata={"toml": Expects(lambda value: isinstance(value, str) and value != "", "a path")},
    )
    """Where its stores lie. In a file: relative to the file's folder."""
    members: tuple[MemberConfig, ...] = attrs.field(
        converter=_members,
        metadata={"toml": Expects(lambda value: isinstance(value, list), "[[members]] tables")},
    )
    """All members, this one too, in ascending order of their ids."""
    profile: Profile = attrs.field(default="lan", validator=_PROFILE)
    timeouts: Timeouts = attrs.field(
        default=attrs.Factory(lambda self: Timeouts.of(self.profile), takes_self=True),
        validator=_is_settings,
    )
    limits: Limits = attrs.field(factory=Limits, validator=_is_settings)
    snapshot: SnapshotPolicy = attrs.field(factory=SnapshotPolicy, validator=_is_settings)
    member_listen_host: str = attrs.field(
        default=attrs.Factory(lambda self: self.own.host, takes_self=True), validator=_HOST
    )
    """Where it listens for members, if not on its own ``host`` (which others must reach)."""
    client_listen_host: str = attrs.field(
        default=attrs.Factory(lambda self: self.own.host, takes_self=True), validator=_HOST
    )
    """Where it listens for clients, if not on its own ``host``."""
    redirect: Redirect = attrs.field(
        default="auto",
        validator=Expects(
            lambda value: isinstance(value, str) and value in get_args(Redirect),
            "one of " + ", ".join(f'"{name}"' for name in get_args(Redirect)),
        ),
    )
    """Which clients are sent to the leader; see :data:`Redirect`."""

    def __attrs_post_init__(self) -> None:
        ids = [member.member_id for member in self.members]
        if ids != sorted(set(ids)):
            raise ConfigurationError(f"members: ids {ids}: expected ascending, each once")
        if not self.voters:
            raise ConfigurationError(
                "members: all are standbys: expected one that is not, at least"
            )
        seen: dict[tuple[str, int], str] = {}
        for index, member in enumerate(self.members):
            for name in ("member_port", "client_port", "redirect_port"):
                port, key = cast("int", getattr(member, name)), f"members[{index}].{name}"
                if not port:
                    continue  # it has no redirect port
                other = seen.setdefault((member.host, port), key)
                if other != key:
                    what = f"a port of {member.host} other than that of {other}"
                    raise ConfigurationError(unexpected(key, port, what))
        assert self.own.member_id == self.member_id

    @property
    def own(self) -> MemberConfig:
        """The entry of this member."""
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
        """The members that have a vote: all but the standbys, ascending."""
        return tuple(member.member_id for member in self.members if not member.standby)

    def to_toml(self) -> str:
        """The file that :func:`load_config` reads as this configuration; defaults are left out."""
        head = {"cluster": self.cluster, "member_id": self.member_id}
        head |= {"directory": str(self.directory), "profile": self.profile}
        for key in ("member_listen_host", "client_listen_host"):
            if getattr(self, key) != self.own.host:
                head[key] = cast("str", getattr(self, key))
        if self.redirect != "auto":
            head["redirect"] = self.redirect
        lines = _lines(head)
        for member in self.members:
            table = dict(items(member))
            for name in ("priority", "standby", "redirect_port"):
                if not table[name]:
                    del table[name]
            lines += ["", "[[members]]", *_lines(table)]
        lines += _changes("timeouts", self.timeouts, Timeouts.of(self.profile))
        lines += _changes("limits", self.limits, Limits())
        lines += _changes("snapshot", self.snapshot, SnapshotPolicy())
        return "\n".join(lines) + "\n"


def _lines(table: dict[str, object] | dict[str, str | int]) -> list[str]:
    return [f"{key} = {render(value)}" for key, value in table.items()]


def _changes(name: str, data: attrs.AttrsInstance, default: attrs.AttrsInstance) -> list[str]:
    usual = dict(items(default))
    changed = {key: value for key, value in items(data) if value != usual[key]}
    return ["", f"[{name}]", *_lines(changed)] if changed else []


def load_config(path: Path | str) -> NodeConfig:
    """Read and check a member's configuration.

    Raises:
        ConfigurationError: the file can't be read, is not TOML, or says something unexpected;
            one line for each trouble.
    """
    path = _path("path", path)
    config = structure(_with_profile(read_tables(path)), NodeConfig, path)
    # relative to the file: a folder with a member's file and stores can be moved
    return attrs.evolve(config, directory=path.parent / config.directory.expanduser())


def _with_profile(tables: dict[str, object]) -> dict[str, object]:
    """The file's tables with the timeouts that it leaves out, which depend on its profile."""
    given, profile = tables.get("timeouts"), tables.get("profile", "lan")
    if isinstance(given, dict) and isinstance(profile, str) and profile in PROFILES:
        usual = dict(items(PROFILES[profile]))
        return tables | {"timeouts": usual | cast("dict[str, object]", given)}
    return tables
