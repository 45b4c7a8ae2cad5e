"""What PySyncObj's settings mean here: the configuration of a member."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ..errors import ConfigurationError, QuorateError
from ..node import MemberConfig, NodeConfig, Security

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..node.config.config import Profile

__all__ = ["FAIL_REASON", "SyncObjConf", "SyncObjException", "node_config"]


class FAIL_REASON:  # noqa: N801 - PySyncObj's name
    """Why a call has failed, as callbacks get it."""

    SUCCESS = 0
    QUEUE_FULL = 1
    MISSING_LEADER = 2
    DISCARDED = 3
    NOT_LEADER = 4
    LEADER_CHANGED = 5
    REQUEST_DENIED = 6
    EXCEPTION = 7
    """The method has raised an exception; nothing was changed. Not in PySyncObj."""


class SyncObjException(QuorateError):  # noqa: N818 - PySyncObj's name
    """A call has failed, or something is not possible.

    Args:
        errorCode: one of `FAIL_REASON`, or a word such as 'Timeout'.
        text: what has happened; the code if left out.
    """

    def __init__(self, errorCode: int | str, text: str = "") -> None:
        super().__init__(text or f"{errorCode}")
        self.errorCode = errorCode


class SyncObjConf:
    """The settings of a `SyncObj`.

    PySyncObj's own are all accepted. These are used; the rest is quorate's own affair:

    - `commandsWaitLeader`, `commandsQueueSize`, `onReady`
    - `journalFile`, else `fullDumpFile`: the member's directory is next to it, with ".quorate"
    - `password`, `serializer`, `deserializer`, `autoTick=False`: refused, with what to use

    Args:
        directory: of the member's store. Not in PySyncObj.
        security: how the member proves who it is; see :class:`quorate.Security`. Not in PySyncObj.
        profile: how patient the member is, "lan" by default. Not in PySyncObj.
        settings: PySyncObj's.

    Raises:
        ConfigurationError: one can't be had.
    """

    _refused: ClassVar = {
        "password": "members prove who they are by security=quorate.Security(...)",
        "serializer": "states are saved by themselves",
        "deserializer": "states are loaded by themselves",
    }

    def __init__(
        self,
        *,
        directory: str | Path | None = None,
        security: Security | None = None,
        profile: Profile = "lan",
        **settings: Any,
    ) -> None:
        for name, instead in self._refused.items():
            if settings.get(name) is not None:
                raise ConfigurationError(f"{name} can't be had: leave it out; {instead}")
        if not settings.get("autoTick", True):
            raise ConfigurationError("autoTick = False can't be had: the member has its own thread")
        self.directory = directory
        self.security = security or Security()
        self.profile: Profile = profile
        self.commandsWaitLeader = bool(settings.get("commandsWaitLeader", True))
        self.commandsQueueSize = int(settings.get("commandsQueueSize", 100_000))
        self.onReady: Callable[[], object] | None = settings.get("onReady")
        self.journalFile: str | None = settings.get("journalFile")
        self.fullDumpFile: str | None = settings.get("fullDumpFile")

    def store_of(self, address: str) -> Path:
        """Return the directory of a member's store."""
        if self.directory is not None:
            return Path(self.directory)
        if file := self.journalFile or self.fullDumpFile:
            return Path(f"{file}.quorate")
        return Path(f"quorate-{re.sub('[^A-Za-z0-9.-]', '-', address)}")


_PORT: Final = re.compile(r"(.+):(\d{1,5})")
_AWAY: Final = 10_000
_PORTS: Final = 65_536


def node_config(own: object, others: Sequence[object], conf: SyncObjConf) -> NodeConfig:
    """Return the configuration of a member, from the addresses that PySyncObj is given.

    Raises:
        ConfigurationError: an address is no "host:port", or there are too many.
    """
    if own is None:
        raise ConfigurationError("a node without an address can't be had: read from a member")
    addresses = sorted({str(own), *map(str, others)})  # equal on all nodes, so the ids are
    members = tuple(_member(place, address) for place, address in enumerate(addresses))
    return NodeConfig(
        "pysyncobj",
        addresses.index(str(own)),
        conf.store_of(str(own)).absolute(),
        members,
        conf.profile,
        security=conf.security,
    )


def _member(place: int, address: str) -> MemberConfig:
    found = _PORT.fullmatch(address)
    if found is None:
        raise ConfigurationError(f'address {address!r:.80}: expected "host:port"')
    port = int(found[2])
    # No client is served there, but each member has such a port.
    unused = port + _AWAY if port + _AWAY < _PORTS else port - _AWAY
    return MemberConfig(place, found[1].strip("[]"), port, unused)
