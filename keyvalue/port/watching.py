"""WATCH: what a client watches, until EXEC.

WATCH needs no state in the cluster: it is a query for the *revisions* of keys, which the session
keeps and EXEC sends along. The state machine compares them before it does anything. So a client may
watch through one member and execute through another, or after a change of leader.

An absent key has no revision, so one that is made and deleted again looks as if nothing had
happened. A client that has seen it meanwhile would now write what follows from that. So a command
outside of MULTI that names such a key asks in the same step whether the key exists: a read behind
itself, a write before and behind.

**Expired keys.** A key is gone once the log's time has reached its expiry, which may be a moment
after the client's clock has. WATCH of such a key still finds it, and the client then sees it go
without anybody having changed it. So of a key whose expiry has passed by this member's clock both
are taken by EXEC: that it is as it was, and that it is gone. If a command of this client finds it
there after all, only the former is.

Caveat: what nobody has named may come and go unnoticed, also if KEYS or SCAN has shown it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import attrs

from ..commands.table import CommandSpec, Kind
from ..limits import MAX_WATCHED_KEYS
from ..protocol import resp
from ..protocol.payload import watch_condition
from ..protocol.replies import split_array
from ..protocol.resp import CommandError

__all__ = ["Watched"]

_TOUCHED: Final = -1  # a revision that no key has, nor an absent one
_NONE_EXISTS: Final = resp.integer(0)
_TOO_MANY_KEYS: Final = resp.error("ERR too many watched keys")


def _revision_and_expiry(element: bytes) -> tuple[int, int]:
    """Read one element of the reply to the query: a revision, or that with an expiry."""
    if (both := split_array(element)) is None:
        return int(element[1:-2]), 0
    return int(both[0][1:-2]), int(both[1][1:-2])


@attrs.define(eq=False)
class Watched:
    """The keys that a client watches."""

    revisions: dict[bytes, int] = attrs.field(factory=dict[bytes, int])
    """When they were first watched; 0 for an absent one."""
    absent: set[bytes] = attrs.field(factory=set[bytes])
    """Those that did not exist then, or were about to expire, and were not seen since."""

    def more(self, arguments: Sequence[bytes], limit_bytes: int) -> list[bytes]:
        """Return the arguments of WATCH that are not watched yet.

        Raises:
            CommandError: they would be too many, or too long.
        """
        keys = [key for key in dict.fromkeys(arguments[1:]) if key not in self.revisions]
        names = [*keys, *self.revisions]
        if len(names) > MAX_WATCHED_KEYS or sum(map(len, names)) > limit_bytes:
            raise CommandError(_TOO_MANY_KEYS)
        return keys

    def pairs(self) -> list[bytes]:
        """Return each key and, in words, the revisions that it may have for EXEC to happen."""
        absent = self.absent
        return [
            item
            for key, revision in self.revisions.items()
            for item in (key, watch_condition(revision, or_absent=key in absent))
        ]

    def keep(self, keys: Sequence[bytes], now_ms: int, reply: bytes) -> bytes:
        """Note the revisions in the reply to the query, which came now, and answer the client."""
        elements = split_array(reply)
        if elements is None or len(elements) != len(keys):
            return reply  # an error
        for key, element in zip(keys, elements, strict=True):
            revision, expires_at = _revision_and_expiry(element)
            self.revisions[key] = revision
            if not revision or 0 < expires_at <= now_ms:
                self.absent.add(key)
        return resp.OK

    def ask_along(
        self, spec: CommandSpec, arguments: Sequence[bytes], encoded: bytes
    ) -> tuple[bytes, Callable[[bytes], bytes] | None]:
        """Let a command ask whether the absent keys that it names exist.

        Args:
            spec: the command, one that reads or writes.
            arguments: all of it.
            encoded: the same.

        Returns:
            What to send in its place, and what makes the reply to it of the reply to that.
        """
        named = [key for key in dict.fromkeys(arguments[1:]) if key in self.absent]
        if not named:
            return encoded, None
        exist = resp.bulk_array([b"EXISTS", *named])
        if spec.kind is Kind.READ:
            return encoded + exist, partial(self._behind, named)
        return exist + encoded + exist, partial(self._around, named)

    def touch(self, keys: Sequence[bytes]) -> None:
        """Take it that those of these keys which were absent have been there."""
        for key in keys:
            if key in self.absent:
                self.absent.remove(key)
                self.revisions[key] = self.revisions[key] or _TOUCHED

    def _behind(self, named: Sequence[bytes], reply: bytes) -> bytes:
        """Return the reply to what stood before one EXISTS, whose reply is one line."""
        end = reply.rindex(b"\r\n", 0, -2) + 2
        if reply[end:] != _NONE_EXISTS:
            self.touch(named)
        return reply[:end]

    def _around(self, named: Sequence[bytes], reply: bytes) -> bytes:
        """Return the reply to what stood between two."""
        begin = reply.index(b"\r\n") + 2
        if reply[:begin] != _NONE_EXISTS:
            self.touch(named)
        return self._behind(named, reply)[begin:]
