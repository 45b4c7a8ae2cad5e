"""Makes changes durable: what is only appended in the journal, all else in LMDB.

The order is that of the calls, whichever of the two a change goes to: LMDB gets what the journal
holds together with the next change that the journal can't take. Used by one thread at a time:
`write` by the writer, `begin` and `end` by the event loop's, while the writer has nothing to do.
`tail` may be read by anybody.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

import attrs

from ...errors import LostStoreError, StoreFullError
from ..lmdb.sealed_rows import kept_here
from ..writing.journal_writer import write_span
from .journal import Held, JournalRow, load_row, read_journal, save_row
from .log_table import last_record, put_record
from .reader import LogReader
from .state import LOST_KEY, encode_lost, load_lost, load_origin

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..lmdb.environment import Environment, Transaction
    from ..writing.journal_writer import Span
    from .changes import Change
    from .identity import Identity
    from .journal import Journal
    from .log_table import Record
    from .state import Databases

log = logging.getLogger("quorate.storage")


@attrs.frozen(eq=False)
class Write:
    """A job of the executor: a change, and what to do once it is durable."""

    change: Change
    done: Callable[[], None]


class Recorder:
    """The writing half of an open store.

    Args:
        environment: of the store.
        dbs: its sub-databases.
        journal: of the store, empty.
    """

    def __init__(self, environment: Environment, dbs: Databases, journal: Journal) -> None:
        self.environment = environment
        self.dbs = dbs
        self._journal = journal
        self._tail: list[Record] = []
        self._begun: tuple[Span, list[Record]] | None = None
        self._held = Held(journal.row.generation, self._tail)  # replaced as a whole

    def reader(self, member_id: int) -> LogReader:
        """Return what reads all that was made durable."""
        return LogReader(self.environment, self.dbs, member_id, self.tail)

    def tail(self) -> Held:
        """Return what the journal holds and LMDB does not."""
        held = self._held
        return Held(held.generation, tuple(held.records))

    def begin(self, group: Sequence[Write]) -> Span | None:
        """Return what makes a group durable when it is written; None if it takes more than that."""
        return self._begin(self._appended(group))

    def _begin(self, records: list[Record]) -> Span | None:
        if not records or not self._journal.row.size:
            return None
        span = self._journal.group(records)
        self._begun = span, records
        return span

    def end(self, error: int) -> None:
        """What `begin` has returned is durable or, by an errno, is not.

        Raises:
            StoreFullError, StorageError: it is not.
        """
        assert self._begun is not None, "nothing was begun"
        (span, records), self._begun = self._begun, None
        self._journal.grow(span, error)
        self._tail += records

    def _appended(self, group: Sequence[Write]) -> list[Record]:
        """Return what a group appends if it does nothing else and the journal has room for it."""
        records: list[Record] = []
        length = 0
        for write in group:
            record = write.change.record
            if record is None:
                return []
            records.append(record)
            length += len(record.batch)
        return records if self._journal.has_room(length) else []

    def write(self, group: Sequence[Write]) -> None:
        """Make a group durable, all or nothing of it.

        Raises:
            StoreFullError: the disk has no room; nothing of them was written.
            StorageError: the disk failed.
        """
        records = self._appended(group)
        span = self._begin(records)
        if span is not None:
            self.end(write_span(span))
            return
        fits = bool(records)
        row = self._journal.made() if fits else self._journal.emptied()
        tail = self._tail

        def apply(txn: Transaction) -> None:
            for record in tail:
                put_record(txn, self.dbs, record)
            for write in group:
                write.change.apply(txn)
            if fits or tail:
                save_row(txn, self.dbs, row)

        self.environment.write(apply)
        if fits or tail:
            self._journal.begin(row)
            self._tail = []
            self._held = Held(row.generation, self._tail)

    def rest(self) -> None:
        """Carry over what the journal holds, since there is nothing else to write.

        Damage in LMDB is told from what a power cut has torn; in the journal's last group it is
        not. So nothing stays there for long.
        """
        if self._tail:
            with contextlib.suppress(StoreFullError):  # it is durable where it is
                self.write(())

    def close(self) -> None:
        """Close the journal and the environment; idempotent."""
        self._journal.close()
        self.environment.close()


def journal_goes_on(
    txn: Transaction, dbs: Databases, member_id: int
) -> tuple[tuple[int, int], JournalRow]:
    """Return term and end of the last batch in LMDB, unchecked, and the journal's row.

    Raises:
        LostStoreError: one of them can't be told.
    """
    with txn.cursor(dbs.log) as cursor:
        last = last_record(cursor, member_id)
    if last is None:
        start = kept_here(member_id, "where its log begins", lambda: load_origin(txn, dbs)[0])
        end = -1, start
    else:
        end = last.term, last.end
    words = "what its journal adds to the log"
    return end, kept_here(member_id, words, lambda: load_row(txn, dbs))


def carry_over(
    environment: Environment, dbs: Databases, identity: Identity, *, peers: bool
) -> JournalRow:
    """Put into LMDB what the journal of a store holds that is opened; return its row, empty.

    Args:
        environment: of the store.
        dbs: its sub-databases.
        identity: whose it is.
        peers: there are other members, from whom what is damaged comes back; it is noted as lost
            until then (see :mod:`.mending`).

    Raises:
        DamagedRecordError: the journal is damaged.
        LostStoreError: a row about it is.
        StoreFullError: there is no room.
    """
    member_id = identity.member_id
    found = read_journal(environment.directory)
    end, row, log_term = environment.read(
        lambda txn: (*journal_goes_on(txn, dbs, member_id), _last_term(txn, dbs))
    )
    tail = found.tail(member_id, row, end, log_term)
    if tail.newer:
        words = "its journal is newer than data.mdb, and so may be whom it has voted for, which"
        raise LostStoreError(f"member {member_id}: {words} is lost with it")
    if not row.size:
        return row
    if tail.damage is not None:
        if not peers:
            raise tail.damage
        log.error(
            "%s. What was in it may have been acknowledged: this member votes for nobody who lacks "
            "it, until another one has sent it again",
            tail.damage,
        )
    empty = JournalRow(row.generation + 1)

    def apply(txn: Transaction) -> None:
        for record in tail.records:
            put_record(txn, dbs, record)
        if tail.damage is not None:
            before = kept_here(member_id, "what else it has lost", lambda: load_lost(txn, dbs))
            txn.put(LOST_KEY, encode_lost(max(before, tail.lost)), db=dbs.meta)
        save_row(txn, dbs, empty)

    environment.write(apply)
    return empty


def _last_term(txn: Transaction, dbs: Databases) -> int:
    """Return the last term in the recording log, unchecked, -1 without one.

    A term whose row came before its first batch may have batches in the journal alone.
    """
    with txn.cursor(dbs.terms) as cursor:
        return int.from_bytes(cursor.key()[:8]) if cursor.last() else -1
