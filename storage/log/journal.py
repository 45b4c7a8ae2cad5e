"""The journal in front of the log table: the newest batches, durable by one write.

The naive way
-------------
Commit each group of batches to LMDB. LMDB then writes a page of each of its trees, syncs, writes
its root page, and syncs again. The second sync waits for the first, so a commit costs two round
trips to the disk, for a few hundred bytes of log.

What we do
----------
A group of batches that is only appended goes to the journal, as one synchronous write. The file
has a fixed size and is filled with zeros when it is made. So a write changes no metadata of the
file system, which would cost a second write to the disk.

Every other change, and an append that does not fit, goes to LMDB. That transaction also carries
over all batches that the journal holds, so LMDB sees changes in the order of the calls. Then the
journal begins anew, from its first byte.

::

    byte 0                                                                        size of the file
    | group 1      | group 2  | group 3           | left over from an older generation      | 0 0 |
    ^              ^
    multiples of 4096

    group     magic       4s    b"QJ01"
              checksum    u32   CRC-32C of the 40 bytes below
              salt        u64   random, drawn when the file was begun, never sent anywhere
              generation  u64   of the journal
              term        u64   of the last batch
              end         u64   position behind the last batch
              length      u64   bytes of the batches
              batches           whole, back to back, each with its own checksum
              zeros             up to a multiple of 4096

    row "journal" in LMDB       generation u64, salt u64, size of the file u64

All integers are little endian.

Why stale bytes are harmless
----------------------------
The transaction that carries batches over also raises the generation in LMDB's row. From that moment
groups of the older generation are void, so no batch is taken twice. A client can't forge a group
inside a value either, since it does not know the salt.

Torn, or damaged
----------------
Groups are written one after the other, each only when the one before is durable. A power cut can
therefore tear only the last group. That group was not acknowledged, so it counts as never written.
Everything else is damage:

- a group that is not whole, with a later group of its generation behind it;
- a missing file, or one of another size: the first append makes the file, and LMDB's row says so;
- a generation above LMDB's: somebody put back an older ``data.mdb``;
- a first group older than LMDB's row allows: somebody put back an older journal. The journal begins
  with a group of LMDB's generation or, before there is one, of the generation before. To keep that
  true, the first append after a start begins the file with an empty group.

What we do not do
-----------------
We can't detect a copy of the journal taken within the current generation: it begins as it should.
We do not keep batches here for long. In LMDB damage can be told from a torn write, in the last
group of the journal it can't. So an idle member carries its batches over.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final

import attrs

from ...errors import DamagedRecordError, WireError
from ..lmdb.checksum import crc32c
from ..lmdb.environment import sync_directory, translating_errors
from ..lmdb.private import open_private
from ..lmdb.sealed_rows import seal, unpack_untrusted, unseal_untrusted
from ..rows.log_end import EMPTY_LOG, LogEnd
from ..writing.journal_writer import Span, open_synced
from .batch import HEADER_BYTES, decode_header_untrusted
from .log_table import Record, check_record_untrusted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..lmdb.environment import Transaction
    from ..rows.databases import Databases

JOURNAL_FILE: Final = "journal"
JOURNAL_BYTES: Final = 2 << 20
"""Size of the file. All of it is carried over in one transaction, and nothing else is written
during that; so a larger journal makes longer pauses, a smaller one more of them."""
MAX_JOURNAL_BYTES: Final = 64 << 20
"""A longer file counts as damaged. Bounds the memory that reading a damaged one takes."""
GROUP_BYTES: Final = 128 << 10
"""Longer groups go to LMDB at once. For many bytes LMDB's commit costs little more than the bytes
themselves, and by way of the journal they would be written twice."""
JOURNAL_KEY: Final = b"journal"

_BLOCK_BYTES: Final = 4096
# The page cache keeps a file in folios as large as the writes that made it, and a later write goes
# through all blocks of its folio. Made in one piece of 2 MiB, a group took 25 % more CPU time.
_PIECE_BYTES: Final = 32 << 10
_MAGIC: Final = b"QJ01"
_START: Final = struct.Struct("<4sI")
_FACTS: Final = struct.Struct("<QQQQQ")
_HEAD_BYTES: Final = _START.size + _FACTS.size
_ROW: Final = struct.Struct("<QQQ")
_NEW_FILE: Final = "journal.new"


@attrs.frozen
class JournalRow:
    """What LMDB knows about the journal.

    Args:
        generation: groups of older generations are void: LMDB has their batches.
        salt: of the groups that count.
        size: of the file in bytes; 0 while there need not be a file.
    """

    generation: int = 0
    salt: int = 0
    size: int = 0


class Journal:
    """The journal of an open store; used by one writer at a time.

    Args:
        directory: of the store.
        row: what LMDB says about the journal.
        salt: for new groups, an unsigned 64-bit number that nobody can guess.
        size: of the file to make, in bytes.

    Attributes:
        row: what LMDB says about the journal now.
    """

    def __init__(self, directory: Path, row: JournalRow, *, salt: int, size: int) -> None:
        # Checked here, where it is written: `read_journal` would call a longer file damaged.
        assert size <= MAX_JOURNAL_BYTES, f"a journal of {size} bytes could not be read again"
        self.row = row
        self._salt = salt
        self._directory = directory
        # Whole blocks only: the file is written past the page cache, which allows nothing else.
        self._size = size - size % _BLOCK_BYTES
        self._file = -1  # opened by the first append, so a store that is only read has no journal
        self._end = 0

    def has_room(self, length: int) -> bool:
        """Say whether batches of this many bytes should become the next group."""
        # A group is one write at one place: it has to fit in front of the end of the file.
        return length <= GROUP_BYTES and self._end + _blocks(_HEAD_BYTES + length) <= self._size

    def group(self, records: Sequence[Record]) -> Span:
        """Return what to write to make these records durable; the caller has checked `has_room`."""
        # The head also says where the last batch ends. So a reader notices a torn group whose head
        # is on disk, but whose batches are leftovers of an older group.
        last = records[-1]
        batches = [record.batch for record in records]
        return Span(self._file, self._end, _encode(self.row, last.term, last.end, batches))

    def written(self, group: Span, error: int) -> None:
        """Count a group as written, unless `error` is an errno.

        Raises:
            StoreFullError, StorageError: the write failed with that errno.
        """
        if error:
            with translating_errors(self._directory):
                raise OSError(error, os.strerror(error))
        # Only now: a group that failed takes no place, so the end stays where it was.
        self._end += len(group.data)

    def make_file(self) -> JournalRow:
        """Ensure that the file is there, durably; return the row that begins its next generation.

        Raises:
            StoreFullError, StorageError: the disk failed.
        """
        if self._file < 0:
            # LMDB has everything that an old file holds, so its first group may be overwritten.
            before = attrs.evolve(self.row, salt=self._salt)
            with translating_errors(self._directory):
                self._file = _open(self._directory, self._size, _encode(before, 0, 0, ()))
        # The row is not true yet. The caller writes it in the transaction that carries over the
        # batches, and calls `begin` once that is durable.
        return JournalRow(self.row.generation + 1, self._salt, self._size)

    def next_row(self) -> JournalRow:
        """Return the row that says that LMDB has everything in the journal."""
        return attrs.evolve(self.row, generation=self.row.generation + 1)

    def begin(self, row: JournalRow) -> None:
        """Start from the first byte; LMDB durably has this row, and all batches of the journal."""
        # Old groups stay in the file behind the end; the new generation in LMDB voids them.
        self.row, self._end = row, 0

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def load_row(txn: Transaction, dbs: Databases) -> JournalRow:
    """Read LMDB's row about the journal.

    Raises:
        StorageError: the row is damaged.
    """
    value = txn.get(JOURNAL_KEY, db=dbs.meta)
    if value is None:  # no batch was ever appended by way of the journal
        return JournalRow()
    return JournalRow(*unpack_untrusted(_ROW, JOURNAL_KEY, unseal_untrusted(JOURNAL_KEY, value)))


def save_row(txn: Transaction, dbs: Databases, row: JournalRow) -> None:
    """Write LMDB's row about the journal."""
    body = _ROW.pack(row.generation, row.salt, row.size)
    txn.put(JOURNAL_KEY, seal(JOURNAL_KEY, body), db=dbs.meta)


