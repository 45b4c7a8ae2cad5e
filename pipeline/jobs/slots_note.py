"""What a partition knew of its slots at a point of its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...errors import PrunedError
from ...keyvalue.protocol.payload import ETCD
from ...keyvalue.slots.cluster_map import META, partition_in
from ...keyvalue.slots.history import SLOTS_COMMAND
from ...keyvalue.state.ownership_note import SLOTS_NOTE
from ..source.logs import open_log
from ..source.slots import slots_entries
from .replay import Machine, pieces

if TYPE_CHECKING:
    from ...storage import BatchHeader, Entry
    from ..source.logs import Origin

__all__ = ["note_at", "take_steps"]

_HEAD_BYTES: Final = 64


def note_at(origin: Origin, position: int) -> bytes | None:
    """Return the note of a partition's slots at a log position, for `Machine`.

    Returns:
        Empty if nothing was known; None for a log that is of no partition.

    Raises:
        PrunedError: the log is pruned, and there is no snapshot up to there.
        StorageError, TransportError: the log can't be read.
    """
    with open_log(origin) as log:
        if partition_in(log.facts.cluster) in (None, META):
            return None
        begin, note = 0, b""
        if (row := log.facts.snapshot_at(position)) is not None:
            begin, note = row.position, dict(log.notes(row)).get(SLOTS_NOTE, b"")
        elif log.facts.start:
            raise PrunedError(
                f"{log.facts.whose}: the log begins at position {log.facts.start}, and there is no "
                f"snapshot up to {position}: read from a copy that still has it"
            )
        machine = Machine(note)
        for header, index, entry in slots_entries(log, begin, position):
            take_steps(machine, header, index, entry)
        return machine.note


def take_steps(machine: Machine, header: BatchHeader, index: int, entry: Entry) -> None:
    """Let a partition that has no rows take the steps of moves that an entry has."""
    if entry.flags & ETCD or SLOTS_COMMAND not in entry.payload[:_HEAD_BYTES].upper():
        return
    for piece in pieces(entry.payload, entry.flags, 0):
        if piece.everywhere:  # the others are rows
            machine.apply(
                piece.payload,
                piece.flags,
                term=header.term,
                position=header.position,
                index=index,
                timestamp_ms=header.timestamp_ms,
            )
