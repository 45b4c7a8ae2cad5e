"""The memtable, the frozen memtable and the disk as one: the part of the tables that has keys.

Which layers there are and when they move is the business of :mod:`.tables`.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import islice
from typing import TYPE_CHECKING, Final

from .deadlines import Deadlines
from .memtable import ABSENT, ENTRY_BYTES, HASHED_BYTES, Layer, Record, stored_key
from .notes import Notes

if TYPE_CHECKING:
    from collections.abc import Callable

    from .disk import TablesDisk

_PAGE_BYTES: Final = 1 << 20


class LayeredTables:
    """Keys and records in up to three layers. Everything runs on the trio thread.

    Attributes:
        deadlines: which keys expire when; kept by `put` and `delete`. The keys that are due stay
            until they are deleted.
        notes: rows that are no keys; changed by `put_note` and `delete_note`.
    """

    def __init__(self, disk: TablesDisk) -> None:
        self.deadlines = Deadlines(disk.deadlines())
        self._expiring = self.deadlines.by_key  # for `put`, where each step counts
        self.notes = Notes(disk.notes())
        self._disk = disk
        self._layer = Layer()
        self._frozen: Layer | None = None
        self._unused: list[Layer | Deadlines] = []  # their memory is still to be freed
        self._settled = True  # no change since the last batch boundary
        self._counted = False  # each batch looks after the count of its keys
        self._asked = False  # somebody has asked for it since the last cut

    @property
    def memtable_bytes(self) -> int:
        """About how much memory the changes take that no flush has begun to write."""
        return self._layer.bytes

    @property
    def newest(self) -> dict[bytes, Record | None]:
        """What was put or, with None, deleted since the last flush began; not to be changed."""
        return self._layer.records

    def get(self, key: bytes) -> Record | None:
        """Return the record of a key, or None."""
        record = self._layer.records.get(key, ABSENT)
        return self.get_below(key) if record is ABSENT else record

    def put(self, key: bytes, record: Record) -> None:
        """Set the record of a key."""
        layer = self._layer
        old = layer.records.get(key, ABSENT)
        layer.records[key] = record
        if old is ABSENT:
            layer.fresh.append(key)
            layer.present += 1
            layer.bytes += len(key) + len(record[0]) + ENTRY_BYTES
        elif old is None:
            layer.present += 1
            layer.bytes += len(record[0])
        else:
            layer.bytes += len(record[0]) - len(old[0])
        if record[1] or key in self._expiring:
            self.deadlines.set(key, record[1])
        self._settled = False

    def delete(self, key: bytes) -> None:
        """Delete a key; nothing happens if there is none."""
        layer = self._layer
        old = layer.records.get(key, ABSENT)
        if old is None:
            return
        if old is ABSENT:
            layer.fresh.append(key)
            layer.bytes += len(key) + ENTRY_BYTES
        else:
            layer.present -= 1
            layer.bytes -= len(old[0])
        layer.records[key] = None
        if key in self._expiring:
            self.deadlines.set(key, 0)
        self._settled = False

    def clear(self) -> None:
        """Delete all keys."""
        self._unused += [self._layer, self.deadlines]
        self._layer, self.deadlines = Layer(cleared=True), Deadlines({})
        self._expiring = self.deadlines.by_key
        self._settled = False

    def put_note(self, key: bytes, row: bytes) -> None:
        """Set a note; its key has 1 to 64 bytes."""
        self.notes.put(key, row)
        self._settled = False

    def delete_note(self, key: bytes) -> None:
        """Delete a note that is there."""
        self.notes.delete(key)
        self._settled = False

    def get_below(self, key: bytes) -> Record | None:
        """Return the record of a key that is not in `newest`, or None."""
        if self._layer.cleared:
            return None
        if self._frozen is not None:
            record = self._frozen.records.get(key, ABSENT)
            if record is not ABSENT:
                return record
            if self._frozen.cleared:
                return None
        return self._disk.get(key)

    # --- all keys

    def __len__(self) -> int:
        """Count the keys."""
        self._counted = self._asked = True
        layers = self._layers()
        self._check()
        on_disk = 0 if layers[-1].cleared else self._disk.count
        return on_disk + sum(layer.present - layer.hits for layer in layers)

    def _check(self) -> None:
        """Look which keys of the layers are also below them, as far as that is not known."""
        layer, frozen = self._layer, self._frozen
        if frozen is not None and not frozen.cleared:
            _check(frozen, self._disk.has)
        if not layer.cleared:
            _check(layer, self._is_below)

    def _is_below(self, key: bytes) -> bool:
        """Say whether a key is in the frozen memtable or on disk; no value is read for that."""
        if self._frozen is not None:
            record = self._frozen.records.get(key, ABSENT)
            if record is not ABSENT:
                return record is not None
            if self._frozen.cleared:
                return False
        return self._disk.has(key)

    def page(self, after: bytes, limit: int) -> tuple[list[bytes], bytes | None]:
        """Return some of the keys above a place, and the place up to which that is all of them.

        Args:
            after: a place, that is a stored key; empty for the beginning.
            limit: how many keys of each layer to look at. There may be fewer, even none, before
                the end: long keys cut a page short.

        Returns:
            The keys in the order of the tables, and where to go on; None at the end.
        """
        layers = self._layers()
        pages = [layer.page(after, limit) for layer in layers]
        if not layers[-1].cleared:
            pages.append(self._disk.page(after, limit))
        cuts = [cut for _, cut in pages if cut is not None]
        place = min(cuts) if cuts else None
        stored = sorted(set[bytes]().union(*(found for found, _ in pages)))
        if place is not None:
            del stored[bisect_right(stored, place) :]
        keys: list[bytes] = []
        size = 0
        for one in stored:
            if len(one) != HASHED_BYTES:
                key = one
            else:
                key = self._key_of(one)
                size += len(key)
            if _shows(key, layers):
                keys.append(key)
            if size > _PAGE_BYTES and one is not stored[-1]:
                return keys, one
        return keys, place

    def last_place(self) -> bytes:
        """Return a place with no key above it, and hardly any room below; empty without keys."""
        layers = self._layers()
        on_disk = b"" if layers[-1].cleared else self._disk.last()
        return max(on_disk, *(layer.last() for layer in layers))

    def scan(self, after: bytes | None, limit: int) -> list[tuple[bytes, Record]]:
        """Return up to `limit` keys and records above the key `after`, in the tables' order."""
        place = b"" if after is None else stored_key(after)
        found: list[bytes] = []
        while len(found) < limit:
            keys, next_place = self.page(place, limit - len(found))
            found += keys
            if next_place is None:
                break
            place = next_place
        return [(key, record) for key in found if (record := self.get(key)) is not None]

    def _layers(self) -> list[Layer]:
        """Return the layers that show, the topmost first; the disk shows below an uncleared one."""
        if self._frozen is None or self._layer.cleared:
            return [self._layer]
        return [self._layer, self._frozen]

    def _key_of(self, stored: bytes) -> bytes:
        for layer in self._layers():
            if stored in layer.hashed:
                return layer.hashed[stored]
        key = self._disk.key_of(stored)
        assert key is not None, "a page of the disk is of the same view"
        return key


def _shows(key: bytes, layers: list[Layer]) -> bool:
    """Say whether a key that is in a layer or on the disk is deleted in none above that."""
    for layer in layers:
        record = layer.records.get(key, ABSENT)
        if record is not ABSENT:
            return record is not None
    return True


def _check(layer: Layer, below: Callable[[bytes], bool]) -> None:
    """Look which of the layer's keys are below it, too."""
    for key in islice(reversed(layer.records), len(layer.records) - layer.checked):
        layer.hits += below(key)
    layer.checked = len(layer.records)
