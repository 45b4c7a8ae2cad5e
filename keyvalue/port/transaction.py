"""MULTI and EXEC: what a connection keeps of a transaction before it is sent.

Commands are queued here, on the connection; EXEC sends all of them as one request, so they are one
entry of the log and nothing comes between them. With them goes what is watched (:mod:`.watching`).

Connection commands inside MULTI (PING, CLIENT ID) are not the state machine's business: they are
answered by the connection when the reply to the rest is there, and put in their places.

Caveat: a transaction of reads alone is a query and leaves no trace in the log.
"""

from collections.abc import Callable
from typing import Final, Self

import attrs

from ..commands.table import CommandSpec, Kind
from ..limits import MAX_TRANSACTION_COMMANDS
from ..protocol import resp
from ..protocol.replies import split_array

__all__ = ["Queued", "Transaction", "weave"]

_MAX_LOCAL: Final = 100  # they are answered all at once
_TOO_MANY_LOCAL: Final = resp.error("ERR too many connection commands in one transaction")
_TOO_MANY: Final = resp.error(f"ERR a transaction may have {MAX_TRANSACTION_COMMANDS} commands")
_TOO_LARGE: Final = resp.error("ERR the transaction is larger than this member takes")


@attrs.frozen
class Queued:
    """A connection command inside of a transaction."""

    spec: CommandSpec
    arguments: list[bytes]


@attrs.define(eq=False)
class Transaction:
    """The commands since MULTI."""

    watch: bytes = b""
    """The watched keys with their revisions, as the command that goes before the others."""
    encoded: list[bytes] = attrs.field(factory=list[bytes])
    """Those for the state machine, as sent."""
    local: dict[int, Queued] = attrs.field(factory=dict[int, Queued])
    """Those for the connection, by their place among all."""
    size_bytes: int = 0
    writes: bool = False
    """One of the commands must go through the log."""
    failed: bool = False
    """A command could not be queued: EXEC will refuse (Redis: EXECABORT)."""

    @classmethod
    def begin(cls, pairs: list[bytes]) -> Self:
        """Begin one that is to be executed only if watched keys are as these pairs say."""
        if not pairs:
            return cls()
        watch = resp.bulk_array([b"WATCH", *pairs])
        return cls(watch, size_bytes=len(watch))

    def __len__(self) -> int:
        """Number of commands."""
        return len(self.encoded) + len(self.local)

    def add(
        self, spec: CommandSpec, arguments: list[bytes], encoded: bytes, limit_bytes: int
    ) -> bytes | None:
        """Queue a command; return the error if it can't be. A failed one holds no more commands."""
        if self.failed:
            return None
        if self.size_bytes + len(encoded) > limit_bytes:
            return _TOO_LARGE
        if spec.kind is Kind.CONNECTION:
            if len(self.local) == _MAX_LOCAL:
                return _TOO_MANY_LOCAL
            self.local[len(self)] = Queued(spec, arguments)
        else:
            if len(self.encoded) == MAX_TRANSACTION_COMMANDS:
                return _TOO_MANY
            self.encoded.append(encoded)
            self.writes |= spec.kind is Kind.WRITE
        self.size_bytes += len(encoded)
        return None

    def fail(self) -> None:
        """A command can't be queued."""
        self.failed = True
        self.encoded.clear()
        self.local.clear()

    def body(self) -> bytes:
        """What is sent: the watched keys with their revisions, then the commands."""
        return b"".join([self.watch, *self.encoded])


def weave(reply: bytes, local: dict[int, Queued], answer: Callable[[Queued], bytes]) -> bytes:
    """Put the replies of connection commands into their places in the reply to the rest.

    A reply that is not an array (an error, or null since a watched key has changed) stays as it
    is: nothing was executed.
    """
    replies = split_array(reply)
    if replies is None:
        return reply
    for place, queued in local.items():
        replies.insert(place, answer(queued))
    return resp.array(replies)
