"""What this member has denied lately, as ACL LOG shows it.

It belongs to one member and is in memory only. Equal denials within a minute are one entry with a
count, so a client in a loop does not push out the other entries.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

import attrs

from ..protocol import resp
from .compiled import Denial, Reason

__all__ = ["MAX_ENTRIES", "Denials"]

MAX_ENTRIES: Final = 128
"""Entries that are kept, as in Redis."""

_SAME_SECONDS: Final = 60.0
_MAX_OBJECT_BYTES: Final = 256  # a key may have megabytes


@attrs.define(eq=False)
class _Entry:
    number: int
    reason: Reason
    context: bytes
    what: bytes
    user: bytes
    client: bytes
    created_ms: int
    updated_ms: int
    updated_at: float
    count: int = 1


class Denials:
    """The newest denials, the newest first."""

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque(maxlen=MAX_ENTRIES)
        self._next = 0

    def add(
        self,
        denial: Denial,
        user: bytes,
        *,
        in_transaction: bool,
        client: Callable[[], bytes],
        now: float,
        now_ms: int,
    ) -> bool:
        """Note a denial; return whether no equal one is counted already.

        Args:
            denial: why, and the command or the key; for a failed login the command.
            user: its name, or the one that was tried.
            in_transaction: the command stood in MULTI.
            client: returns a line of CLIENT LIST.
            now: of trio's clock, seconds.
            now_ms: log time.
        """
        context = b"multi" if in_transaction else b"toplevel"
        same = (denial.reason, context, denial.what[:_MAX_OBJECT_BYTES], user[:_MAX_OBJECT_BYTES])
        for entry in self._entries:
            recent = now - entry.updated_at <= _SAME_SECONDS
            if recent and same == (entry.reason, entry.context, entry.what, entry.user):
                entry.count += 1
                entry.updated_at, entry.updated_ms = now, now_ms
                # The line of the first client stays: making one for each denial would cost more
                # than the denied command.
                self._entries.remove(entry)
                self._entries.appendleft(entry)
                return False
        self._entries.appendleft(_Entry(self._next, *same, client(), now_ms, now_ms, now))
        self._next += 1
        return True

    def clear(self) -> None:
        """Forget all entries."""
        self._entries.clear()

    def reply(self, count: int, now: float, *, resp3: bool) -> bytes:
        """Encode the newest entries."""
        newest = [entry for _, entry in zip(range(count), self._entries, strict=False)]
        return resp.array([_encoded(entry, now, resp3=resp3) for entry in newest])


def _encoded(entry: _Entry, now: float, *, resp3: bool) -> bytes:
    pairs = {
        b"count": resp.integer(entry.count),
        b"reason": resp.bulk(entry.reason.value.encode()),
        b"context": resp.bulk(entry.context),
        b"object": resp.bulk(entry.what),
        b"username": resp.bulk(entry.user),
        b"age-seconds": resp.double(round(now - entry.updated_at, 3), resp3=resp3),
        b"client-info": resp.bulk(entry.client),
        b"entry-id": resp.integer(entry.number),
        b"timestamp-created": resp.integer(entry.created_ms),
        b"timestamp-last-updated": resp.integer(entry.updated_ms),
    }
    return resp.mapping([(resp.bulk(name), value) for name, value in pairs.items()], resp3=resp3)
