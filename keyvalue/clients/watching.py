"""WATCH: the keys that a client watches, until EXEC.

No state in the cluster
    WATCH is a query for the *revisions* of keys. The connection keeps them, and EXEC sends them
    with the transaction. The state machine compares them before it executes anything. So a watch
    survives a change of leader.

Absent keys
    An absent key has no revision. If it is created and deleted again before EXEC, it looks as if
    nothing had happened. But the client may have read it in between, and its transaction may follow
    from what it read. So a command outside of MULTI that names such a key also asks, in the
    same request, whether the key exists. A read asks after itself, a write before and after itself.

Expired keys
    A key is gone once log time has reached its expiry, which may be a moment after the client's
    clock has. WATCH of such a key still finds it, and then it vanishes although nobody changed it.
    So if a key's expiry has passed by this member's clock, EXEC accepts two states: unchanged, and
    gone. If a command of this client finds the key existing after all, only "unchanged" is left.

Caveat
    A key that no command of the client has named may come and go unnoticed, even if KEYS or SCAN
    has shown it.
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

__all__ = ["WatchedKeys"]

_TOUCHED: Final = -1  # no key has this revision, and it is not that of an absent key
_NONE_EXISTS: Final = resp.integer(0)
_TOO_MANY_KEYS: Final = resp.error("ERR too many watched keys")


def _revision_and_expiry(element: bytes) -> tuple[int, int]:
    """Parse one element of the reply to the query: a revision, or a revision and an expiry."""
    if (both := split_array(element)) is None:
        return int(element[1:-2]), 0
    return int(both[0][1:-2]), int(both[1][1:-2])


@attrs.define(eq=False)
class WatchedKeys:
    """The keys that one client watches."""

    revisions: dict[bytes, int] = attrs.field(factory=dict[bytes, int])
    """By key, as of the first WATCH; 0 for an absent key."""
    absent: set[bytes] = attrs.field(factory=set[bytes])
    """Keys that did not exist then, or whose expiry had passed, and that were not seen since."""

    def more(self, arguments: Sequence[bytes], limit_bytes: int) -> list[bytes]:
        """Return the keys in the arguments of WATCH that are not watched yet.

        Raises:
            CommandError: together with the watched ones they are too many, or too long.
        """
        keys = [key for key in dict.fromkeys(arguments[1:]) if key not in self.revisions]
        names = [*keys, *self.revisions]
        if len(names) > MAX_WATCHED_KEYS or sum(map(len, names)) > limit_bytes:
            raise CommandError(_TOO_MANY_KEYS)
        return keys

    def pairs(self) -> list[bytes]:
        """Return keys and conditions, alternating: the arguments of WATCH that EXEC sends."""
        absent = self.absent
        return [
            item
            for key, revision in self.revisions.items()
            for item in (key, watch_condition(revision, or_absent=key in absent))
        ]

    def keep(self, keys: Sequence[bytes], now_ms: int, reply: bytes) -> bytes:
        """Keep the revisions in the reply to the query; return the reply to the client.

        Args:
            keys: in the order of the query.
            now_ms: log time by this member's clock, when WATCH arrived.
            reply: to the query.
        """
        elements = split_array(reply)
        if elements is None or len(elements) != len(keys):
            return reply  # an error: nothing is watched
        for key, element in zip(keys, elements, strict=True):
            revision, expires_at = _revision_and_expiry(element)
            self.revisions[key] = revision
            if not revision or 0 < expires_at <= now_ms:
                self.absent.add(key)
        return resp.OK

    def ask_along(
        self, spec: CommandSpec, arguments: Sequence[bytes], encoded: bytes
    ) -> tuple[bytes, Callable[[bytes], bytes] | None]:
        """Extend a command by the question whether the absent keys that it names exist.

        Args:
            spec: of a command that reads or writes.
            arguments: the whole command.
            encoded: the whole command, encoded.

        Returns:
            What to send instead, and a function that extracts the command's own reply.
        """
        named = [key for key in dict.fromkeys(arguments[1:]) if key in self.absent]
        if not named:
            return encoded, None
        exist = resp.bulk_array([b"EXISTS", *named])
        # A write may delete the key that it saw, or create it, so it asks on both sides.
        if spec.kind is Kind.READ:
            return encoded + exist, partial(self._behind, named)
        return exist + encoded + exist, partial(self._around, named)

    def touch(self, keys: Sequence[bytes]) -> None:
        """Note that those of these keys which were absent have existed since."""
        for key in keys:
            if key in self.absent:
                # A key that was absent at WATCH has changed now: no condition holds any more. One
                # whose expiry had passed must now be exactly what it was.
                self.absent.remove(key)
                self.revisions[key] = self.revisions[key] or _TOUCHED

    def _behind(self, named: Sequence[bytes], reply: bytes) -> bytes:
        """Return the reply to the command before one EXISTS."""
        # The reply of EXISTS is one line; the command's own reply may contain anything.
        end = reply.rindex(b"\r\n", 0, -2) + 2
        if reply[end:] != _NONE_EXISTS:
            self.touch(named)
        return reply[:end]

    def _around(self, named: Sequence[bytes], reply: bytes) -> bytes:
        """Return the reply to the command between two EXISTS."""
        begin = reply.index(b"\r\n") + 2
        if reply[:begin] != _NONE_EXISTS:
            self.touch(named)
        return self._behind(named, reply)[begin:]