@attrs.frozen
class JournalTail:
    """What a journal adds to the log in LMDB.

    Args:
        records: batches that continue the log, checked.
        damage: set if acknowledged batches behind these can't be read.
        lost: a bound on the end of the log with those damaged batches.
        newer: the journal is of a newer generation than LMDB, so an older ``data.mdb`` was put
            back.
    """

    records: tuple[Record, ...] = ()
    damage: DamagedRecordError | None = None
    lost: LogEnd = EMPTY_LOG
    newer: bool = False


@attrs.frozen
class HeldRecords:
    """The batches that the journal holds and LMDB does not, while LMDB's row has this generation.

    Args:
        generation: of the journal.
        records: the batches, ascending. More may be appended to it; none is removed.
    """

    generation: int = 0
    records: Sequence[Record] = ()


@attrs.frozen
class JournalScan:
    """The bytes of a journal file, read before LMDB is looked at and judged afterwards.

    The order matters: the member may be running, and carry over to LMDB what was just read here. A
    batch is then found twice at worst, and never missed.
    """

    data: bytes = b""

    def tail(self, member_id: int, row: JournalRow, log: LogEnd, log_term: int = -1) -> JournalTail:
        """Return what the file adds to a log.

        Args:
            member_id: of the store, for errors.
            row: LMDB's row about the journal.
            log: end of the log in LMDB.
            log_term: last term in the term table; batches of it may be in the journal alone.
        """
        term, end = log
        # No client's bytes can be at byte 0, so this group is believed whatever its salt.
        first = _group_untrusted(self.data, 0)
        # A generation rises in LMDB before a group of it is written, never the other way round.
        if first is not None and first.generation > row.generation:
            return attrs.evolve(self._damaged(member_id, [], 0, first), newer=True)
        if not row.size:  # whatever lies there was never part of the log, or is carried over
            return JournalTail()
        # A file that LMDB's row knows always begins with a group: zeros there are an older file.
        blank = bool(self.data) and not any(self.data[:_HEAD_BYTES])
        older = blank or (first is not None and not first.begins(row))
        # LMDB's row says that there is a file of this size, begun in this generation or the one
        # before.
        if older or len(self.data) != row.size:
            # Nothing in the file says how far the log went; no further than a full journal.
            most = attrs.evolve(_NO_GROUP, term=max(term, log_term), end=end + row.size)
            return self._damaged(member_id, [], 0 if older else len(self.data), most, older=older)
        # Walk the groups of this generation for as long as each continues the log.
        records: list[Record] = []
        at = 0
        group = _group_untrusted(self.data, 0, row)
        while group is not None and group.generation == row.generation:
            batches = _batches_untrusted(member_id, group)
            if not batches:
                group = None  # torn, unless a later group follows
            # Each group continues the one before, and the first one the log in LMDB.
            if group is None or batches[0].position != end or batches[0].term < term:
                break
            records += batches
            term, end = records[-1].term, records[-1].end
            at += _blocks(_HEAD_BYTES + len(group.batches))
            group = _group_untrusted(self.data, at, row)
        # With a group behind the break that counts, the break is no torn last write.
        behind = self._groups_behind(at, row)
        if group is not None:  # whole, but it does not continue the log
            behind.append(group)
        if not behind:  # the end of the journal, or one torn write: nothing acknowledged is missing
            return JournalTail(tuple(records))
        # Acknowledged batches are damaged. The furthest head says how far the log went.
        last = max(behind, key=lambda it: (it.generation, it.term, it.end))
        return self._damaged(member_id, records, at, last)

    def _groups_behind(self, at: int, row: JournalRow) -> list[_Group]:
        """Return the groups that count and begin behind a byte."""
        places = range(at + _BLOCK_BYTES, len(self.data), _BLOCK_BYTES)
        return [group for place in places if (group := _group_untrusted(self.data, place, row))]

    @staticmethod
    def _damaged(
        member_id: int, records: list[Record], at: int, last: _Group, *, older: bool = False
    ) -> JournalTail:
        words = "older than data.mdb" if older else f"damaged at byte {at}"
        damage = DamagedRecordError(
            member_id=member_id,
            term=last.term,
            position=records[-1].end if records else -1,
            reason=f"the journal is {words}; it had the log up to {last.end}",
        )
        return JournalTail(tuple(records), damage, LogEnd(last.term, last.end))


