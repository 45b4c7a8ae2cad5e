"""MULTI and EXEC: the transaction that a connection collects before it is sent.

Commands are queued here, on the connection. EXEC sends all of them as one request, so they are one
log entry and nothing comes between them. The watched keys go with them (:mod:`.watching`).

Connection commands inside MULTI (PING, CLIENT ID) do not concern the state machine. The connection
answers them when the other replies have arrived, and puts each reply in its place.

Caveat: a transaction of reads alone is a query and leaves no trace in the log.
"""

from collections.abc import Callable
from typing import Final, Self

import attrs

from ..access.compiled import Access
from ..commands.table import CommandSpec, Kind
from ..limits import MAX_TRANSACTION_COMMANDS
from ..protocol import resp
from ..protocol.replies import split_array

__all__ = ["TOO_MANY", "Queued", "Transaction", "weave"]

# All are answered without a break, so more of them hold up other clients for longer. With fewer,
# transactions that Redis takes are refused.
_MAX_LOCAL: Final = 100
_TOO_MANY_LOCAL: Final = resp.error("ERR too many connection commands in one transaction")
TOO_MANY: Final = resp.error(f"ERR a transaction may have {MAX_TRANSACTION_COMMANDS} commands")
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
    """The watched keys with their conditions, as the command in front of the transaction."""
    encoded: list[bytes] = attrs.field(factory=list[bytes])
    """Commands for the state machine, as sent."""
    local: dict[int, Queued] = attrs.field(factory=dict[int, Queued])
    """Commands for the connection, by their index among all commands."""
    size_bytes: int = 0
    writes: bool = False
    """One of the commands must go through the log."""
    access: Access | None = None
    """What the user might do when the first command was queued."""
    slots: set[int] = attrs.field(factory=set[int])
    """Of the keys of the commands; empty in a cluster without partitions."""
    failed: bool = False
    """A command could not be queued: EXEC will refuse (Redis: EXECABORT)."""

    @classmethod
    def begin(cls, pairs: list[bytes]) -> Self:
        """Begin a transaction that runs only if the watched keys meet their conditions.

        Args:
            pairs: keys and conditions, alternating; see `WatchedKeys.pairs`.
        """
        if not pairs:
            return cls()
        watch = resp.bulk_array([b"WATCH", *pairs])
        return cls(watch, size_bytes=len(watch))

    def __len__(self) -> int:
        """Return the number of commands."""
        return len(self.encoded) + len(self.local)

    def add(
        self, spec: CommandSpec, arguments: list[bytes], encoded: bytes, limit_bytes: int
    ) -> bytes | None:
        """Queue a command; return the error if it cannot be queued."""
        if self.failed:  # EXEC will refuse, so nothing is kept; the client still gets QUEUED
            return None
        if self.size_bytes + len(encoded) > limit_bytes:
            return _TOO_LARGE
        if spec.kind is Kind.CONNECTION:
            if len(self.local) == _MAX_LOCAL:
                return _TOO_MANY_LOCAL
            self.local[len(self)] = Queued(spec, arguments)
        else:
            if len(self.encoded) == MAX_TRANSACTION_COMMANDS:
                return TOO_MANY
            self.encoded.append(encoded)
            self.writes |= spec.kind is Kind.WRITE
        self.size_bytes += len(encoded)
        return None

    def fail(self) -> None:
        """Note that a command could not be queued, and drop the queued ones."""
        self.failed = True
        self.encoded.clear()
        self.local.clear()

    def body(self) -> bytes:
        """Return the payload: the watched keys with their conditions, then the commands."""
        return b"".join([self.watch, *self.encoded])


def weave(reply: bytes, local: dict[int, Queued], answer: Callable[[Queued], bytes]) -> bytes:
    """Insert the replies of connection commands into the reply to the other commands.

    A reply that is not an array stays as it is, because nothing was executed: it is an error, or
    null because a watched key has changed.
    """
    replies = split_array(reply)
    if replies is None:
        return reply
    for place, queued in local.items():
        replies.insert(place, answer(queued))
    return resp.array(replies)
