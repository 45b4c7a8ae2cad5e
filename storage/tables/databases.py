"""The five sub-databases of the tables' LMDB environment.

::

    records     stored key (see `memtable`)      a record, see `rows`
    deadlines   stored key                       when the key expires, for keys that do
    notes       a note's key, 1 to 64 bytes      a note, see `notes`
    rows        a row's key, 1 to 64 bytes       a row, encoded as a note is
    meta        b"identity", b"applied"          sealed rows: whose tables these are, and the log
                                                 position and time up to which they are complete
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import lmdb

TABLES_MAX_DBS: Final = 5
"""Sub-databases of the tables. With a smaller number LMDB refuses to open the last of them."""


class TablesDatabases:
    """Handles of the sub-databases of open tables."""

    def __init__(self, raw: lmdb.Environment, *, create: bool = False) -> None:
        self.records = raw.open_db(b"records", create=create)
        self.deadlines = raw.open_db(b"deadlines", create=create)
        self.meta = raw.open_db(b"meta", create=create)
        # Tables of an earlier version have no notes or rows; a reader of such tables fails here.
        create = create or not raw.flags()["readonly"]
        self.notes = raw.open_db(b"notes", create=create)
        self.rows = raw.open_db(b"rows", create=create)

    @property
    def streamed(self) -> tuple[lmdb._Database, ...]:
        """The sub-databases that a snapshot holds, in its order."""
        return self.records, self.deadlines, self.notes, self.rows
