"""All keys with a prefix: their values, and since which position they have them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ..keyvalue.programs.client import KeyValue
    from ..keyvalue.programs.records import Record

__all__ = ["keys_with", "read_all"]

_SPECIAL: Final = re.compile(rb"[*?\[\]\\^]")


def keys_with(prefix: bytes) -> bytes:
    """Return the glob pattern of all keys that begin with a prefix."""
    return _SPECIAL.sub(rb"\\\g<0>", prefix) + b"*"


async def read_all(kv: KeyValue, prefix: bytes) -> dict[bytes, Record]:
    """Return all keys with a prefix.

    They are not read at one point of the log: what changes during that may be in it or not.
    """
    keys = {key: None async for key in kv.scan(keys_with(prefix))}  # some may come twice
    records = zip(keys, await kv.records(keys), strict=True)
    return {key: record for key, record in records if record is not None}
