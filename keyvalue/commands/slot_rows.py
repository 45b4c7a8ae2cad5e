"""QUORATE.SLOTS ROWS and CHANGES: how the rows of slots are read for another partition.

Rows are read a page at a time while clients go on writing. So a copy is that of no moment, and the
changes since its beginning are read behind it: each row then is as it was at the last change that
was read. Expired rows are copied as well, since the target must be what the source is; only a
change says that they have gone.

Both are queries, answered by one member from what it has in memory: what fits into a page, and
whether changes are still there, differs between members.
"""

from typing import Final

from ...storage.tables.memtable import HASHED_BYTES, Record, stored_key
from ..limits import LOOKUP_WORK, MAX_REPLY_BYTES, MAX_SCAN_COUNT, work_of_bytes
from ..protocol import resp
from ..slots.hashing import key_slot
from ..slots.ranges import Slots
from ..state.changes import DELETED
from ..state.store import KeyStore

__all__ = ["NO_ROW", "PAGE_BYTES", "PAGE_ROWS", "changes", "rows"]

PAGE_BYTES: Final = 256 << 10
"""Bytes of rows in one reply, unless a single one is larger: they become one entry of the target's
log. Larger, and clients there wait behind it; smaller, and a move takes more entries."""

PAGE_ROWS: Final = 5000
"""Changes that one reply looks at: some milliseconds of a processor that also serves clients."""

NO_ROW: Final = b"-"
"""Tag of a row that is not there any more."""

_ROW_BYTES: Final = 64  # about what a row takes besides key and value
_LOG_ENTRY: Final = resp.error("ERR rows and changes of slots are read by queries only")
_LOST: Final = resp.error(
    "LOST not all changes after this position are here any more: begin the move again"
)
_BAD_CURSOR: Final = resp.error("ERR invalid cursor")


def rows(store: KeyStore, slots: Slots, cursor: bytes, count: int) -> bytes:
    """Return the reply to ROWS: where to go on, empty at the end, and rows.

    Args:
        store: the rows.
        slots: whose rows are wanted.
        cursor: empty at the beginning.
        count: keys of all slots to look at, about.
    """
    if store.applying:
        return _LOG_ENTRY
    if len(cursor) > HASHED_BYTES:
        return _BAD_CURSOR
    keys, place = store.tables.page(cursor, min(max(count, 1), MAX_SCAN_COUNT))
    following = place or b""
    found: list[bytes] = []
    size, last = 0, cursor
    for key in keys:
        record = store.tables.get(key) if slots >> key_slot(key) & 1 else None
        if record is not None:
            size += len(key) + len(record[0]) + _ROW_BYTES
            if found and size > PAGE_BYTES:
                following = last
                break
            store.left -= LOOKUP_WORK + work_of_bytes(len(record[0]))
            found.append(_row(key, record))
        last = stored_key(key)
    return resp.array([resp.bulk(following), *found])


def changes(store: KeyStore, slots: Slots, after: int) -> bytes:
    """Return the reply to CHANGES: how far they go, and the changed rows as they are then.

    Args:
        store: the rows.
        slots: whose changes are wanted.
        after: the position of the last reply; -1 keeps changes from now on, as long as somebody
            asks for them.
    """
    recent = store.changes
    if store.applying:
        return _LOG_ENTRY
    if after < 0:
        recent.keep_awhile()
        return resp.array([resp.integer(recent.position)])
    if not recent.start <= after <= recent.position:
        return _LOST
    recent.keep_awhile()
    page = recent.newest(after, lambda key: bool(slots >> key_slot(key) & 1), PAGE_ROWS, PAGE_BYTES)
    if page is None:
        return _LOST
    found, upto = page
    # An entry is read whole. One that no reply can hold is read as rows, from the beginning.
    if sum(len(key) + len(record[0]) + _ROW_BYTES for key, record in found) > MAX_REPLY_BYTES:
        return _LOST
    return resp.array([resp.integer(upto), *(_row(key, record) for key, record in found)])


def _row(key: bytes, record: Record) -> bytes:
    value, expires_at_ms, revision, tag = record
    shown = b"%d" % tag if tag < DELETED else NO_ROW
    numbers = resp.integer(expires_at_ms), resp.integer(revision)
    return resp.array([resp.bulk(key), resp.bulk(value), *numbers, resp.bulk(shown)])
