"""Makes changes durable, in the order of the calls: appends by the journal, all else by LMDB.

The idea
--------
Group commit with two targets. A group that only appends is one write to the journal (`journal`).
Any other group is one LMDB transaction, and that transaction first puts every batch that the
journal holds into the log table. So LMDB never has a change without the changes before it.

::

    calls     append append append   vote    append append     (idle)
    journal   [ group 1           ]          [ group 2    ]
    LMDB                             T1: group 1, vote         T2: group 2

The naive way, and why it fails
-------------------------------
Writing the vote to LMDB alone, past the journal, would be faster. But then a crash could leave a
vote, a new term or a truncation in LMDB next to journal batches written before it; on the next
start nobody could say in which order the two happened.

Threads
-------
Only one thread writes at any time. `write` and `rest` run on the writer thread; `begin` and `end`
run on the event loop, while the writer thread has nothing to do. `tail` may be called by any
thread: it takes one reference to a value that is replaced as a whole.

Opening
-------
`carry_over` empties the journal of a store that was not closed orderly. After it LMDB alone is the
store, so all other code that opens a store can ignore the journal.

What we do not do
-----------------
A failed write is never repeated: after an error of `fsync` the kernel may have dropped the pages.
The error goes up, the member stops, and the next start reads what is really on the disk.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

import attrs

from ...errors import LostStoreError, StoreFullError
from ...log_events import log_event
from ..lmdb.sealed_rows import irreplaceable_row
from ..rows.log_end import LogEnd
from ..rows.meta_rows import LOST_KEY, encode_lost, load_lost, load_origin
from ..writing.journal_writer import write_span
from .journal import HeldRecords, JournalRow, load_row, read_journal, save_row
from .log_table import last_record, put_record
from .reader import LogReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..lmdb.environment import Environment, Transaction
    from ..rows.databases import Databases
    from ..rows.identity import Identity
    from ..writing.journal_writer import Span
    from .changes import Change
    from .journal import Journal, JournalTail
    from .log_table import Record

log = logging.getLogger("quorate.storage")


@attrs.frozen(eq=False)
class Write:
    """A job of the executor.

    Args:
        change: what to make durable.
        done: called on trio's thread once it is.
    """

    change: Change
    done: Callable[[], None]


class Recorder:
    """The writing half of an open store.

    Args:
        environment: of the store.
        dbs: its sub-databases.
        journal: of the store; empty.
    """

    def __init__(self, environment: Environment, dbs: Databases, journal: Journal) -> None:
        self.environment = environment
        self.dbs = dbs
        self._journal = journal
        self._tail: list[Record] = []  # in the journal and not in LMDB, ascending
        self._begun: tuple[Span, list[Record]] | None = None
        # Readers on other threads take this reference once. Its generation says whether LMDB has
        # overtaken it; `LogReader` compares the two.
        self._held = HeldRecords(journal.row.generation, self._tail)

    def reader(self, member_id: int) -> LogReader:
        """Return a reader of everything durable, journal included."""
        return LogReader(self.environment, self.dbs, member_id, self.tail)

    def tail(self) -> HeldRecords:
        """Return the batches that the journal holds and LMDB does not."""
        # A copy: the writer goes on appending to the list.
        held = self._held
        return HeldRecords(held.generation, tuple(held.records))

    def begin(self, group: Sequence[Write]) -> Span | None:
        """Return the bytes whose writing makes a group durable.

        Returns:
            None if the group needs `write`.
        """
        return self._begin(self._appended(group))

    def _begin(self, records: list[Record]) -> Span | None:
        # Before the first append LMDB knows of no journal; `write` makes the file and the row.
        if not records or not self._journal.row.size:
            return None
        span = self._journal.group(records)
        # Not in the tail yet: readers may see only what is durable.
        self._begun = span, records
        return span

    def end(self, error: int) -> None:
        """Take the outcome of the write that `begin` returned: 0, or an errno.

        Raises:
            StoreFullError, StorageError: the write failed; the group is not durable.
        """
        assert self._begun is not None, "nothing was begun"
        (span, records), self._begun = self._begun, None
        self._journal.written(span, error)  # raises if the write failed: then nothing was added
        self._tail += records

    def _appended(self, group: Sequence[Write]) -> list[Record]:
        """Return the group's records if it only appends and they fit; else none."""
        records: list[Record] = []
        length = 0
        # All or nothing: a group is one commit, so one change of another kind decides for all.
        for write in group:
            record = write.change.record
            if record is None:  # a vote, a new term, a truncation: all of the group goes to LMDB
                return []
            records.append(record)
            length += len(record.batch)
        return records if self._journal.has_room(length) else []

    def write(self, group: Sequence[Write]) -> None:
        """Make a whole group durable, or nothing of it.

        Raises:
            StoreFullError: the disk is full; nothing was written.
            StorageError: the disk failed.
        """
        records = self._appended(group)
        # Appends come here too: those that waited together with a change for LMDB, and all of them
        # where no journal writer runs.
        span = self._begin(records)
        if span is not None:
            self.end(write_span(span))
            return
        # From here on LMDB. Records that fit, but got no span, mean that there is no journal file
        # yet: this is the first append since the start, so the file is made now.
        begins = bool(records)
        row = self._journal.make_file() if begins else self._journal.next_row()
        tail = self._tail
        # Nothing was in the journal, and nothing goes there: its row need not change.
        row_changes = begins or bool(tail)

        def apply(txn: Transaction) -> None:
            # `Environment.write` calls this again with a larger map, so it must not change the
            # recorder.
            for record in tail:  # older than the group, so they come first
                put_record(txn, self.dbs, record)
            for write in group:
                write.change.apply(txn)
            # The new generation in the same transaction: from the moment it is durable, the groups
            # just carried over are void, and no batch can be taken twice.
            if row_changes:
                save_row(txn, self.dbs, row)

        self.environment.write(apply)
        if row_changes:
            # A new list: readers may still hold the old one, which is in LMDB by now.
            self._journal.begin(row)
            self._tail = []
            self._held = HeldRecords(row.generation, self._tail)

    def rest(self) -> None:
        """Carry over the journal's batches while there is nothing else to write."""
        # In LMDB damage can be told from a torn write; in the last group of the journal it can't.
        # An idle member would leave its newest batches there for ever.
        if self._tail:
            with contextlib.suppress(StoreFullError):  # they are durable in the journal
                self.write(())

    def close(self) -> None:
        """Close the journal and the environment; idempotent."""
        # Batches may be left in the journal: the next start carries them over.
        self._journal.close()
        self.environment.close()


