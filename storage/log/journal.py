"""The journal in front of the log table: the last moments of the log, durable by one sync.

LMDB syncs twice for each commit, its pages and then its root, and writes a page of each of its
trees. So what is only appended is written here first: a file of fixed size, filled with zeros when
it is made, so that a write changes no metadata of the file system; one synchronous write for each
group of batches. Every other change, and every append for which there is no room left, commits to
LMDB what the journal holds together with itself, in the order of the calls, and the journal begins
anew.

::

    group     magic       4s    b"QJ01"
              checksum    u32   CRC-32C of the 40 bytes below
              salt        u64   drawn when the journal was made anew, and told to nobody
              generation  u64   of the journal
              term        u64   of the last batch
              end         u64   position behind the last batch
              length      u64   bytes of the batches
              batches     whole, back to back, each with its own checksum
              zeros up to a multiple of 4096

All integers are little endian. Generation and salt are in a row of LMDB, with the size of the file;
the generation rises in the very transaction that carries the journal's batches over. So what an
older generation has left in the file is void from that moment, and no batch is ever taken twice;
and what clients have put into values is never taken for a group, since they can't know the salt.
Opening for writing carries over what is there. The first append makes the file (it goes to LMDB
itself, with the row): from then on a file that is missing is damage.

Groups are written one after the other, each only when the one before is durable. So when the power
goes, the last one may be torn, and only the last: it was not acknowledged, and counts as never
written. A group that is not whole though another one of its generation lies behind it is damage;
so is a newer generation than LMDB's, which comes from an LMDB that was put back.

The file begins with a group of LMDB's generation or, if that has none yet, of the one before: a
generation ends only once it has a group, and in front of the first one of a run an empty group is
put there. What begins otherwise is an older file beside a newer LMDB, and damage, for the right one
may have had more. Of a copy made so late that it begins as it should nobody can tell.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final

import attrs

from ...errors import DamagedRecordError, WireError
from ..lmdb.checksum import crc32c
from ..lmdb.environment import sync_directory, told
from ..lmdb.private import open_private
from ..lmdb.sealed_rows import seal, unpack_untrusted, unseal_untrusted
from ..writing.journal_writer import Span, open_synced
from .batch import HEADER_BYTES, decode_header_untrusted
from .log_table import Record, check_record_untrusted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..lmdb.environment import Transaction
    from .state import Databases

JOURNAL_FILE: Final = "journal"
JOURNAL_BYTES: Final = 2 << 20
"""So much log is carried over to LMDB at once, during which nothing else is written."""
MAX_JOURNAL_BYTES: Final = 64 << 20
"""A longer file is damaged; no more than that is read of it."""
GROUP_BYTES: Final = 128 << 10
"""More than that goes to LMDB at once."""
JOURNAL_KEY: Final = b"journal"

_BLOCK_BYTES: Final = 4096
# Where writes go through the page cache, that keeps a file in folios as large as what it was made
# in, and each write goes through all blocks of its folio: with one of 2 MiB a group took a quarter
# more processor time.
_PIECE_BYTES: Final = 32 << 10
_MAGIC: Final = b"QJ01"
_START: Final = struct.Struct("<4sI")
_FACTS: Final = struct.Struct("<QQQQQ")
_HEAD_BYTES: Final = _START.size + _FACTS.size
_ROW: Final = struct.Struct("<QQQ")
_NEW_FILE: Final = "journal.new"


@attrs.frozen
class JournalRow:
    """What LMDB says of the journal.

    Args:
        generation: all older ones are carried over.
        salt: of its groups.
        size: of its file in bytes, 0 if it holds nothing and need not be there.
    """

    generation: int = 0
    salt: int = 0
    size: int = 0


class Journal:
    """The journal of an open store, written by its one writer.

    Args:
        directory: of the store.
        row: what LMDB says of it.
        salt: for its groups, an unsigned 64-bit number that nobody can guess.
        size: of the file that it will make, in bytes.

    Attributes:
        row: what LMDB says of it.
    """

    def __init__(self, directory: Path, row: JournalRow, *, salt: int, size: int) -> None:
        assert size <= MAX_JOURNAL_BYTES, f"a journal of {size} bytes could not be read again"
        self.row = row
        self._salt = salt
        self._directory = directory
        self._size = size - size % _BLOCK_BYTES
        self._file = -1
        self._end = 0

    def has_room(self, length: int) -> bool:
        """Whether batches of so many bytes altogether are to be one more group.

        Of many at once LMDB's commit costs hardly more than to write them, and here they would be
        written twice.
        """
        return length <= GROUP_BYTES and self._end + _blocks(_HEAD_BYTES + length) <= self._size

    def group(self, records: Sequence[Record]) -> Span:
        """Return what is to be written for a group, for which there is room."""
        last = records[-1]
        batches = [record.batch for record in records]
        return Span(self._file, self._end, _encode(self.row, last.term, last.end, batches))

    def grow(self, group: Span, error: int) -> None:
        """Count a group as written, durably, unless there was an error.

        Raises:
            StoreFullError, StorageError: the disk failed, by that errno.
        """
        if error:
            with told(self._directory):
                raise OSError(error, os.strerror(error))
        self._end += len(group.data)

    def made(self) -> JournalRow:
        """Make sure of the file, durably; return the row with which it is begun.

        LMDB does not need it then, so its first group may be overwritten.

        Raises:
            StoreFullError, StorageError: the disk failed.
        """
        if self._file < 0:
            before = attrs.evolve(self.row, salt=self._salt)
            with told(self._directory):
                self._file = _open(self._directory, self._size, _encode(before, 0, 0, ()))
        return JournalRow(self.row.generation + 1, self._salt, self._size)

    def emptied(self) -> JournalRow:
        """Return the row that says that LMDB has all that is in it."""
        return attrs.evolve(self.row, generation=self.row.generation + 1)

    def begin(self, row: JournalRow) -> None:
        """Begin anew: LMDB has all that is in it, durably, and this row."""
        self.row, self._end = row, 0

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def load_row(txn: Transaction, dbs: Databases) -> JournalRow:
    """Read what LMDB says of the journal.

    Raises:
        StorageError: the row is damaged.
    """
    value = txn.get(JOURNAL_KEY, db=dbs.meta)
    if value is None:
        return JournalRow()
    return JournalRow(*unpack_untrusted(_ROW, JOURNAL_KEY, unseal_untrusted(JOURNAL_KEY, value)))


def save_row(txn: Transaction, dbs: Databases, row: JournalRow) -> None:
    """Write what LMDB says of the journal."""
    body = _ROW.pack(row.generation, row.salt, row.size)
    txn.put(JOURNAL_KEY, seal(JOURNAL_KEY, body), db=dbs.meta)


@attrs.frozen
class Tail:
    """What a journal adds to the log.

    Args:
        records: batches that continue it, checked.
        damage: why what lies behind them can't be had though it was acknowledged, if so.
        lost: term and end of the log with what is damaged.
        newer: it is of a newer generation than LMDB, which was put back, with all that is in it.
    """

    records: tuple[Record, ...] = ()
    damage: DamagedRecordError | None = None
    lost: tuple[int, int] = (-1, 0)
    newer: bool = False


@attrs.frozen
class Held:
    """What a journal holds and LMDB does not, as long as LMDB says that generation.

    Args:
        generation: of the journal.
        records: its batches; more may be added behind them, none is taken away.
    """

    generation: int = 0
    records: Sequence[Record] = ()


@attrs.frozen
class Found:
    """The bytes of a journal's file: taken before LMDB is looked at, and judged by what that says.

    In this order, since the member may run, and carry over to LMDB what was just read here.
    """

    data: bytes = b""

    def tail(
        self, member_id: int, row: JournalRow, log: tuple[int, int], log_term: int = -1
    ) -> Tail:
        """Return what continues a log; `log` is term and end of its last batch."""
        term, end = log
        # A group begins there, and nothing of a client's, so it is believed whatever its salt.
        first = _group_untrusted(self.data, 0)
        if first is not None and first.generation > row.generation:
            return attrs.evolve(self._damaged(member_id, [], 0, first), newer=True)
        if not row.size:
            return Tail()
        blank = bool(self.data) and not any(self.data[:_HEAD_BYTES])  # never so once LMDB has a row
        older = blank or (first is not None and not first.begins(row))
        if older or len(self.data) != row.size:
            most = attrs.evolve(_NO_GROUP, term=max(term, log_term), end=end + row.size)
            return self._damaged(member_id, [], 0 if older else len(self.data), most, older=older)
        records: list[Record] = []
        at = 0
        group = _group_untrusted(self.data, 0, row)
        while group is not None and group.generation == row.generation:
            batches = _batches_untrusted(member_id, group)
            if not batches:
                group = None  # torn, if nothing is behind it
            if group is None or batches[0].position != end or batches[0].term < term:
                break
            records += batches
            term, end = records[-1].term, records[-1].end
            at += _blocks(_HEAD_BYTES + len(group.batches))
            group = _group_untrusted(self.data, at, row)
        places = range(at + _BLOCK_BYTES, len(self.data), _BLOCK_BYTES)
        behind = [found for place in places if (found := _group_untrusted(self.data, place, row))]
        if group is not None:  # whole, and not where the log ends
            behind.append(group)
        if not behind:
            return Tail(tuple(records))
        last = max(behind, key=lambda it: (it.generation, it.term, it.end))
        return self._damaged(member_id, records, at, last)

    @staticmethod
    def _damaged(
        member_id: int, records: list[Record], at: int, last: _Group, *, older: bool = False
    ) -> Tail:
        words = "older than data.mdb" if older else f"damaged at byte {at}"
        damage = DamagedRecordError(
            member_id=member_id,
            term=last.term,
            position=records[-1].end if records else -1,
            reason=f"the journal is {words}; it had the log up to {last.end}",
        )
        return Tail(tuple(records), damage, (last.term, last.end))


@attrs.frozen
class _Group:
    """A group with a whole head; its batches are not checked."""

    salt: int
    generation: int
    term: int
    end: int
    batches: bytes

    def begins(self, row: JournalRow) -> bool:
        """Whether a file of which LMDB says that may begin with it."""
        return self.salt == row.salt and self.generation >= row.generation - 1


_NO_GROUP: Final = _Group(0, 0, -1, 0, b"")


def read_journal(directory: Path) -> Found:
    """Read the file of a journal, if there is one; the member may run."""
    path = directory / JOURNAL_FILE
    with told(directory):
        if not path.exists():
            return Found()
        with path.open("rb") as file:
            size = min(os.fstat(file.fileno()).st_size, MAX_JOURNAL_BYTES + 1)  # too long, then
            return Found(file.read(size))


def _blocks(length: int) -> int:
    return length + -length % _BLOCK_BYTES


def _encode(row: JournalRow, term: int, end: int, batches: Sequence[bytes]) -> bytes:
    """Return a group, whole blocks of it."""
    length = sum(map(len, batches))
    facts = _FACTS.pack(row.salt, row.generation, term, end, length)
    padding = bytes(-(_HEAD_BYTES + length) % _BLOCK_BYTES)
    return b"".join((_START.pack(_MAGIC, crc32c(facts)), facts, *batches, padding))


def _group_untrusted(data: bytes, at: int, row: JournalRow | None = None) -> _Group | None:
    """Return the group that begins at a place; None if none does, or by LMDB's row it is void."""
    begin = at + _HEAD_BYTES
    if begin > len(data):
        return None
    magic, check = _START.unpack_from(data, at)
    if magic != _MAGIC or check != crc32c(data[at + _START.size : begin]):
        return None
    salt, generation, term, end, length = _FACTS.unpack_from(data, at + _START.size)
    void = row is not None and (salt != row.salt or generation < row.generation)
    if void or begin + length > len(data):
        return None
    return _Group(salt, generation, term, end, data[begin : begin + length])


