"""Changes as RESP3 pushes: how a member sends them to clients, and how our own client reads them.

A client that has sent ``QUORATE.WATCH prefix`` gets these pushes, each an array of its own:

- ``quorate.watch id position [kind key value expires_at_ms ...]``: all changes of one log entry.
  Kinds are `set`, `deleted`, `expired` and `flushed`; the value is null unless a key was set.
- ``quorate.watch.progress id position``: there was nothing else up to this position.
- ``quorate.watch.lost id after oldest text``: the watch is over, because changes after `after` are
  gone.
- ``quorate.watch.ended id after text``: the watch is over here; nothing is missing up to `after`.
  The text begins with an error code.

All changes of an entry are in one push, so that a client never stores a position in the middle.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final, TypeAlias

import attrs

from ...errors import WireError
from ..protocol import resp
from .changes import Change, ChangeKind

__all__ = [
    "Changes",
    "Ended",
    "Lost",
    "Progress",
    "WatchPush",
    "encode_ended",
    "encode_entries",
    "encode_lost",
    "encode_progress",
    "parse_push_untrusted",
]

_CHANGES: Final = b"quorate.watch"
_PROGRESS: Final = b"quorate.watch.progress"
_LOST: Final = b"quorate.watch.lost"
_ENDED: Final = b"quorate.watch.ended"
_FIELDS: Final = 4
_NULL: Final = resp.NULL[1]
_KIND: Final = {kind: resp.bulk(kind.value.encode()) for kind in ChangeKind}
_KIND_OF: Final = {kind.value.encode(): kind for kind in ChangeKind}


@attrs.frozen
class Changes:
    """All changes of one log entry; not empty."""

    watch: int
    changes: list[Change]


@attrs.frozen
class Progress:
    """There was nothing else up to this position."""

    watch: int
    position: int


@attrs.frozen
class Lost:
    """The watch is over: changes after `after` are gone, those after `oldest` are kept."""

    watch: int
    after: int
    oldest: int
    text: str


@attrs.frozen
class Ended:
    """The watch is over, with nothing missing up to `after`; the text begins with an error code."""

    watch: int
    after: int
    text: str


WatchPush: TypeAlias = Changes | Progress | Lost | Ended


def encode_entries(watch: int, changes: Iterable[Change]) -> Iterator[tuple[int, bytes]]:
    """Yield the position of each log entry, and its push.

    Args:
        watch: id of the watch.
        changes: of whole entries.
    """
    for position, entry in groupby(changes, lambda change: change.position):
        parts: list[bytes] = []
        for _, kind, key, value, expires_at_ms, _ in entry:
            shown = _NULL if value is None else resp.bulk(value)
            parts += _KIND[kind], resp.bulk(key), shown, resp.integer(expires_at_ms)
        yield position, _push(_CHANGES, resp.integer(watch), resp.integer(position), *parts)


def encode_progress(watch: int, position: int) -> bytes:
    """Encode `Progress`."""
    return _push(_PROGRESS, resp.integer(watch), resp.integer(position))


def encode_lost(watch: int, after: int, oldest: int, text: str) -> bytes:
    """Encode `Lost`."""
    numbers = map(resp.integer, (watch, after, oldest))
    return _push(_LOST, *numbers, resp.bulk(text.encode()))


def encode_ended(watch: int, after: int, text: str) -> bytes:
    """Encode `Ended`."""
    return _push(_ENDED, resp.integer(watch), resp.integer(after), resp.bulk(text.encode()))


def parse_push_untrusted(push: list[resp.Reply]) -> WatchPush | None:
    """Parse a push; None if it is of another kind.

    Raises:
        WireError: it is malformed.
    """
    match push:
        case [b"quorate.watch", int(watch), int(position), *fields] if fields:
            return Changes(watch, _parse_changes_untrusted(position, fields))
        case [b"quorate.watch.progress", int(watch), int(position)]:
            return Progress(watch, position)
        case [b"quorate.watch.lost", int(watch), int(after), int(oldest), bytes(text)]:
            return Lost(watch, after, oldest, text.decode("utf-8", "replace"))
        case [b"quorate.watch.ended", int(watch), int(after), bytes(text)]:
            return Ended(watch, after, text.decode("utf-8", "replace"))
        case [bytes(name), *_] if name.startswith(_CHANGES):
            raise WireError(f"a push of a watch is malformed: {push!r:.200}")
        case _:
            return None


def _parse_changes_untrusted(position: int, fields: list[resp.Reply]) -> list[Change]:
    if len(fields) % _FIELDS:
        raise WireError(f"a push of a watch has {len(fields)} fields, expected 4 for each change")
    changes: list[Change] = []
    for at in range(0, len(fields), _FIELDS):
        match fields[at : at + _FIELDS]:
            case [bytes(kind), bytes(key), bytes() | None as value, int(expires_at_ms)] if (
                kind in _KIND_OF
            ):
                more = at + _FIELDS < len(fields)
                changes.append(Change(position, _KIND_OF[kind], key, value, expires_at_ms, more))
            case change:
                raise WireError(f"a change in a push is malformed: {change!r:.200}")
    return changes


def _push(*parts: bytes) -> bytes:
    name, *values = parts
    return b"".join([b">%d\r\n" % len(parts), resp.bulk(name), *values])
