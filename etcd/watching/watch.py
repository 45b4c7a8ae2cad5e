"""One watch of a client, and its events in protobuf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from ..messages.wire import field

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..keyspace.change import Change

__all__ = ["Watch", "encode_event"]

_EVENTS: Final = 11  # field of a response
_EVENT_KV: Final = 2  # fields of an event
_EVENT_PREV_KV: Final = 3
_DELETED: Final = b"\x08\x01"  # its type; a put is 0, which is left out


# Not frozen, and compared by identity: it is a place in the history, which moves on.
@attrs.define(eq=False)
class Watch:
    """One watch.

    Args:
        watch_id: the client's number for it.
        encoded_id: the same as the field of a response; empty for 0.
        key: the key, or the first of a range.
        end: the end of the range, which is not in it; None for no end, empty for a single key.
        next_revision: its client has all events of earlier revisions, or they wait to be sent.
            While the watch is in the hub, this is the first revision that it wants.
        take: called by the hub with a revision and its encoded events.
        lag: called by the hub with a revision: events from there on must be read from history.
        puts: it wants puts.
        deletes: it wants deletions.
        prev_kv: it wants what a key was before.
        fragment: large responses may be split.
        progress: it wants a sign of life from time to time.
        quiet: nothing was sent since the last sign of life.
    """

    watch_id: int
    encoded_id: bytes
    key: bytes
    end: bytes | None
    next_revision: int
    take: Callable[[Watch, int, list[bytes]], None]
    lag: Callable[[Watch, int], None]
    puts: bool = True
    deletes: bool = True
    prev_kv: bool = False
    fragment: bool = False
    progress: bool = False
    quiet: bool = True

    def covers(self, key: bytes) -> bool:
        """Whether a key is one of its keys."""
        if self.end == b"":
            return key == self.key
        return self.key <= key and (self.end is None or key < self.end)

    def wants(self, change: Change) -> bool:
        """Whether it wants a change of one of its keys."""
        return self.deletes if change.deleted else self.puts


def encode_event(change: Change, previous: bytes | None) -> bytes:
    """Encode an event, as the field of a response.

    Args:
        change: what happened.
        previous: what the key was before, encoded; None if it was nothing, or is not wanted.
    """
    event = field(_EVENT_KV, change.row)
    if change.deleted:
        event = _DELETED + event
    if previous is not None:
        event += field(_EVENT_PREV_KV, previous)
    return field(_EVENTS, event)
