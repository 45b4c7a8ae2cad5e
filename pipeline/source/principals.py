"""The names of the users that the log names by numbers.

They are part of the key-value store's state. So they come from the newest snapshot, and from the
changes of users in the log behind it: one pass over that part of the log, in one task.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from ...errors import StorageError
from ...keyvalue.access.names_in_log import NamesInLog
from ...keyvalue.access.principals import shown
from ...storage import decode_entries_untrusted
from .columns import arrow_schema

if TYPE_CHECKING:
    from .logs import Log

__all__ = ["names_in", "principals_table"]


def names_in(log: Log) -> NamesInLog:
    """Return the names of the numbers in a log; fewer if it is pruned and has no snapshot.

    Raises:
        StorageError, TransportError: the log cannot be read.
    """
    row = log.facts.snapshot_at(log.facts.committed)
    position, notes = 0, dict[bytes, bytes]()
    if row is not None:
        position = row.position
        with suppress(StorageError):  # it is of another service, whose numbers have no names here
            notes = dict(log.notes(row))
    names = NamesInLog(notes)
    # Changes in a pruned part are not known. Numbers behind it might be given to wrong names.
    if position >= log.facts.start:
        for batch in log.batches(position, log.facts.committed):
            for entry in decode_entries_untrusted(batch):
                names.take(entry)
    return names


def principals_table(log: Log, names: list[str]) -> pa.RecordBatch:
    """Return the rows of the table "principals"; `default`, which has 0, is the first."""
    schema = arrow_schema("principals", names)
    rows = [(number, shown(number, name)) for number, name in names_in(log)]
    columns = {
        "principal": [number for number, _ in rows],
        "name": [name for _, name in rows],
        "member": [log.facts.member_id] * len(rows),
        "partition": [log.facts.partition] * len(rows),
    }
    made = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(made, schema=schema)