def end_in_lmdb(txn: Transaction, dbs: Databases, member_id: int) -> tuple[LogEnd, JournalRow]:
    """Return the end of the log in LMDB, unchecked, and LMDB's row about the journal.

    Raises:
        LostStoreError: one of them can't be read.
    """
    with txn.cursor(dbs.log) as cursor:
        last = last_record(cursor, member_id)
    if last is None:
        start = irreplaceable_row(
            member_id, "where its log begins", lambda: load_origin(txn, dbs)[0]
        )
        end = LogEnd(-1, start)  # an empty log, perhaps behind a snapshot
    else:
        end = LogEnd(last.term, last.end)
    words = "what its journal adds to the log"
    return end, irreplaceable_row(member_id, words, lambda: load_row(txn, dbs))


def carry_over(
    environment: Environment, dbs: Databases, identity: Identity, *, peers: bool
) -> JournalRow:
    """Put the journal's batches of a store that is being opened into LMDB.

    Args:
        environment: of the store.
        dbs: its sub-databases.
        identity: of the store.
        peers: other members exist. Damaged batches are then cut off and noted as lost, until a peer
            sends them again (see `mending`); without peers damage is an error.

    Returns:
        The row of the journal, which is empty now.

    Raises:
        DamagedRecordError: the journal is damaged, and there are no peers.
        LostStoreError: a row about the journal is damaged, or ``data.mdb`` is an old copy.
        StoreFullError: the disk is full.
    """
    member_id = identity.member_id
    scan = read_journal(environment.directory)  # before LMDB, see `JournalScan`
    end, row, log_term = environment.read(
        lambda txn: (*end_in_lmdb(txn, dbs, member_id), _last_term(txn, dbs))
    )
    tail = scan.tail(member_id, row, end, log_term)
    _refuse_lost(member_id, tail, peers=peers)
    if not row.size:  # LMDB knows of no journal, so there is nothing to carry over
        return row
    # Size 0: the file need not be there until the first append begins it again.
    empty = JournalRow(row.generation + 1)

    def apply(txn: Transaction) -> None:
        for record in tail.records:
            put_record(txn, dbs, record)
        if tail.damage is not None:
            # An older note may reach further; keep the later end.
            before = irreplaceable_row(
                member_id, "what else it has lost", lambda: load_lost(txn, dbs)
            )
            txn.put(LOST_KEY, encode_lost(max(before, tail.lost)), db=dbs.meta)
        # The new generation voids the journal in the transaction that takes its batches (I-40).
        save_row(txn, dbs, empty)

    environment.write(apply)
    return empty


def _refuse_lost(member_id: int, tail: JournalTail, *, peers: bool) -> None:
    """Refuse what this member can't go on with; log damage that its peers will undo."""
    if tail.newer:
        # The old data.mdb may miss a vote. To go on could elect two leaders in one term.
        raise LostStoreError(
            f"member {member_id}: its journal is newer than data.mdb, which an older copy "
            "replaced; its vote may be lost with the newer file. Put that back, or see "
            "`quorate recover --help`"
        )
    if tail.damage is not None:
        if not peers:  # a cluster of one: nobody could send the batches again
            raise tail.damage
        log_event(
            log,
            logging.ERROR,
            "journal_damaged",
            "%(damage)s. The batches may have been acknowledged: until another member has sent "
            "them again, this member votes only for candidates that have them",
            damage=str(tail.damage),
        )


def _last_term(txn: Transaction, dbs: Databases) -> int:
    """Return the last term in the term table, unchecked; -1 without one."""
    # A term whose row was written before its first batch may have batches in the journal alone.
    with txn.cursor(dbs.terms) as cursor:
        return int.from_bytes(cursor.key()[:8]) if cursor.last() else -1
