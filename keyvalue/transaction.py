"""MULTI, EXEC and WATCH: what a connection keeps of a transaction before it is sent.

Commands are queued here, on the connection; EXEC sends all of them as one request, so they are one
entry of the log and nothing comes between them. WATCH needs no state in the cluster either: it is
a query for the *revisions* of keys, which the connection keeps and EXEC sends along. The state
machine compares them before it does anything. So a client may watch through one member and
execute through another, or after a change of leader.

Connection commands inside MULTI (PING, CLIENT ID) are not the state machine's business: they are
answered by the connection when the reply to the rest is there, and put in their places.

Caveat: a transaction of reads alone is a query and leaves no trace in the log.
"""

from collections.abc import Callable, Sequence
from typing import Final

import attrs

from . import resp
from .commands import CommandSpec, Kind

__all__ = ["Queued", "Transaction", "revisions", "split_array", "weave"]

_WIDTHS: Final = {b"*": 1, b"~": 1, b">": 1, b"%": 2}


@attrs.frozen
class Queued:
    """One command of a transaction: what it is, its arguments, and these as sent."""

    spec: CommandSpec
    arguments: list[bytes]
    encoded: bytes


@attrs.define(eq=False)
class Transaction:
    """The commands since MULTI."""

    queue: list[Queued] = attrs.field(factory=list[Queued])
    size_bytes: int = 0
    failed: bool = False
    """A command could not be queued: EXEC will refuse (Redis: EXECABORT)."""

    def add(self, queued: Queued) -> None:
        """Queue a command."""
        self.queue.append(queued)
        self.size_bytes += len(queued.encoded)

    @property
    def writes(self) -> bool:
        """Whether any of the commands must go through the log."""
        return any(queued.spec.kind is Kind.WRITE for queued in self.queue)

    def body(self, watched: dict[bytes, int]) -> bytes:
        """What is sent: the watched keys with their revisions, then the keyed commands."""
        parts = [queued.encoded for queued in self.queue if queued.spec.kind is not Kind.CONNECTION]
        if watched:
            pairs = [item for key, revision in watched.items() for item in (key, b"%d" % revision)]
            parts.insert(0, resp.bulk_array([b"WATCH", *pairs]))
        return b"".join(parts)

    def local(self) -> dict[int, Queued]:
        """The connection commands, by their place in the transaction."""
        kinds = enumerate(self.queue)
        return {place: queued for place, queued in kinds if queued.spec.kind is Kind.CONNECTION}


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


def split_array(reply: bytes) -> list[bytes] | None:
    """Split an encoded array into its encoded elements; None if the reply is not an array."""
    if reply[:1] != b"*" or reply[1:2] == b"-":
        return None
    at = reply.index(b"\r\n") + 2
    elements: list[bytes] = []
    for _ in range(int(reply[1 : at - 2])):
        end = _end_of_reply(reply, at)
        elements.append(reply[at:end])
        at = end
    return elements


def _end_of_reply(data: bytes, at: int) -> int:
    """Find where the reply that begins at a place ends. Our own replies: nothing is checked."""
    left = 1
    while left:
        head, end = data[at : at + 1], data.index(b"\r\n", at) + 2
        left -= 1
        if head in (b"$", b"=", b"!"):
            length = int(data[at + 1 : end - 2])
            at = end + length + 2 if length >= 0 else end
        else:
            left += max(int(data[at + 1 : end - 2]), 0) * _WIDTHS[head] if head in _WIDTHS else 0
            at = end
    return at


def revisions(reply: bytes, keys: Sequence[bytes]) -> dict[bytes, int] | None:
    """Read the reply to the query WATCH; None if it is not what was asked for (an error)."""
    elements = split_array(reply)
    if elements is None or len(elements) != len(keys):
        return None
    return {key: int(element[1:-2]) for key, element in zip(keys, elements, strict=True)}
