"""The key-value store of a client: its short commands travel in batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..errors import RefusedError, UnknownOutcomeError
from ..keyvalue.access.commands import CHANGES
from ..keyvalue.commands.table import all_commands
from ..keyvalue.programs.client import KeyValue
from ..keyvalue.programs.session import SessionKeyValue
from .batches import BATCH_BYTES, Batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anyio.abc import TaskGroup

    from ..keyvalue.commands.spec import CommandSpec
    from .endpoint import RemoteEndpoint

__all__ = [
    "READS",
    "WRITES",
    "JoinedKeyValue",
    "PlainKeyValue",
    "StampedKeyValue",
    "may_return_value",
]

_WORKERS: Final = 2
"""Batches of each kind under way at the same time. With one, the client waits while the cluster
works, and the other way round. More, and batches are smaller than need be."""

WRITES: Final = frozenset(
    {
        *("append", "decr", "decrby", "del", "expire", "expireat", "incr", "incrby"),
        *("mset", "msetnx", "persist", "pexpire", "pexpireat", "psetex", "set", "setex"),
        *("setnx", "setrange", "unlink"),
    }
)
"""Writes whose replies are short: a session keeps only so many bytes of a reply. INCRBYFLOAT is
none of them, since its reply may have hundreds of digits.

QUORATE.CAS is none of them: all commands of one log entry have one position, and the position of a
lease is its fencing token, which no other lease may have.
"""

READS: Final = frozenset(
    {
        *("exists", "expiretime", "get", "getrange", "pexpiretime", "pttl", "strlen", "substr"),
        *("touch", "ttl"),
    }
)
"""Reads whose replies are single values."""

_CUT: Final = "the client was closed before this was answered"

_PLAIN_SET: Final = b"*3\r\n"
_GET_OPTION: Final = b"\r\nGET\r\n"


class JoinedKeyValue(KeyValue):
    """The store, with batches; the base of the two classes below."""

    def start(self, tasks: TaskGroup, endpoint: RemoteEndpoint) -> None:
        """Start what sends batches.

        Args:
            tasks: they run in it.
            endpoint: for commands that travel by themselves.
        """
        self._remote = endpoint
        specs = {spec.name: spec for spec in all_commands()}
        self._write = Batches(
            lambda payload: self.send_alone(specs["set"], payload),
            _WORKERS,
            UnknownOutcomeError(f"{_CUT}; it may or may not take effect"),
        )
        self._read = Batches(
            lambda payload: self.send_alone(specs["get"], payload),
            _WORKERS,
            RefusedError(f"{_CUT}; it has only read"),
        )
        for batches in (self._write, self._read):
            batches.start(tasks)

    async def send(self, spec: CommandSpec, payload: bytes) -> bytes:
        """Run one encoded command; return its reply, which may be an error."""
        return await self._send(spec, payload)

    async def send_alone(self, spec: CommandSpec, payload: bytes) -> bytes:
        """Run encoded commands as one request of their own; return their replies, joined.

        Args:
            spec: of the commands; all of them write, or none does.
            payload: the commands.
        """
        return await super()._send(spec, payload)

    async def commit(self, payload: bytes, *, writes: bool) -> bytes:
        """Run an encoded transaction; return its reply, which may be an error."""
        return await self._commit(payload, writes=writes)

    def _check_rules(self, rules: Sequence[bytes]) -> None:
        """Let all pass: the member checks them, and hashes what is secret."""

    async def _send(self, spec: CommandSpec, payload: bytes) -> bytes:
        name = spec.name
        if name in CHANGES:  # a member hashes passwords in them, so it has to see each by itself
            return await self._remote.command_by_itself(payload)
        if len(payload) <= BATCH_BYTES:
            if name in READS:
                return await self._read.execute(payload)
            if name in WRITES and not (name == "set" and may_return_value(payload)):
                return await self._write.execute(payload)
        return await self.send_alone(spec, payload)

    def finish(self) -> None:
        """Answer what is not sent yet with an error, and take no more."""
        self._write.close()
        self._read.close()


class PlainKeyValue(JoinedKeyValue):
    """The store without a session: a write of unknown outcome is not sent again."""


class StampedKeyValue(JoinedKeyValue, SessionKeyValue):
    """The store within a session: each batch of writes is done exactly once."""


def may_return_value(payload: bytes) -> bool:
    """Whether an encoded SET has the option GET; true also for some values that look like it."""
    return not payload.startswith(_PLAIN_SET) and _GET_OPTION in payload.upper()
