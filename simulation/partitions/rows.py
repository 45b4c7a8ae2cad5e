"""The rows of slots in one member's tables, before and behind a move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from ...keyvalue.slots.hashing import key_slot

if TYPE_CHECKING:
    from ...keyvalue.slots.ranges import Slots
    from ...storage.tables.memtable import Record
    from ..store import Store

Rows: TypeAlias = "dict[bytes, Record]"

PAGE_KEYS: Final = 64


def rows_of(store: Store, slots: Slots) -> Rows:
    """Return the rows that a store has of some slots, also those that have expired."""
    found: Rows = {}
    place: bytes | None = b""
    while place is not None:
        keys, place = store.tables.page(place, PAGE_KEYS)
        for key in keys:
            record = store.tables.get(key)
            if record is not None and slots >> key_slot(key) & 1:
                found[key] = record
    return found


def differences(before: Rows, after: Rows, now_ms: int) -> list[str]:
    """Say in which rows two tables differ, in words; rows that have expired do not count."""
    words: list[str] = []
    for key in sorted({*before, *after}):
        one, other = before.get(key), after.get(key)
        if one != other and not (_over(one, now_ms) and _over(other, now_ms)):
            words.append(f"{key!r}: {one} became {other}")
    return words


def _over(record: Record | None, now_ms: int) -> bool:
    """Whether there is no row for a client."""
    return record is None or 0 < record[1] <= now_ms
