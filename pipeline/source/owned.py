"""Which slots a partition owned at each place of its log, and since which epoch.

A *place* is the position of a batch plus the number of an entry in it. Places rise from entry to
entry, since each entry takes more than a byte.

The driver reads the steps of moves once when it plans a query (:class:`OwnedSlots`). Each task gets
what was owned where its range begins, and the steps inside.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import attrs
import numpy as np

from ...errors import WireError
from ...keyvalue.protocol.payload import PayloadParser
from ...keyvalue.slots.hashing import SLOTS
from ...keyvalue.slots.history import PartitionLog
from ...keyvalue.slots.ranges import Slots, ranges_of
from ...keyvalue.state.ownership_note import SLOTS_NOTE, as_facts, decode_note_untrusted
from .slots import slots_entries

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from ...keyvalue.slots.history import Step
    from ...storage import SnapshotRow
    from .reading import Log

    Numbers = npt.NDArray[np.int64]

__all__ = ["Change", "OwnedSlots", "epochs_at", "owned_in_snapshot"]

_NOT_OWNED: Final = 0
_PARSER: Final = PayloadParser()


@attrs.frozen
class Change:
    """From a place on, the partition owns slots since an epoch; 0 if it does not own them."""

    place: int
    slots: Slots
    epoch: int


class OwnedSlots:
    """Follows the slots of a partition along its log.

    Args:
        log: of the partition.
        begin: a position; what was owned is known from there on, and may be known earlier. If the
            log is pruned and no snapshot reaches back to there, it is known from the first one on.

    Raises:
        StorageError, TransportError: the log can't be read.
    """

    def __init__(self, log: Log, begin: int) -> None:
        facts = log.facts
        assert facts.partition is not None
        row = facts.snapshot_at(begin)
        if row is None and facts.start:
            row = next((one for one in facts.snapshots if one.position >= facts.start), None)
        self._changes: list[Change] = []
        self._upto = row.position if row else facts.start
        self._steps: PartitionLog | None = None  # nothing is known of a pruned log
        if row is not None or not facts.start:
            self._steps = _steps_from(log, row)
        if row is not None and self._steps is not None:
            self._note(self._steps.earlier, row.position)

    def between(self, log: Log, begin: int, end: int) -> tuple[Change, ...]:
        """Return what is owned at `begin`, and the changes up to `end`.

        Raises:
            StorageError, TransportError: the log can't be read.
        """
        self._read(log, end)
        owned: dict[int, Slots] = {}
        inside: list[Change] = []
        for change in self._changes:
            if change.place > begin:
                inside.append(change)
                continue
            owned = {epoch: slots & ~change.slots for epoch, slots in owned.items()}
            owned[change.epoch] = owned.get(change.epoch, 0) | change.slots
        at_first = [
            Change(begin, slots, epoch) for epoch, slots in owned.items() if epoch and slots
        ]
        return (*at_first, *(change for change in inside if change.place < end))

    def _read(self, log: Log, end: int) -> None:
        if self._steps is None or end <= self._upto:
            return
        for header, index, entry in slots_entries(log, self._upto, end):
            known = len(self._steps.steps)
            with suppress(WireError):  # the state machine refuses it, and changes nothing
                for words in _PARSER.parse_untrusted(entry.payload):
                    self._steps.apply_untrusted(words, header.position, index, header.timestamp_ms)
            self._note(self._steps.steps[known:], header.position + index)
        self._upto = end

    def _note(self, steps: Iterable[Step], place: int) -> None:
        for step in steps:
            if step.kind in ("found", "own"):
                self._changes.append(Change(place, step.slots, step.epoch))
            elif step.kind == "release":
                self._changes.append(Change(place, step.slots, _NOT_OWNED))


def _steps_from(log: Log, row: SnapshotRow | None) -> PartitionLog:
    """Begin to read steps, behind a snapshot or at the beginning of the log."""
    assert log.facts.partition is not None
    if row is None:
        return PartitionLog(log.facts.partition)
    note = dict(log.notes(row)).get(SLOTS_NOTE, b"{}")
    return PartitionLog(log.facts.partition, as_facts(decode_note_untrusted(note)))


def owned_in_snapshot(log: Log, row: SnapshotRow) -> tuple[Change, ...]:
    """Return what a partition owned where a snapshot was taken; nothing for any other log.

    Raises:
        StorageError, TransportError: the snapshot can't be read.
    """
    if log.facts.partition is None:
        return ()
    steps = _steps_from(log, row).earlier
    return tuple(Change(0, each.slots, each.epoch) for each in steps if each.kind == "own")


def epochs_at(changes: Sequence[Change], slots: Numbers, places: Numbers) -> Numbers:
    """Return the epoch of each slot at its place; 0 if the partition did not own it.

    Args:
        changes: ascending by place.
        slots: numbers of slots.
        places: of the entries that name them, ascending.
    """
    table, found = np.zeros(SLOTS, np.int64), np.zeros(len(slots), np.int64)
    begin = 0
    for change in changes:
        end = int(np.searchsorted(places, change.place))
        found[begin:end] = table[slots[begin:end]]
        begin = max(begin, end)
        for first, last in ranges_of(change.slots):
            table[first : last + 1] = change.epoch
    found[begin:] = table[slots[begin:]]
    return found
