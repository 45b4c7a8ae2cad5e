"""Memtable, frozen memtable and disk, read as one: the keys of the tables.

The idea
--------
A log-structured merge tree of at most three layers. LMDB's B-tree takes the place of the lower
levels, so there is nothing to compact::

    put, delete -->  memtable         dict, changes since the last cut
    being flushed    frozen memtable  dict, never changed again
                     disk             LMDB, as of the last flush

A read takes the first layer that knows the key. A deleted key is an entry too (None), since it
hides what is below. `clear` puts an empty layer on top that hides everything below, so it costs the
same for any number of keys.

The naive way, and why it fails
-------------------------------
Writing each command to LMDB makes every `SET` wait for a disk, or lose the tables' consistency with
the log. Keeping all keys in a dict bounds the tables by memory, and a restart replays the whole
log.

Counting
--------
`put` does not look whether a key exists below: that would cost a disk read per new key. So the
number of keys is unknown until somebody asks. The first `len` looks up each key of the layers once.
From then on each batch does so for its own keys, until nobody has asked between two cuts. So only
owners that count pay, and only the first time all at once.

Pages
-----
A walk over all keys (`page`) takes some keys from each layer, merges them, and drops the deleted
ones. A layer that has more than it gave cuts the page at its last key: behind that key the merge
would be incomplete.

What we do not do
-----------------
This file knows no log and no flush. When layers move, and why, is in `tables`.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from .deadlines import Deadlines
from .memtable import ABSENT, ENTRY_BYTES, HASHED_BYTES, ROW_BYTES, Layer, Record, stored_key
from .notes import Notes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .disk import TablesDisk

_PAGE_BYTES: Final = 1 << 20
"""A page ends after this many bytes of long keys, which are up to 512 MiB each; a walk would
otherwise hold up the event loop."""


class LayeredTables:
    """Keys and records in up to three layers. Everything runs on the trio thread.

    Attributes:
        deadlines: which keys expire when; `put` and `delete` keep it. Keys that are due stay until
            their owner deletes them.
        notes: rows that are not keys; changed by `put_note` and `delete_note`.
    """

    def __init__(self, disk: TablesDisk) -> None:
        # All deadlines are read at the start: a key must expire even if nobody ever asks for it.
        self.deadlines = Deadlines(disk.deadlines())
        self._expiring = self.deadlines.by_key  # a shortcut for `put`, the hottest function
        self.notes = Notes(disk.notes())
        self._disk = disk
        self._layer = Layer()
        self._frozen: Layer | None = None
        self._unused: list[
            Layer | Deadlines
        ] = []  # to be freed step by step: all at once would stop the loop
        self._settled = True  # no change since the last batch boundary
        self._counted = False  # each batch checks its own keys, so that `len` stays known
        self._asked = False  # `len` was called since the last cut

    @property
    def memtable_bytes(self) -> int:
        """About how much memory the changes take that no flush has begun to write."""
        return self._layer.bytes

    @property
    def newest(self) -> dict[bytes, Record | None]:
        """What was put, or deleted (None), since the last cut. Read it only."""
        return self._layer.records

    def get(self, key: bytes) -> Record | None:
        """Return the record of a key, or None."""
        # ABSENT, since None already means "deleted here": the two must not be confused.
        record = self._layer.records.get(key, ABSENT)
        return self.get_below(key) if record is ABSENT else record

    def put(self, key: bytes, record: Record) -> None:
        """Set the record of a key."""
        # The hot path of every SET: one lookup, one store, and arithmetic. No layer below is read.
        layer = self._layer
        old = layer.records.get(key, ABSENT)
        layer.records[key] = record
        if old is ABSENT:
            layer.fresh.append(key)  # sorted later, a run at a time
            layer.present += 1
            layer.bytes += len(key) + len(record[0]) + ENTRY_BYTES
        elif old is None:
            layer.present += 1
            layer.bytes += len(record[0])
        else:
            layer.bytes += len(record[0]) - len(old[0])
        # A record without a deadline also ends the deadline that the key had.
        if record[1] or key in self._expiring:
            self.deadlines.set(key, record[1])
        self._settled = False

    def delete(self, key: bytes) -> None:
        """Delete a key; does nothing if there is none."""
        layer = self._layer
        old = layer.records.get(key, ABSENT)
        # A key below, or none at all: both get a None here. Looking would cost a read of the disk.
        if old is None:  # deleted already
            return
        if old is ABSENT:
            layer.fresh.append(key)
            layer.bytes += len(key) + ENTRY_BYTES
        else:
            layer.present -= 1
            layer.bytes -= len(old[0])
        layer.records[key] = (
            None  # not `del`: None hides the key below, whether there is one or not
        )
        if key in self._expiring:
            self.deadlines.set(key, 0)
        self._settled = False

    def clear(self) -> None:
        """Delete all keys."""
        old = self._layer
        self._unused += [old, self.deadlines]
        # Layers below stay: the frozen one is being written, and readers may be on the disk.
        self._layer, self.deadlines = Layer(cleared=True), Deadlines({})
        # Rows are no keys, so they stay.
        self._layer.rows, old.rows = old.rows, {}
        self._expiring = self.deadlines.by_key
        self._settled = False

    def put_note(self, key: bytes, row: bytes) -> None:
        """Set a note; its key has 1 to 64 bytes."""
        self.notes.put(key, row)
        self._settled = False  # notes belong to a log position as keys do

    def delete_note(self, key: bytes) -> None:
        """Delete a note that exists."""
        self.notes.delete(key)
        self._settled = False

    # --- rows: what is not a key, and too much to keep in memory as notes are

    def put_row(self, key: bytes, row: bytes) -> None:
        """Set a row; its key has 1 to 64 bytes.

        Nothing that counts, walks or clears keys sees rows. They belong to log positions as keys
        do.
        """
        layer = self._layer
        old = layer.rows.get(key)
        layer.rows[key] = row
        layer.bytes += len(row) - len(old) if old is not None else len(row) + ROW_BYTES
        self._settled = False

    def delete_row(self, key: bytes) -> None:
        """Delete a row; does nothing if there is none."""
        self._layer.rows[key] = None
        self._layer.bytes += ROW_BYTES
        self._settled = False

    def get_row(self, key: bytes) -> bytes | None:
        """Return a row, or None."""
        for layer in self._row_layers():
            row = layer.rows.get(key, ABSENT)
            if row is not ABSENT:
                return row
        return self._disk.get_row(key)

    def all_rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all rows in the order of their keys; nothing may change during that."""
        newer: dict[bytes, bytes | None] = {}
        for layer in reversed(self._row_layers()):
            newer |= layer.rows
        fresh = sorted(newer.items())
        # By the key alone, and the newer one first where both have it.
        last = b""
        for key, row in heapq.merge(fresh, self._disk.rows(), key=itemgetter(0)):
            if key != last and row is not None:
                yield key, row
            last = key

    def _row_layers(self) -> list[Layer]:
        """Return the layers, top first."""
        return [self._layer] if self._frozen is None else [self._layer, self._frozen]

    def get_below(self, key: bytes) -> Record | None:
        """Return the record of a key that is not in `newest`, or None."""
        if self._layer.cleared:  # by `clear`: nothing shows through
            return None
        if self._frozen is not None:
            record = self._frozen.records.get(key, ABSENT)
            if record is not ABSENT:
                return record  # None too: deleted there
            if self._frozen.cleared:
                return None
        # The only step that may wait for a disk, if the page is not in the page cache.
        return self._disk.get(key)

    # --- all keys

    def __len__(self) -> int:
        """Return the number of keys."""
        # From now on each batch checks its own keys, so the next call has little left to do.
        self._counted = self._asked = True
        layers = self._layers()
        self._check()
        # Keys of a layer minus those that are below it too, so each key counts once. `hits` counts
        # deleted keys as well: a deletion takes one away from what is below.
        on_disk = 0 if layers[-1].cleared else self._disk.count
        return on_disk + sum(layer.present - layer.hits for layer in layers)

    def _check(self) -> None:
        """Look up which keys of the layers are below them, where that is unknown."""
        layer, frozen = self._layer, self._frozen
        # Below a cleared layer there is nothing to look up, and `hits` stays 0.
        if frozen is not None and not frozen.cleared:
            _check(frozen, self._disk.has)
        if not layer.cleared:
            _check(layer, self._is_below)

    def _is_below(self, key: bytes) -> bool:
        """Say whether a key is in the frozen memtable or on disk; reads no value."""
        if self._frozen is not None:
            record = self._frozen.records.get(key, ABSENT)
            if record is not ABSENT:
                return record is not None
            if self._frozen.cleared:
                return False
        return self._disk.has(key)

    def page(self, after: bytes, limit: int) -> tuple[list[bytes], bytes | None]:
        """Return some of the keys behind a place.

        Args:
            after: a place, which is a stored key; empty for the beginning.
            limit: how many keys of each layer to look at. The page may have fewer keys, even none,
                before the end: deleted keys are left out, and long keys cut a page short.

        Returns:
            Keys in the order of the tables, and the place to go on from; None at the end.
        """
        layers = self._layers()
        pages = [layer.page(after, limit) for layer in layers]
        if not layers[-1].cleared:  # else everything on disk is hidden
            pages.append(self._disk.page(after, limit))
        # A layer with a cut has more keys behind it. Up to the lowest cut all layers are complete.
        cuts = [cut for _, cut in pages if cut is not None]
        place = min(cuts) if cuts else None
        stored = sorted(set[bytes]().union(*(part for part, _ in pages)))
        if place is not None:
            del stored[bisect_right(stored, place) :]
        keys: list[bytes] = []
        size = 0
        for one in stored:
            if len(one) != HASHED_BYTES:  # stored as it is
                key = one
            else:  # only a hash is stored: the key is in a layer, or next to the value on disk
                key = self._key_of(one)
                size += len(key)
            if _shows(key, layers):
                keys.append(key)
            # Not behind the last one: the page then ends there by itself, with its own place.
            if size > _PAGE_BYTES and one is not stored[-1]:
                return keys, one
        return keys, place

    def last_place(self) -> bytes:
        """Return a place with no key behind it and little room before it; empty without keys."""
        layers = self._layers()
        # The deleted keys count as well: the caller wants a place behind everything, not a key.
        on_disk = b"" if layers[-1].cleared else self._disk.last()
        return max(on_disk, *(layer.last() for layer in layers))

    def scan(self, after: bytes | None, limit: int) -> list[tuple[bytes, Record]]:
        """Return up to `limit` keys and records behind the key `after`, in the tables' order."""
        place = b"" if after is None else stored_key(after)
        keys: list[bytes] = []
        while len(keys) < limit:
            some, next_place = self.page(place, limit - len(keys))
            keys += some
            if next_place is None:
                break
            place = next_place
        return [(key, record) for key in keys if (record := self.get(key)) is not None]

    def _layers(self) -> list[Layer]:
        """Return the visible layers, top first; the disk shows below unless the last is cleared."""
        # A cleared layer hides the frozen one.
        if self._frozen is None or self._layer.cleared:
            return [self._layer]
        return [self._layer, self._frozen]

    def _key_of(self, stored: bytes) -> bytes:
        for layer in self._layers():
            if stored in layer.hashed:
                return layer.hashed[stored]
        # In no layer, so the page has it from the disk. Both reads are of one transaction.
        key = self._disk.key_of(stored)
        assert key is not None, "a page of the disk is of the same view"
        return key


def _shows(key: bytes, layers: list[Layer]) -> bool:
    """Say whether a key found in a layer or on disk is not deleted in a layer above."""
    # Top first: the topmost layer that knows the key decides.
    for layer in layers:
        record = layer.records.get(key, ABSENT)
        if record is not ABSENT:
            return record is not None
    return True  # on disk, and no layer knows it


def _check(layer: Layer, below: Callable[[bytes], bool]) -> None:
    """Count which of the layer's unchecked keys are below it, too."""
    # Dicts keep the order of insertion and keys are never removed: the new ones are the last ones.
    for key in islice(reversed(layer.records), len(layer.records) - layer.checked):
        layer.hits += below(key)
    layer.checked = len(layer.records)
