"""The keys and their history: an index in memory, over rows in the tables.

Each version of a key is one row: under its revision and number there stands the encoded `KeyValue`,
just as a reply or an event shows it. A deletion is a row too: a `KeyValue` without a version. The
index knows where the versions of a key lie. So a current read is two lookups, and so is a read at
an old revision, a `prev_kv`, or the history for a slow watcher. etcd does the same.

The index is rebuilt from the rows when the tables are opened. Nothing else is stored about keys:
not the revision, since compaction never removes the last row, and not which keys a lease has.

A request that fails half-way is undone by `rollback`, so no request is checked twice.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from heapq import merge
from itertools import count as count_from
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from ..messages import rpc_pb2 as rpc
from .change import Change
from .places import ROW_KEY_BYTES, first_place, place_of, revision_of, row_key, row_place
from .sorted_keys import sorted_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .rows import StateTables

__all__ = ["ALL", "Keys", "Version"]

Version: TypeAlias = tuple[int, int, int, int]
"""Place, create_revision, version and lease of the current version of a key. A tuple, since a store
may have millions."""

ALL: Final = b"\0"
"""As the end of a range: there is none."""

_NO_PLACES: Final = array("q")


class Keys:
    """All keys of the keyspace.

    Args:
        tables: they hold the rows.

    Attributes:
        live: current versions of the keys that exist.
        dead: where the deletion of a key lies that does not exist, until compaction removes it.
        revision: of the last request that has changed something; 1 in the beginning.
        leased: the keys of each lease that has any.
        changes: of the request under way, which has the revision after `revision`.
    """

    def __init__(self, tables: StateTables) -> None:
        self._tables = tables
        self.live = sorted_keys(dict[bytes, Version]())
        self.dead = sorted_keys(dict[bytes, int]())
        self._older: dict[bytes, array[int]] = {}  # ascending; of keys with more than one version
        self.revision = 1
        self.leased: dict[int, set[bytes]] = {}
        self.changes: list[Change] = []
        self._kv = rpc.KeyValue()  # for `put`: to set all fields is cheaper than to make one
        self._before: list[Version | int | None] = []  # of each change, for `rollback`

    def load(self, compacted: int) -> None:
        """Rebuild the index from the rows."""
        live: dict[bytes, Version] = {}
        dead: dict[bytes, int] = {}
        self._older = {}
        self.leased = {}
        self.revision = max(1, compacted)
        kv = rpc.KeyValue()
        for found, row in self._tables.all_rows():
            if len(found) != ROW_KEY_BYTES:  # no row of a version
                continue
            kv.ParseFromString(row)
            key = kv.key
            place = row_place(found, deleted=not kv.version)
            before = live.pop(key, None)
            older = before[0] if before is not None else dead.pop(key, None)
            if older is not None:
                self._older.setdefault(key, array("q")).append(older)
            if kv.version:
                live[key] = (place, kv.create_revision, kv.version, kv.lease)
            else:
                dead[key] = place
            self.revision = max(self.revision, revision_of(place))
        for key, version in live.items():
            if version[3]:
                self.leased.setdefault(version[3], set()).add(key)
        self.live, self.dead = sorted_keys(live), sorted_keys(dead)

    # --- reading

    def span(self, key: bytes, range_end: bytes) -> Iterator[bytes]:
        """Yield the existing keys of a range in order; nothing may change during that."""
        if not range_end:
            return iter((key,) if key in self.live else ())
        if range_end == ALL:
            return self.live.irange(key, None, (True, False))
        return self.live.irange(key, range_end, (True, False)) if key < range_end else iter(())

    def count(self, key: bytes, range_end: bytes) -> int:
        """Return how many existing keys a range has."""
        if not range_end:
            return int(key in self.live)
        first = self.live.bisect_left(key)
        last = len(self.live) if range_end == ALL else self.live.bisect_left(range_end)
        return max(last - first, 0)

    def candidates(self, key: bytes, range_end: bytes) -> Iterator[bytes]:
        """Yield all keys of a range in order that may have existed at an earlier revision."""
        if not range_end:
            return iter((key,))
        end = None if range_end == ALL else range_end
        if end is not None and key >= end:
            return iter(())
        both = (True, False)
        return merge(self.live.irange(key, end, both), self.dead.irange(key, end, both))

    def place_at(self, key: bytes, revision: int) -> int | None:
        """Return where the version of a key lies that was current at a revision, or None."""
        end = first_place(revision + 1)
        version = self.live.get(key)
        place = version[0] if version is not None else self.dead.get(key)
        if place is None:
            return None
        if place >= end:
            older = self._older.get(key, _NO_PLACES)
            index = bisect_left(older, end)
            if not index:
                return None
            place = older[index - 1]
        return None if place & 1 else place

    def places_behind(self, key: bytes, place: int, end: int) -> Iterator[tuple[bytes, int]]:
        """Yield keys, and where their versions before `end` lie, from behind one of them on."""
        for one in self.candidates(key, ALL):
            older = self._older.get(one, _NO_PLACES)
            first = bisect_right(older, place) if one == key else 0
            for index in range(first, len(older)):
                if older[index] >= end:
                    break
                yield one, older[index]
            version = self.live.get(one)
            newest = version[0] if version is not None else self.dead[one]
            if newest < end and (one != key or newest > place):
                yield one, newest

    def row(self, place: int) -> bytes:
        """Return the encoded `KeyValue` of a version that is there."""
        row = self._tables.get_row(row_key(place))
        assert row is not None, f"no row at revision {revision_of(place)}"
        return row

    def changes_at(self, revision: int, first: int = 0, most: int | None = None) -> list[Change]:
        """Return changes of a revision from the rows, in order.

        Args:
            revision: not compacted.
            first: number of the first change to return.
            most: how many to return at most; None for all.
        """
        return list(islice(self._changes_from(revision, first), most))

    def _changes_from(self, revision: int, first: int) -> Iterator[Change]:
        kv = rpc.KeyValue()
        for sub in count_from(first):
            row = self._tables.get_row(row_key(place_of(revision, sub, deleted=False)))
            if row is None:
                return
            kv.ParseFromString(row)
            yield Change(kv.key, not kv.version, row, revision, sub, kv.version == 1)

    def changes_since(self, revision: int) -> Iterator[Change]:
        """Yield the changes after a revision that is not compacted, the present request's too."""
        for later in range(revision + 1, self.revision + 2):
            yield from self._changes_from(later, 0)

    def before(self, change: Change) -> bytes | None:
        """Return the encoded `KeyValue` that a change has replaced; None if there was none."""
        place = self.predecessor(change.key, change.revision, change.sub)
        if place is None or place & 1:
            return None
        return self._tables.get_row(row_key(place))

    def predecessor(self, key: bytes, revision: int, sub: int) -> int | None:
        """Return where the version before a change lies; None if there is none."""
        older = self._older.get(key, _NO_PLACES)
        index = bisect_left(older, place_of(revision, sub, deleted=False))
        return older[index - 1] if index else None

    # --- writing

    def put(self, key: bytes, value: bytes, lease: int) -> None:
        """Put a key, as a part of the request under way."""
        revision, sub = self.revision + 1, len(self.changes)
        place = place_of(revision, sub, deleted=False)
        old = self.live.get(key)
        if old is not None:
            self._supersede(key, old[0])
            version = (place, old[1], old[2] + 1, lease)
            if old[3] != lease:
                self._move(key, old[3], lease)
            self._before.append(old)
        else:
            tombstone = self.dead.pop(key, None)
            if tombstone is not None:
                self._supersede(key, tombstone)
            version = (place, revision, 1, lease)
            if lease:
                self._move(key, 0, lease)
            self._before.append(tombstone)
        kv = self._kv
        kv.key, kv.value, kv.lease = key, value, lease
        kv.create_revision, kv.mod_revision, kv.version = version[1], revision, version[2]
        row = kv.SerializeToString()
        self._tables.put_row(row_key(place), row)
        self.live[key] = version
        self.changes.append(Change(key, False, row, revision, sub, old is None))

    def delete(self, key: bytes) -> None:
        """Delete a key that exists, as a part of the request under way."""
        revision, sub = self.revision + 1, len(self.changes)
        place = place_of(revision, sub, deleted=True)
        old = self.live[key]
        del self.live[key]
        self._supersede(key, old[0])
        self.dead[key] = place
        if old[3]:
            self._move(key, old[3], 0)
        row = rpc.KeyValue(key=key, mod_revision=revision).SerializeToString()
        self._tables.put_row(row_key(place), row)
        self._before.append(old)
        self.changes.append(Change(key, True, row, revision, sub, False))

    def commit(self) -> Sequence[Change]:
        """End the request under way; return its changes. With any, they are the next revision."""
        changes = self.changes
        if changes:
            self.revision += 1
            self.changes = []
            self._before.clear()
        return changes

    def rollback(self) -> None:
        """Undo the request under way."""
        for change, old in zip(reversed(self.changes), reversed(self._before), strict=True):
            self._undo(change, old)
        self.changes = []
        self._before.clear()

    def _undo(self, change: Change, old: Version | int | None) -> None:
        key = change.key
        self._tables.delete_row(row_key(place_of(change.revision, change.sub, deleted=False)))
        now = self.live.pop(key, None)
        if now is None:
            del self.dead[key]
        lease = old[3] if isinstance(old, tuple) else 0
        if (put_with := now[3] if now is not None else 0) != lease:
            self._move(key, put_with, lease)
        if old is None:
            return
        self._older[key].pop()
        if not self._older[key]:
            del self._older[key]
        if isinstance(old, tuple):
            self.live[key] = old
        else:
            self.dead[key] = old

    def _supersede(self, key: bytes, place: int) -> None:
        older = self._older.get(key)
        if older is None:
            older = self._older[key] = array("q")
        older.append(place)

    def _move(self, key: bytes, old: int, new: int) -> None:
        """Take a key from one lease to another; 0 is none."""
        if old:
            keys = self.leased[old]
            keys.discard(key)
            if not keys:
                del self.leased[old]
        if new:
            self.leased.setdefault(new, set()).add(key)

    # --- compaction

    def is_superseded(self, key: bytes, place: int, end: int) -> bool:
        """Say whether a version of a key has a later one before `end`, a place."""
        later = self._older.get(key, _NO_PLACES)
        index = bisect_right(later, place)
        current = self.live.get(key)
        newest = current[0] if current is not None else self.dead.get(key)
        following = later[index] if index < len(later) else newest
        return following is not None and place < following < end

    def drop_superseded(self, change: Change, most: int) -> int:
        """Remove the versions of a key that are older than a change; a deletion goes itself.

        Returns:
            How many there were to remove; only `most` of them are removed.
        """
        key = change.key
        place = place_of(change.revision, change.sub, deleted=change.deleted)
        older = self._older.get(key)
        index = 0
        if older is not None:
            index = (bisect_right if change.deleted else bisect_left)(older, place)
            for gone in older[: min(index, most)]:
                self._tables.delete_row(row_key(gone))
            del older[: min(index, most)]
            if not older:
                del self._older[key]
        if index <= most and change.deleted and self.dead.get(key) == place:
            del self.dead[key]
            self._tables.delete_row(row_key(place))
        return index
