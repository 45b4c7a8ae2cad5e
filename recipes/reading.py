"""All keys with a prefix: their values, and since which position they have them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from ..errors import KeyValueError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..keyvalue.programs.client import KeyValue

__all__ = ["Kept", "keys_with", "read_all", "records_of"]

_SPECIAL: Final = re.compile(rb"[*?\[\]\\^]")

_PIECE: Final = 100
"""Keys that one request reads. Fewer, and a large prefix takes many round trips; more, and other
requests wait behind a long reply."""


class Kept(NamedTuple):
    """A key's value and the log position that set it.

    Args:
        value: the value.
        revision: position of the last change.
        expires_at_ms: when it expires, in log time; 0 for never.
    """

    value: bytes
    revision: int
    expires_at_ms: int


def keys_with(prefix: bytes) -> bytes:
    """Return the glob pattern of all keys that begin with a prefix."""
    return _SPECIAL.sub(rb"\\\g<0>", prefix) + b"*"


async def read_all(kv: KeyValue, prefix: bytes) -> dict[bytes, Kept]:
    """Return all keys with a prefix, in the order of the keys.

    The pieces are read one after the other: what changes during that may be in it or not.
    """
    found: dict[bytes, Kept] = {}
    keys: list[bytes] = []
    async for key in kv.scan(keys_with(prefix)):
        keys.append(key)
        if len(keys) == _PIECE:
            found |= await records_of(kv, keys)
            keys.clear()
    return found | await records_of(kv, keys)


async def records_of(kv: KeyValue, keys: Sequence[bytes]) -> dict[bytes, Kept]:
    """Return the records of those keys that exist, as of one point of the log."""
    if not keys:
        return {}
    reply = await kv.execute("QUORATE.RECORDS", *keys)
    if not isinstance(reply, list):
        raise KeyValueError(f"QUORATE.RECORDS replied {reply!r:.60}: expected a list")
    found: dict[bytes, Kept] = {}
    for key, row in zip(keys, reply, strict=True):
        match row:
            case [bytes(value), int(revision), int(expires_at_ms)]:
                found[key] = Kept(value, revision, expires_at_ms)
            case _:
                pass
    return found
