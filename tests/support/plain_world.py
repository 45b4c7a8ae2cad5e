"""Entries applied by `apply_sets` alone, over a memtable of two keys."""

from quorate.keyvalue.native.plain import apply_sets
from quorate.storage import Entry, EntryKind, encode_batch
from quorate.storage.tables.memtable import Record

COMMAND, TRANSACTION, STRING = EntryKind.COMMAND, 2, 1
OK = b"+OK\r\n"
MUCH = 1 << 40
KEPT: dict[bytes, Record | None] = {b"held": (b"old", 0, 3, 1), b"gone": None}

Done = tuple[list[bytes], int, int, int, list[bytes]]
Outcome = tuple[Done, dict[bytes, Record | None], list[bytes]]


def batch_of(entries: list[Entry]) -> bytes:
    return encode_batch(entries, term=1, position=64, timestamp_ms=2, commit_position=0)


def outcome(
    entries: list[Entry] | bytes,
    room: int = MUCH,
    expiring: dict[bytes, int] | None = None,
    start: int = 0,
) -> Outcome:
    """Apply entries over `KEPT`: what is returned, the records, the new keys."""
    records, fresh = dict(KEPT), list[bytes]()
    wanted, due = (COMMAND, TRANSACTION), expiring or {}
    done = apply_sets(entries, start, *wanted, 100, STRING, room, OK, records, fresh, due)
    return done, records, fresh
