"""One state of the tables, read while they go on: from the disk to the stream of a snapshot.

A view is one LMDB read transaction, begun at the moment of the cut. Flushes go on during that,
which has two prices:

- LMDB reuses no page that the view may still see, so the file grows by whatever is flushed until
  the view ends.
- LMDB can't change the size of its map during a read transaction. A flush that needs a larger map
  ends the view, and with it the snapshot. `TablesDisk.open_view` therefore makes the map large
  enough first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...errors import StorageError
from ..lmdb.lock import Lock
from .memtable import HASHED_BYTES
from .rows import (
    decode_deadline_untrusted,
    decode_note_untrusted,
    decode_record_untrusted,
    hashed_key_untrusted,
)
from .stream import BLOCK_BYTES, DEADLINES, MAX_ROWS, NOTES, RECORDS, ROWS, TABLES, pieces_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import lmdb

    from ..lmdb.environment import Transaction
    from .stream import Rows


class TablesView:
    """One state of the tables, however they go on; read by one thread at a time.

    Args:
        txn: the read transaction, which belongs to the view from now on.
        databases: those of `TABLES`, in that order.
        report_damage: notes that the tables are damaged, and returns the error to raise.
    """

    def __init__(
        self,
        txn: Transaction,
        databases: tuple[lmdb._Database, ...],
        report_damage: Callable[[Exception], StorageError],
    ) -> None:
        self._report_damage = report_damage
        self._txn: Transaction | None = txn
        self._databases = databases
        # Two threads use the transaction: the one that reads the stream, and the event loop in
        # `close`.
        self._reading = Lock()

    def close(self) -> None:
        """End the view; idempotent.

        Called by the event loop while another thread may be reading, whose step it waits for: LMDB
        ends the process if a transaction is aborted under a reader.
        """
        with self._reading:
            if self._txn is not None:
                self._txn.abort()
                self._txn = None

    def pieces(self) -> Iterator[bytes]:
        """Yield the stream, and end the view.

        Raises:
            StorageError: the view was ended by `close`.
            DamagedTablesError: a row is damaged. It gets into no snapshot.
        """
        try:
            for table, database in zip(TABLES, self._databases, strict=True):
                rows: Rows = self._read(database, b"")
                while rows:
                    # Checked before it leaves: a damaged row in a snapshot would spread to other
                    # members.
                    self._check(table, rows)
                    yield from pieces_of(table, rows)
                    # By the last key, not by a cursor that stays: the event loop may end the view
                    # between two steps.
                    rows = self._read(database, rows[-1][0])
        finally:
            # Also if the reader gives up early: as long as the view is open, LMDB reuses none of
            # its pages.
            self.close()

    def _read(self, database: lmdb._Database, after: bytes) -> Rows:
        rows: Rows = []
        size = 0
        # Held for one block only. `close` waits for it on the event loop's thread.
        with self._reading:
            if self._txn is None:
                raise StorageError("the view of the tables was ended, since their file had to grow")
            cursor = self._txn.cursor(database)
            if not cursor.set_range(after + b"\0"):
                return rows
            for row in cursor.iternext():
                rows.append(row)
                size += len(row[0]) + len(row[1])
                if size >= BLOCK_BYTES or len(rows) == MAX_ROWS:
                    break
        return rows

    def _check(self, table: int, rows: Rows) -> None:
        # Outside the lock, for which the event loop may be waiting in `close`.
        check = _CHECKS[table]
        try:
            for stored, data in rows:
                check(stored, data)
        except StorageError as error:
            raise self._report_damage(error) from error


def _check_record(stored: bytes, data: bytes) -> None:
    key = hashed_key_untrusted(stored, data) if len(stored) == HASHED_BYTES else stored
    decode_record_untrusted(key, data)


_CHECKS: Final[dict[int, Callable[[bytes, bytes], object]]] = {
    RECORDS: _check_record,
    DEADLINES: decode_deadline_untrusted,
    NOTES: decode_note_untrusted,
    ROWS: decode_note_untrusted,
}