@attrs.frozen
class _Group:
    """A group whose head is whole; its batches are not checked."""

    salt: int
    generation: int
    term: int
    end: int
    batches: bytes

    def begins(self, row: JournalRow) -> bool:
        """Whether a file may begin with this group if LMDB has that row."""
        return self.salt == row.salt and self.generation >= row.generation - 1


_NO_GROUP: Final = _Group(0, 0, -1, 0, b"")


def read_journal(directory: Path) -> JournalScan:
    """Read the file of a journal, if there is one; the member may be running."""
    path = directory / JOURNAL_FILE
    with translating_errors(directory):
        if not path.exists():
            return JournalScan()
        with path.open("rb") as file:
            # One byte more than allowed is enough: the size is then not that of LMDB's row.
            size = min(os.fstat(file.fileno()).st_size, MAX_JOURNAL_BYTES + 1)
            return JournalScan(file.read(size))


def _blocks(length: int) -> int:
    return length + -length % _BLOCK_BYTES


def _encode(row: JournalRow, term: int, end: int, batches: Sequence[bytes]) -> bytes:
    """Return a group, padded to whole blocks."""
    length = sum(map(len, batches))
    # The length is in the head, not the number of batches: a reader then needs no batch to be whole
    # to know where the next group begins.
    facts = _FACTS.pack(row.salt, row.generation, term, end, length)
    padding = bytes(-(_HEAD_BYTES + length) % _BLOCK_BYTES)
    return b"".join((_START.pack(_MAGIC, crc32c(facts)), facts, *batches, padding))


