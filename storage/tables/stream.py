"""The stream format of tables: the content of a snapshot.

::

    block    table      u8     1 records, 2 deadlines, 3 notes, 4 rows
             rows       u32    at most 4096
             bytes      u64    of all keys and values
             lengths    u32    of the first key, u32 of the first value, of the second key, ...
             content           keys and values, back to back

Blocks follow each other: all records, then all deadlines, all notes, all rows, each table in the
order of its keys. The stream is cut into pieces of at most a megabyte, at any byte. Rows are copied
as LMDB has them, with their own checksums. Integers are little endian.

Records that have expired and that their owner has not deleted yet are rows like others: all members
delete them at equal positions, and a member that loads the stream has to do so, too.

`view` reads tables into a stream, `loader` writes a stream into tables.
"""

from __future__ import annotations

import struct
from itertools import chain
from typing import TYPE_CHECKING, Final

from ...errors import StorageError
from .memtable import HASHED_BYTES
from .rows import decode_note_untrusted, decode_record_untrusted, hashed_key_untrusted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .memtable import Record

    Rows = list[tuple[bytes, bytes]]

RECORDS: Final = 1
DEADLINES: Final = 2
NOTES: Final = 3
ROWS: Final = 4
TABLES: Final = (RECORDS, DEADLINES, NOTES, ROWS)

BLOCK_BYTES: Final = 256 << 10
"""A block ends once it is this long. Smaller blocks cost more per row; of larger ones a reader has
to hold more in memory, and a view stays longer in one step."""
PIECE_BYTES: Final = 1 << 20
"""Longest piece. A snapshot file compresses and checks each piece by itself."""
MAX_ROWS: Final = 4096
"""Most rows of a block; a reader refuses more, before it reserves memory for their lengths."""

_BLOCK: Final = struct.Struct("<BIQ")
_LENGTH_BYTES: Final = 4


def encode_tables(tables: Sequence[Iterable[tuple[bytes, bytes]]]) -> Iterator[bytes]:
    """Yield the stream of tables that exist only as rows; for tools.

    Args:
        tables: what is in the tables of `TABLES`, in that order, encoded as in LMDB (see `rows`),
            each in the order of its stored keys.

    Raises:
        StorageError: the rows are out of order.
    """
    for table, all_rows in zip(TABLES, tables, strict=True):
        rows: Rows = []
        size, last = 0, b""
        for row in all_rows:
            if row[0] <= last:
                raise StorageError(f"row {row[0][:64]!r} is not behind {last[:64]!r}")
            last = row[0]
            rows.append(row)
            size += len(row[0]) + len(row[1])
            if size >= BLOCK_BYTES or len(rows) == MAX_ROWS:
                yield from pieces_of(table, rows)
                rows, size = [], 0
        if rows:
            yield from pieces_of(table, rows)


def pieces_of(table: int, rows: Rows) -> Iterator[bytes]:
    """Yield a block of rows, cut into pieces of at most `PIECE_BYTES`."""
    flat = list(chain.from_iterable(rows))
    lengths = list(map(len, flat))
    head = _BLOCK.pack(table, len(rows), sum(lengths))
    block = b"".join((head, struct.pack(f"<{len(lengths)}I", *lengths), *flat))
    for start in range(0, len(block), PIECE_BYTES):
        yield block[start : start + PIECE_BYTES]


def records_untrusted(pieces: Iterator[bytes]) -> Iterator[tuple[bytes, Record]]:
    """Yield the keys and records of a stream, in the order of their stored keys; for tools.

    Raises:
        StorageError: this is no stream of tables, or a record is damaged.
    """
    for table, rows in blocks_untrusted(pieces):
        for stored, data in rows if table == RECORDS else ():
            hashed = len(stored) == HASHED_BYTES
            key = hashed_key_untrusted(stored, data) if hashed else stored
            yield key, decode_record_untrusted(key, data)


def notes_untrusted(pieces: Iterator[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the notes of a stream; for tools.

    Raises:
        StorageError: this is no stream of tables, or a note is damaged.
    """
    for table, rows in blocks_untrusted(pieces):
        for key, data in rows if table == NOTES else ():
            yield key, decode_note_untrusted(key, data)


def rows_untrusted(pieces: Iterator[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of a stream that are not keys, in the order of theirs; for tools.

    Raises:
        StorageError: this is no stream of tables, or a row is damaged.
    """
    for table, rows in blocks_untrusted(pieces):
        for key, data in rows if table == ROWS else ():
            yield key, decode_note_untrusted(key, data)


def blocks_untrusted(pieces: Iterator[bytes]) -> Iterator[tuple[int, Rows]]:
    """Join the pieces, and yield table and rows of each block.

    Raises:
        StorageError: this is no stream of tables.
    """
    buffer = bytearray()  # holds at most one block and one piece

    def fill(count: int) -> None:
        # Never reserves what a length only promises: the stream may be damaged.
        while len(buffer) < count:
            piece = next(pieces, None)
            if piece is None:
                raise StorageError("the snapshot of the tables ends early")
            buffer.extend(piece)

    while True:
        # A stream may end only between two blocks.
        piece = next(pieces, None) if not buffer else b""
        if piece is None:
            return
        buffer += piece
        fill(_BLOCK.size)
        table, count, size = _BLOCK.unpack_from(buffer)
        if table not in TABLES or count > MAX_ROWS:
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
    flat: list[bytes] = []
    for length in lengths:
        flat.append(bytes(buffer[start : start + length]))
        start += length
    return list(zip(flat[::2], flat[1::2], strict=True))