def _batches_untrusted(member_id: int, found: _Group) -> list[Record]:
    """Take a group apart; none if it is not whole batches, each behind the one before.

    A torn one may have batches in it that an older generation has left, whole, and truncated.
    """
    group = found.batches
    records: list[Record] = []
    at = 0
    while at < len(group):
        try:
            header = decode_header_untrusted(group[at : at + HEADER_BYTES])
            position = records[-1].end if records else header.position
            record = Record(header.term, position, group[at : at + header.length])
            check_record_untrusted(member_id, record)
        except (WireError, DamagedRecordError):
            return []
        records.append(record)
        at += header.length
    terms = [record.term for record in records]
    whole = terms == sorted(terms) and (terms[-1:], at) == ([found.term], len(group))
    return records if whole and records[-1].end == found.end else []


def _open(directory: Path, size: int, begin: bytes) -> int:
    """Open the file, and begin it so, durably; make it, whole, if there is none of this size."""
    path, new = directory / JOURNAL_FILE, directory / _NEW_FILE
    if not path.exists() or path.stat().st_size != size:
        try:
            with open_private(new, "wb") as file:
                for at in range(0, size, _PIECE_BYTES):
                    file.write(bytes(min(_PIECE_BYTES, size - at)))
                    file.flush()
                os.fsync(file.fileno())
        except OSError:
            new.unlink(missing_ok=True)  # the disk may be full
            raise
        new.rename(path)
    sync_directory(directory)  # also of a name that it was given by one that was killed then
    return open_synced(path, begin)