def _group_untrusted(data: bytes, at: int, row: JournalRow | None = None) -> _Group | None:
    """Return the group that begins at a byte.

    Returns:
        None if no group begins there, or if LMDB's row says that it is void.
    """
    begin = at + _HEAD_BYTES
    if begin > len(data):
        return None
    magic, check = _START.unpack_from(data, at)
    # Head and batches have checksums of their own. So a group whose batches are torn still says
    # where it would have ended, which bounds what was lost.
    if magic != _MAGIC or check != crc32c(data[at + _START.size : begin]):
        return None
    salt, generation, term, end, length = _FACTS.unpack_from(data, at + _START.size)
    # A wrong salt means bytes that are no group of ours: a value may contain anything.
    void = row is not None and (salt != row.salt or generation < row.generation)
    if void or begin + length > len(data):
        return None
    return _Group(salt, generation, term, end, data[begin : begin + length])


def _batches_untrusted(member_id: int, head: _Group) -> list[Record]:
    """Split a group into records.

    Returns:
        An empty list unless the group is whole batches, each behind the one before, as its head
        says.
    """
    group = head.batches
    records: list[Record] = []
    at = 0
    while at < len(group):
        try:
            header = decode_header_untrusted(group[at : at + HEADER_BYTES])
            # The first batch is compared with the log by the caller, the others with the one
            # before.
            position = records[-1].end if records else header.position
            record = Record(header.term, position, group[at : at + header.length])
            check_record_untrusted(member_id, record)
        except (WireError, DamagedRecordError):
            return []
        records.append(record)
        at += header.length
    # The head is compared too: a torn group may hold whole batches that an older generation left.
    terms = [record.term for record in records]
    whole = terms == sorted(terms) and (terms[-1:], at) == ([head.term], len(group))
    return records if whole and records[-1].end == head.end else []


def _open(directory: Path, size: int, begin: bytes) -> int:
    """Open the file, durably begun with these bytes; first make it if none has this size."""
    path, new = directory / JOURNAL_FILE, directory / _NEW_FILE
    # A file that is kept still holds old groups; LMDB has them, and a new generation voids them.
    if not path.exists() or path.stat().st_size != size:
        # Made under another name: a file that was half made would have the wrong size for ever.
        try:
            with open_private(new, "wb") as file:
                # Real zeros, not a hole: a hole would be allocated by the first writes to it.
                for at in range(0, size, _PIECE_BYTES):
                    file.write(bytes(min(_PIECE_BYTES, size - at)))
                    file.flush()
                os.fsync(file.fileno())
        except OSError:
            new.unlink(missing_ok=True)  # give the space back: the disk may be full
            raise
        new.rename(path)
    sync_directory(directory)  # always: a process killed right after the rename did not sync
    return open_synced(path, begin)
