"""Tables as a stream of bytes and back: what a snapshot of them holds.

The stream is made of blocks, each of up to a few hundred rows of one sub-database, in the order of
their keys::

    u8   1 for records, 2 for deadlines, 3 for notes
    u32  rows
    u64  bytes of all keys and values
    u32  length of the first key, u32 of the first value, of the second key, ...
         keys and values, back to back

It is cut into pieces of at most a megabyte anywhere. Rows are copied as LMDB has them. Records that
have expired are left out, for members remove them at different times: so equal states give equal
streams.

Reading takes one read transaction, begun in the moment of the cut, while flushes go on. LMDB can't
reuse the pages that it sees, so the file grows by what is flushed meanwhile; and it forbids the map
to change, so a flush that needs a larger map ends the view, and with it the snapshot. The map is
made large enough for that not to happen: see `TablesDisk.open_view`.
"""

from __future__ import annotations

import enum
import struct
from itertools import chain
from typing import TYPE_CHECKING, Final

from ...errors import StorageError
from ..writing.group_commit import Lock
from .memtable import HASHED_BYTES
from .rows import (
    decode_deadline_untrusted,
    decode_note_untrusted,
    decode_record_untrusted,
    hashed_key_untrusted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import lmdb

    from ..lmdb.environment import Transaction
    from .disk import TablesDisk
    from .memtable import Record

    Rows = list[tuple[bytes, bytes]]

_BLOCK: Final = struct.Struct("<BIQ")
_LENGTH_BYTES: Final = 4
_MAX_ROWS: Final = 4096
BLOCK_BYTES: Final = 256 << 10
PIECE_BYTES: Final = 1 << 20
_STEP_BYTES: Final = 16 << 20
_RECORDS: Final = 1
_TABLES: Final = (_RECORDS, 2, 3)
_OF_KEYS: Final = (_RECORDS, 2)


class TablesView:
    """A view of tables that stays as it is; read on any one thread at a time."""

    def __init__(
        self,
        txn: Transaction,
        databases: tuple[lmdb._Database, ...],
        left_out: frozenset[bytes],
        found_damaged: Callable[[Exception], StorageError],
    ) -> None:
        self._found_damaged = found_damaged
        self._txn: Transaction | None = txn
        self._databases = databases
        self._left_out = left_out
        self._reading = Lock()

    def close(self) -> None:
        """End it; waits for a step of a reader on another thread. Idempotent."""
        with self._reading:
            if self._txn is not None:
                self._txn.abort()
                self._txn = None

    def pieces(self) -> Iterator[bytes]:
        """Yield the stream, and end the view.

        Raises:
            StorageError: the view was ended.
            DamagedTablesError: a row is damaged: no snapshot has it.
        """
        try:
            for table, database in zip(_TABLES, self._databases, strict=True):
                left_out = self._left_out if table in _OF_KEYS else frozenset[bytes]()
                rows: Rows = self._read(database, b"", left_out)
                while rows:
                    self._check(table, rows)
                    yield from _cut(_block(table, rows))
                    rows = self._read(database, rows[-1][0], left_out)
        finally:
            self.close()

    def _read(self, database: lmdb._Database, after: bytes, left_out: frozenset[bytes]) -> Rows:
        rows: Rows = []
        size = 0
        with self._reading:
            if self._txn is None:
                raise StorageError("the view of the tables was ended: their file had to grow")
            cursor = self._txn.cursor(database)
            if not cursor.set_range(after + b"\0"):
                return rows
            for row in cursor.iternext():
                if row[0] in left_out:
                    continue
                rows.append(row)
                size += len(row[0]) + len(row[1])
                if size >= BLOCK_BYTES or len(rows) == _MAX_ROWS:
                    break
        return rows

    def _check(self, table: int, rows: Rows) -> None:
        check = _CHECKS[table]
        try:
            for stored, data in rows:
                check(stored, data)
        except StorageError as error:
            raise self._found_damaged(error) from error


def _check_record(stored: bytes, data: bytes) -> None:
    key = hashed_key_untrusted(stored, data) if len(stored) == HASHED_BYTES else stored
    decode_record_untrusted(key, data)


_CHECKS: Final[dict[int, Callable[[bytes, bytes], object]]] = {
    _RECORDS: _check_record,
    2: decode_deadline_untrusted,
    3: decode_note_untrusted,
}


def encode_tables(tables: Sequence[Iterable[tuple[bytes, bytes]]]) -> Iterator[bytes]:
    """Yield the stream of tables that are nowhere yet, as if they were; for tools.

    Args:
        tables: the rows of records, deadlines and notes as LMDB would have them (`tables_rows`), in
            the order of their stored keys.

    Raises:
        StorageError: they are not in this order.
    """
    for table, all_rows in zip(_TABLES, tables, strict=True):
        rows: Rows = []
        size, last = 0, b""
        for row in all_rows:
            if row[0] <= last:
                raise StorageError(f"row {row[0][:64]!r} does not come behind {last[:64]!r}")
            last = row[0]
            rows.append(row)
            size += len(row[0]) + len(row[1])
            if size >= BLOCK_BYTES or len(rows) == _MAX_ROWS:
                yield from _cut(_block(table, rows))
                rows, size = [], 0
        if rows:
            yield from _cut(_block(table, rows))


def _block(table: int, rows: Rows) -> bytes:
    flat = list(chain.from_iterable(rows))
    lengths = list(map(len, flat))
    head = _BLOCK.pack(table, len(rows), sum(lengths))
    return b"".join((head, struct.pack(f"<{len(lengths)}I", *lengths), *flat))


def _cut(block: bytes) -> Iterator[bytes]:
    for start in range(0, len(block), PIECE_BYTES):
        yield block[start : start + PIECE_BYTES]


class Step(enum.Enum):
    """What became of a step of loading."""

    MORE = 0
    FULL = 1
    DONE = 2


class TablesLoader:
    """Replaces tables by what a stream says, in steps, each a transaction.

    The first one says that the tables are incomplete, the last one up to where they are complete.
    Whoever opens them in between finds none.
    """

    def __init__(
        self, disk: TablesDisk, pieces: Iterator[bytes], position: int, timestamp_ms: int
    ) -> None:
        self._disk = disk
        self._blocks = _blocks_untrusted(pieces)
        self._applied = position, timestamp_ms
        self._begun = False
        self._rows: tuple[Rows, ...] = tuple([] for _ in _TABLES)

    def step(self) -> Step:
        """Write some more; if the map is full it must grow, and the step be repeated.

        Raises:
            StorageError: the stream is damaged, or the disk failed.
        """
        if not self._begun:
            if not self._disk.clear():
                return Step.FULL
            self._begun = True
        size = sum(len(key) + len(value) for rows in self._rows for key, value in rows)
        done = False
        while size < _STEP_BYTES and not done:
            block = next(self._blocks, None)
            if block is None:
                done = True
            else:
                table, rows = block
                self._rows[table - 1].extend(rows)
                size += sum(map(len, chain.from_iterable(rows)))
        if not self._disk.load(self._rows, self._applied if done else None):
            return Step.FULL
        self._rows = tuple([] for _ in _TABLES)
        return Step.DONE if done else Step.MORE


def records_untrusted(pieces: Iterator[bytes]) -> Iterator[tuple[bytes, Record]]:
    """Yield the keys and records of a stream, in the order of the tables; for tools.

    Raises:
        StorageError: the stream is not one of tables, or a record of it is damaged.
    """
    for table, rows in _blocks_untrusted(pieces):
        for stored, data in rows if table == _RECORDS else ():
            hashed = len(stored) == HASHED_BYTES
            key = hashed_key_untrusted(stored, data) if hashed else stored
            yield key, decode_record_untrusted(key, data)


def notes_untrusted(pieces: Iterator[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the notes of a stream; for tools.

    Raises:
        StorageError: the stream is not one of tables, or a note of it is damaged.
    """
    for table, rows in _blocks_untrusted(pieces):
        for key, data in rows if table == _TABLES[2] else ():
            yield key, decode_note_untrusted(key, data)


def _blocks_untrusted(pieces: Iterator[bytes]) -> Iterator[tuple[int, Rows]]:
    """Put the blocks together again.

    Raises:
        StorageError: the stream is not one of tables.
    """
    buffer = bytearray()

    def fill(count: int) -> None:
        while len(buffer) < count:
            piece = next(pieces, None)
            if piece is None:
                raise StorageError("the snapshot of the tables ends early")
            buffer.extend(piece)

    while True:
        piece = next(pieces, None) if not buffer else b""
        if piece is None:
            return
        buffer += piece
        fill(_BLOCK.size)
        table, count, size = _BLOCK.unpack_from(buffer)
        if table not in _TABLES or count > _MAX_ROWS:
            raise StorageError(f"the snapshot of the tables has a block {table} of {count} rows")
        start = _BLOCK.size + 2 * _LENGTH_BYTES * count
        fill(start)
        lengths = struct.unpack_from(f"<{2 * count}I", buffer, _BLOCK.size)
        if sum(lengths) != size:
            raise StorageError(f"the snapshot of the tables has {size} bytes, not {sum(lengths)}")
        yield table, _rows(buffer, fill, start, lengths)
        del buffer[: start + size]


def _rows(
    buffer: bytearray, fill: Callable[[int], None], start: int, lengths: tuple[int, ...]
) -> Rows:
    fill(start + sum(lengths))
    found: list[bytes] = []
    for length in lengths:
        found.append(bytes(buffer[start : start + length]))
        start += length
    return list(zip(found[::2], found[1::2], strict=True))
