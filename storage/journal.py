"""The journal in front of the log table: the last moments of the log, durable by one sync.

LMDB syncs twice for each commit, its pages and then its root, and writes a page of each of its
trees. So what is only appended is written here first: a file of fixed size, filled with zeros when
it is made, so that a write changes no metadata of the file system; one write and one sync for each
group of batches. Every other change, and every append for which there is no room left, commits to
LMDB what the journal holds together with itself, in the order of the calls, and the journal begins
anew. Measured here (`bench/storage.py`): a third of the time and of the processor of LMDB's commit.

::

    group     magic       4s    b"QJ01"
              checksum    u32   CRC-32C of the 40 bytes below
              instance    u64   of the store
              generation  u64   of the journal
              term        u64   of the last batch
              end         u64   position behind the last batch
              length      u64   bytes of the batches
              batches     whole, back to back, each with its own checksum
              zeros up to a multiple of 4096

All integers are little endian. The generation is also a row in LMDB, and rises in the very
transaction that carries the journal's batches over: so what an older generation has left in the
file is void from that moment, and no batch is ever taken twice. Opening for writing carries over
what is there, and begins a new generation.

Groups are written one after the other, each only when the one before is durable. So when the power
goes, the last one may be torn, and only the last: it was not acknowledged, and counts as never
written. A group that is not whole though another one of its generation lies behind it is damage.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final

import attrs

from ..errors import DamagedRecordError, WireError
from .batch import HEADER_BYTES, decode_header_untrusted
from .checksum import crc32c
from .environment import sync_directory, told
from .recording import Record, check_record_untrusted
from .rows import seal, unpack_untrusted, unseal_untrusted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from .environment import Transaction
    from .state import Databases

JOURNAL_FILE: Final = "journal"
JOURNAL_BYTES: Final = 2 << 20
"""So much log is carried over to LMDB at once, during which nothing else is written."""
GROUP_BYTES: Final = 128 << 10
"""More than that goes to LMDB at once."""
JOURNAL_KEY: Final = b"journal"

_BLOCK_BYTES: Final = 4096
_MAGIC: Final = b"QJ01"
_START: Final = struct.Struct("<4sI")
_FACTS: Final = struct.Struct("<QQQQQ")
_HEAD_BYTES: Final = _START.size + _FACTS.size
_GENERATION: Final = struct.Struct("<Q")
_NEW_FILE: Final = "journal.new"


class Journal:
    """The journal of an open store, written by its one writer.

    Args:
        directory: of the store.
        instance_id: of the store.
        generation: of what will be written.
        size: of the file.

    Attributes:
        generation: of what is in it; all older is void.
    """

    def __init__(self, directory: Path, instance_id: int, generation: int, size: int) -> None:
        self.generation = generation
        self._instance_id = instance_id
        self._directory = directory
        self._size = size
        self._file = -1
        self._end = 0

    def has_room(self, length: int) -> bool:
        """Whether batches of so many bytes altogether are to be one more group.

        Of many at once LMDB's commit costs hardly more than to write them, and here they would be
        written twice.
        """
        return length <= GROUP_BYTES and self._end + _HEAD_BYTES + length <= self._size

    def write(self, records: Sequence[Record]) -> None:
        """Write a group, for which there is room; it is durable on return.

        Raises:
            StoreFullError, StorageError: the disk failed.
        """
        batches, last = [record.batch for record in records], records[-1]
        length = sum(map(len, batches))
        facts = _FACTS.pack(self._instance_id, self.generation, last.term, last.end, length)
        padding = bytes(-(_HEAD_BYTES + length) % _BLOCK_BYTES)
        group = b"".join((_START.pack(_MAGIC, crc32c(facts)), facts, *batches, padding))
        with told(self._directory):
            if self._file < 0:
                self._file = _open(self._directory, self._size)
            _write_whole(self._file, group, self._end)
            os.fdatasync(self._file)
        self._end += len(group)

    def begin_anew(self, generation: int) -> None:
        """Void all that is in it: LMDB has it, durably, and this generation."""
        self.generation, self._end = generation, 0

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def load_generation(txn: Transaction, dbs: Databases) -> int:
    """Read the generation of the journal that is not carried over, 0 at first.

    Raises:
        StorageError: the row is damaged.
    """
    value = txn.get(JOURNAL_KEY, db=dbs.meta)
    if value is None:
        return 0
    return unpack_untrusted(_GENERATION, JOURNAL_KEY, unseal_untrusted(JOURNAL_KEY, value))[0]


def save_generation(txn: Transaction, dbs: Databases, generation: int) -> None:
    """Write that all older generations are carried over."""
    txn.put(JOURNAL_KEY, seal(JOURNAL_KEY, _GENERATION.pack(generation)), db=dbs.meta)


@attrs.frozen
class Tail:
    """What a journal adds to the log.

    Args:
        records: batches that continue it, checked.
        damage: why what lies behind them can't be had though it was acknowledged, if so.
        lost: term and end of the log with what is damaged.
    """

    records: tuple[Record, ...] = ()
    damage: DamagedRecordError | None = None
    lost: tuple[int, int] = (-1, 0)


@attrs.frozen
class Found:
    """The bytes of a journal's file: taken before LMDB is looked at, and judged by what that says.

    In this order, since the member may run, and carry over to LMDB what was just read here.
    """

    data: bytes = b""

    def tail(self, member_id: int, instance_id: int, generation: int, end: int) -> Tail:
        """Return the batches of a generation that continue the log at `end`."""
        records: list[Record] = []
        at, of = 0, (instance_id, generation)
        group = _group_untrusted(self.data, 0, of)
        while group is not None:
            batches = _batches_untrusted(member_id, group.batches)
            if not batches:
                break
            if batches[0].position != end:
                return self._damaged(member_id, records, at, group)
            records += batches
            end = records[-1].end
            at += group.blocks
            group = _group_untrusted(self.data, at, of)
        places = range(at + _BLOCK_BYTES, len(self.data), _BLOCK_BYTES)
        behind = [found for place in places if (found := _group_untrusted(self.data, place, of))]
        if not behind:
            return Tail(tuple(records))
        return self._damaged(member_id, records, at, behind[-1])

    @staticmethod
    def _damaged(member_id: int, records: list[Record], at: int, last: _Group) -> Tail:
        damage = DamagedRecordError(
            member_id=member_id,
            term=last.term,
            position=records[-1].end if records else -1,
            reason=f"the journal is damaged at byte {at}; it had the log up to {last.end}",
        )
        return Tail(tuple(records), damage, (last.term, last.end))


@attrs.frozen
class _Group:
    """A group with a whole head; its batches are not checked."""

    term: int
    end: int
    batches: bytes

    @property
    def blocks(self) -> int:
        """Bytes that it takes in the file."""
        length = _HEAD_BYTES + len(self.batches)
        return length + -length % _BLOCK_BYTES


def read_journal(directory: Path) -> Found:
    """Read the file of a journal, if there is one; the member may run."""
    path = directory / JOURNAL_FILE
    if not path.exists():
        return Found()
    with told(directory):
        return Found(path.read_bytes())


def _group_untrusted(data: bytes, at: int, of: tuple[int, int]) -> _Group | None:
    """Return the group of an instance and generation that begins at a place; None if none does."""
    begin = at + _HEAD_BYTES
    if begin > len(data):
        return None
    magic, check = _START.unpack_from(data, at)
    if magic != _MAGIC or check != crc32c(data[at + _START.size : begin]):
        return None
    instance, generation, term, end, length = _FACTS.unpack_from(data, at + _START.size)
    if (instance, generation) != of or begin + length > len(data):
        return None
    return _Group(term, end, data[begin : begin + length])


def _batches_untrusted(member_id: int, group: bytes) -> list[Record]:
    """Take a group apart; none if it is not whole batches, each behind the one before."""
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
    return records


def _open(directory: Path, size: int) -> int:
    """Open the file; make it, whole, if there is none of this size."""
    path, new = directory / JOURNAL_FILE, directory / _NEW_FILE
    if not path.exists() or path.stat().st_size != size:
        with new.open("wb", buffering=0) as file:
            _write_whole(file.fileno(), bytes(size), 0)
            os.fsync(file.fileno())
        new.rename(path)
        sync_directory(directory)
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def _write_whole(file: int, data: bytes, at: int) -> None:
    """Write all of it: the system may take a part only, when the disk is full."""
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, at)
        view, at = view[written:], at + written
