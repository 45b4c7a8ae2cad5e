"""Changes as RESP3 pushes: how a member sends them to clients, and how our own client reads them.

A client that has sent ``QUORATE.WATCH prefix`` gets these pushes, each an array of its own:

- ``quorate.watch id position [kind key value expires_at_ms ...]``: all changes of one log entry.
  Kinds are `set`, `deleted`, `expired` and `flushed`; the value is null unless a key was set.
- ``quorate.watch.part id position [kind key value expires_at_ms ...]``: some changes of a large
  entry. Others follow, and `quorate.watch` has the last ones.
- ``quorate.watch.progress id position``: there was nothing else up to this position.
- ``quorate.watch.lost id after oldest text``: the watch is over, because changes after `after` are
  gone.
- ``quorate.watch.ended id after text``: the watch is over here; nothing is missing up to `after`.
  The text begins with an error code.

Parts
    The changes of an entry are in one push up to `PART_BYTES`. An entry may have hundreds of
    megabytes: a short command may append a byte to each of a thousand large values. In one push
    they would hold up the member's event loop, and no client could bound what it takes. A part is
    no place to resume from: a client that has lost its connection begins before the entry again.
"""

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

import attrs

from ...errors import WireError
from ..limits import AT_ONCE_BYTES
from ..protocol import resp
from .changes import Change, ChangeKind

__all__ = [
    "BEYOND",
    "MAX_ENTRY_BYTES",
    "PART_BYTES",
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

PART_BYTES: Final = AT_ONCE_BYTES
"""A push of changes ends with the change that reaches this size. Smaller, and more entries take
several pushes; larger, and encoding one holds up other tasks."""

MAX_ENTRY_BYTES: Final = 1 << 30
"""Keys and values of one entry that a client gathers. One request writes at most 0.4 GiB (a test
computes it). Smaller, and a watch could never get past such an entry; larger, and a peer that is
no member could fill more of the memory."""

BEYOND: Final = "BEYOND"
"""Code of the error reply to a watch after a position that the log has not reached."""

_CHANGES: Final = b"quorate.watch"
_PART: Final = b"quorate.watch.part"
_PROGRESS: Final = b"quorate.watch.progress"
_LOST: Final = b"quorate.watch.lost"
_ENDED: Final = b"quorate.watch.ended"
_FIELDS: Final = 4
_HEADER_BYTES: Final = 64  # about what a change takes besides key and value
_NULL: Final = resp.NULL[1]
_KIND: Final = {kind: resp.bulk(kind.value.encode()) for kind in ChangeKind}
_KIND_OF: Final = {kind.value.encode(): kind for kind in ChangeKind}


@attrs.frozen
class Changes:
    """Changes of one log entry; not empty. Others of the entry follow if the last has `more`."""

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


def encode_entries(watch: int, changes: Iterable[Change]) -> Iterator[tuple[int | None, bytes]]:
    """Yield pushes, and with each the position up to which nothing is missing then.

    The position is None if more of the entry follows.

    Args:
        watch: id of the watch.
        changes: of whole entries.
    """
    parts: list[bytes] = []
    size = 0
    for position, kind, key, value, expires_at_ms, more in changes:
        shown = _NULL if value is None else resp.bulk(value)
        parts += _KIND[kind], resp.bulk(key), shown, resp.integer(expires_at_ms)
        size += _HEADER_BYTES + len(key) + len(shown)
        if more and size < PART_BYTES:
            continue
        name = _PART if more else _CHANGES
        push = _push(name, resp.integer(watch), resp.integer(position), *parts)
        parts, size = [], 0
        yield None if more else position, push


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
        case [b"quorate.watch.part", int(watch), int(position), *fields] if fields:
            return Changes(watch, _parse_changes_untrusted(position, fields, part=True))
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


def _parse_changes_untrusted(
    position: int, fields: list[resp.Reply], *, part: bool = False
) -> list[Change]:
    if len(fields) % _FIELDS:
        raise WireError(f"a push of a watch has {len(fields)} fields, expected 4 for each change")
    changes: list[Change] = []
    for at in range(0, len(fields), _FIELDS):
        match fields[at : at + _FIELDS]:
            case [bytes(kind), bytes(key), bytes() | None as value, int(expires_at_ms)] if (
                kind in _KIND_OF
            ):
                more = part or at + _FIELDS < len(fields)
                changes.append(Change(position, _KIND_OF[kind], key, value, expires_at_ms, more))
            case change:
                raise WireError(f"a change in a push is malformed: {change!r:.200}")
    return changes


def _push(*parts: bytes) -> bytes:
    name, *values = parts
    return b"".join([b">%d\r\n" % len(parts), resp.bulk(name), *values])
