"""Reads of many keys: what is known of each, and how they are cut into requests."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from ...errors import KeyValueError
from ..protocol import resp
from .encoding import bytes_of, integer_in, list_of

__all__ = ["KEYS_AT_ONCE", "Record", "in_pieces", "record_of"]

KEYS_AT_ONCE: Final = 1000
"""Keys that one request reads. Fewer, and reads of many keys take more round trips; more, and one
of them holds up other clients for longer."""


class Record(NamedTuple):
    """What a key has.

    Args:
        value: its value.
        revision: log position of its last change.
        expires_at_ms: when it expires, in milliseconds of log time since 1970; 0 for never.
    """

    value: bytes
    revision: int
    expires_at_ms: int


def record_of(reply: resp.Reply) -> Record | None:
    """Decode one element of the reply to QUORATE.RECORDS."""
    if reply is None:
        return None
    value, revision, expires_at_ms = list_of(reply)
    return Record(bytes_of(value), integer_in(revision), integer_in(expires_at_ms))


async def in_pieces(
    read: Callable[[Sequence[bytes]], Awaitable[resp.Reply]], keys: Sequence[bytes]
) -> list[resp.Reply]:
    """Read keys, some at a time; return one reply for each, in order.

    Args:
        read: reads some keys by one request.
        keys: any number.

    Raises:
        KeyValueError: a request was answered with an error.
    """
    replies: list[resp.Reply] = []
    waiting = [keys[at : at + KEYS_AT_ONCE] for at in range(0, len(keys), KEYS_AT_ONCE)][::-1]
    while waiting:
        piece = waiting.pop()
        try:
            replies += list_of(await read(piece))
        except KeyValueError as error:
            # Perhaps the values are too long for one reply. Nobody knows that before.
            if len(piece) == 1 or error.code != "ERR":
                raise
            half = len(piece) // 2
            waiting += piece[half:], piece[:half]
    return replies
