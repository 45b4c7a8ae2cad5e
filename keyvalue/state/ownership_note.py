"""What a partition knows of its slots, as it is stored: one note of the tables, in JSON.

The note is a part of the replicated state: it is durable with the keys, a snapshot has it, and the
same log gives the same bytes on every member. Sets of slots are texts such as ``0-4095,5000``.
"""

from functools import lru_cache
from typing import Final, cast

import msgspec

from ...errors import ConfigurationError, StorageError
from ..slots.ranges import Slots, parse_slots_untrusted, text_of
from .sessions import OTHER_NOTES

__all__ = [
    "SLOTS_NOTE",
    "Ended",
    "Frozen",
    "Gone",
    "Importing",
    "Owned",
    "OwnershipNote",
    "decode_note_untrusted",
    "encode_note",
]

SLOTS_NOTE: Final = OTHER_NOTES + b"slots"
"""Key of the note."""


class Owned(msgspec.Struct):
    """Slots that this partition owns, frozen ones too.

    Attributes:
        slots: the set.
        epoch: how often they have had a new owner.
        since: the revision from which on their changes are this partition's; 0 if it founded them.
        begun: the revision of the entry that took them over; 0 if it founded them.
    """

    slots: Slots
    epoch: int
    since: int
    begun: int = 0


class Frozen(msgspec.Struct):
    """Owned slots that nobody may read or write: a move is about to hand them over.

    Attributes:
        move: its number.
        slots: the set.
        target: the partition that is to own them.
        revision: of the log entry that froze them; no change of theirs is newer.
        now_ms: log time then.
        epoch: the highest of their epochs.
    """

    move: int
    slots: Slots
    target: int
    revision: int
    now_ms: int
    epoch: int


class Importing(msgspec.Struct):
    """Slots whose rows are copied to here.

    Attributes:
        move: its number.
        slots: the set.
        chunk: number of the last chunk that was applied.
        keys: rows that lie here now.
    """

    move: int
    slots: Slots
    chunk: int = 0
    keys: int = 0


class Gone(msgspec.Struct):
    """Slots that this partition has handed over.

    Attributes:
        slots: the set.
        target: the partition that has got them.
        epoch: theirs since then.
        since: see `Owned`.
        begun: see `Owned`.
        upto: the revision up to which their changes were this partition's.
    """

    slots: Slots
    target: int
    epoch: int
    since: int = 0
    begun: int = 0
    upto: int = 0


class Ended(msgspec.Struct):
    """A move that has ended here.

    Attributes:
        move: its number.
        word: how: owned, dropped, thawed or released.
        keys: with "owned": how many came.
    """

    move: int
    word: str
    keys: int = 0


class OwnershipNote(msgspec.Struct):
    """The whole state; lists are in an order that follows from the log.

    Attributes:
        founded: the partition has its first slots, which may be none.
        owned: by their first slots.
        frozen: by move.
        importing: by move.
        gone: whom slots went to, by their first slots.
        ended: the latest moves that have ended here, the oldest end first.
        ended_upto: every other move up to this one has ended, too.
        stale: slots whose rows are still to be deleted.
        stale_keys: how many of these rows there are.
        purging: those of the stale slots that the present purge will have cleaned.
        purged: hexadecimal place up to which that purge has walked.
        shift: revisions are this much above log positions.
        now_ms: the latest log time that came with slots; this partition's is never before it.
    """

    founded: bool = False
    owned: list[Owned] = msgspec.field(default_factory=list[Owned])
    frozen: list[Frozen] = msgspec.field(default_factory=list[Frozen])
    importing: list[Importing] = msgspec.field(default_factory=list[Importing])
    gone: list[Gone] = msgspec.field(default_factory=list[Gone])
    ended: list[Ended] = msgspec.field(default_factory=list[Ended])
    ended_upto: int = 0
    stale: Slots = 0
    stale_keys: int = 0
    purging: Slots = 0
    purged: str = ""
    shift: int = 0
    now_ms: int = 0


_text_of: Final = lru_cache(maxsize=256)(text_of)
"""Each chunk writes the note again, and the sets in it are the same."""

_SETS: Final = frozenset(("slots", "stale", "purging"))


def encode_note(note: OwnershipNote) -> bytes:
    """Encode the state."""
    return msgspec.json.encode(as_facts(note))


def as_facts(note: msgspec.Struct) -> dict[str, object]:
    """Return a part of the state for JSON: sets of slots as texts."""
    found: dict[str, object] = {}
    for name in note.__struct_fields__:
        value = getattr(note, name)
        if name in _SETS:
            value = _text_of(value)
        elif isinstance(value, list):
            value = [as_facts(each) for each in cast("list[msgspec.Struct]", value)]
        found[name] = value
    return found


def decode_note_untrusted(row: bytes) -> OwnershipNote:
    """Decode the state.

    Raises:
        StorageError: it is not one that `encode_note` has written.
    """
    try:
        return msgspec.convert(_with_sets(msgspec.json.decode(row)), OwnershipNote)
    except (msgspec.MsgspecError, ConfigurationError) as error:
        # Refused: without its slots a partition would answer for what others own.
        raise StorageError(f"the note of the partition's slots can't be read: {error}") from error


def _with_sets(value: object) -> object:
    """Return decoded JSON with the texts of sets parsed."""
    if isinstance(value, dict):
        pairs = cast("dict[str, object]", value).items()
        return {name: _with_set(name, each) for name, each in pairs}
    if isinstance(value, list):
        return [_with_sets(each) for each in cast("list[object]", value)]
    return value


def _with_set(name: str, value: object) -> object:
    if name in _SETS and isinstance(value, str):
        return parse_slots_untrusted(value)
    return _with_sets(value)
