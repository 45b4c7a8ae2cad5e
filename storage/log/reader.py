"""Reading the log in short transactions: each batch is checked, and none is skipped.

LMDB reuses no page that an open transaction may see. So a long read would make the file grow; reads
go in chunks instead, and check the bytes after the transaction has ended.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import attrs

from ...errors import DamagedRecordError, PrunedError, StorageError
from ..rows.meta_rows import load_origin
from ..rows.term_table import term_at
from .journal import HeldRecords, load_row
from .log_table import (
    END_KEY,
    KEY,
    check_record_untrusted,
    decode_key_untrusted,
    next_record,
    record_at,
    record_before,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..lmdb.environment import Environment, Transaction
    from ..rows.databases import Databases
    from ..rows.term_table import TermRow
    from .batch import BatchHeader
    from .log_table import Record
    from .state import Recorded

CHUNK_BYTES: Final = 1 << 20
"""Batches that one transaction reads, in bytes. More would keep pages from being reused for longer;
fewer cost more transactions."""


@attrs.frozen
class LogReader:
    """Reads batches from LMDB, and behind them those of the journal.

    Args:
        environment: of the store.
        dbs: its sub-databases.
        member_id: of the store, for errors.
        tail: returns the journal's batches.
    """

    environment: Environment
    dbs: Databases
    member_id: int
    tail: Callable[[], HeldRecords] = HeldRecords

    def chunk(
        self, terms: tuple[TermRow, ...], position: int, stop: int, limit_bytes: int
    ) -> list[bytes] | None:
        """Return checked batches from `position` on, at least one; None if none begins there.

        Args:
            terms: the term table, to find the key of `position`.
            position: where to begin.
            stop: no batch that begins here or behind is read.
            limit_bytes: of all batches together; the first one may be longer.

        Raises:
            DamagedRecordError: a batch is damaged, or does not begin where the one before ended.
        """
        row = term_at(terms, position)
        if row is None:
            return None
        term = row.term
        # The journal first. A writer may carry its batches over to LMDB between the two reads; then
        # LMDB shows another generation, and has them all, or what replaced them.
        held = self.tail()
        records, current = self.environment.read(
            lambda txn: (
                self._records(txn, term, position, stop, limit_bytes),
                load_row(txn, self.dbs).generation == held.generation,
            )
        )
        if current:
            _add_tail(records, held.records, position, stop, limit_bytes)
        expected = position
        for record in records:  # outside the transaction, to keep that short
            if record.position != expected:
                raise self._hole_error(record.term, expected)
            expected = check_record_untrusted(self.member_id, record).end
        return [record.batch for record in records] or None

    def _records(
        self, txn: Transaction, term: int, position: int, stop: int, limit_bytes: int
    ) -> list[Record]:
        records: list[Record] = []
        with txn.cursor(self.dbs.log) as cursor:
            record = record_at(cursor, self.member_id, term, position)
            while record is not None and record.position < stop:
                limit_bytes -= len(record.batch)
                # The first batch is taken whatever its size: no reader could ever get past it
                # otherwise.
                if records and limit_bytes < 0:
                    break
                records.append(record)
                record = next_record(cursor, self.member_id)
        return records

    def check_range(self, recorded: Recorded, position: int) -> None:
        """Refuse a position below the first one kept.

        Raises:
            PrunedError: it is.
        """
        if position < recorded.start_position:
            raise PrunedError(
                f"member {self.member_id}: position {position} is pruned, "
                f"the log starts at {recorded.start_position}"
            )

    def missing_error(self, recorded: Recorded, position: int) -> StorageError:
        """Return the error for a kept position at which no batch begins."""
        row = term_at(recorded.terms, position)
        key = END_KEY if row is None else KEY.pack(row.term, position)
        before = self._before(key)
        # A caller's mistake, not damage: it must not start a repair.
        if before is not None and position < before.end:
            return StorageError(
                f"member {self.member_id}: position {position} is inside the batch "
                f"from {before.position} to {before.end}"
            )
        return self._hole_error(-1 if row is None else row.term, position)

    def next_position(self, header: BatchHeader) -> int | None:
        """Return where the record behind this batch's begins; None if it is the last."""

        def look(txn: Transaction) -> int | None:
            with txn.cursor(self.dbs.log) as cursor:
                # The next key, whatever its term: the batch itself may be the one that is missing.
                if not cursor.set_range(KEY.pack(header.term, header.position + 1)):
                    return None
                return decode_key_untrusted(self.member_id, cursor.key())[1]

        return self.environment.read(look)

    def _before(self, key: bytes) -> Record | None:
        """Return the last record below `key`, unchecked."""
        held = self.tail()

        def look(txn: Transaction) -> Record | None:
            # The journal's batches are behind all of LMDB's, so they are searched first, from the
            # end.
            if load_row(txn, self.dbs).generation == held.generation:
                for record in reversed(held.records):
                    if KEY.pack(record.term, record.position) < key:
                        return record
            with txn.cursor(self.dbs.log) as cursor:
                return record_before(cursor, self.member_id, key)

        return self.environment.read(look)

    def boundary(self, recorded: Recorded, position: int) -> int:
        """Return where the batch that covers `position` begins; the end, from the log's end on."""
        if position >= recorded.append_position:
            return recorded.append_position
        row = term_at(recorded.terms, position)
        # One behind `position`: a batch that begins there covers it.
        key = END_KEY if row is None else KEY.pack(row.term, position + 1)
        record = self._before(key)
        return recorded.start_position if record is None else record.position

    def ending_at(self, recorded: Recorded, position: int) -> tuple[int, int]:
        """Return commit position and timestamp of the batch that ends at `position`.

        Raises:
            StorageError: no batch ends there, and the log does not begin there.
            DamagedRecordError: the batch is damaged.
        """
        row = term_at(recorded.terms, position)
        key = END_KEY if row is None else KEY.pack(row.term, position)
        record = self._before(key)
        # All batches before are pruned; the row about the origin has kept the time of the last one.
        if record is None and position == recorded.start_position:
            return self.environment.read(lambda txn: load_origin(txn, self.dbs))
        if record is None or record.end != position or row is None:
            raise self.missing_error(recorded, position)
        header = check_record_untrusted(self.member_id, record)
        return header.commit_position, header.timestamp_ms

    def prefix(self, recorded: Recorded, position: int, step: int) -> tuple[bytes, int, int] | None:
        """Find up to `step` batches to drop, which end at or before `position`.

        Returns:
            Key and position of the first batch to keep, and timestamp of the last one to drop; None
            if there is nothing to drop.

        Raises:
            DamagedRecordError: the last batch to drop is damaged.
        """
        return self.environment.read(lambda txn: self._prefix(txn, recorded, position, step))

    def _prefix(
        self, txn: Transaction, recorded: Recorded, position: int, step: int
    ) -> tuple[bytes, int, int] | None:
        kept, start, count, term = b"", recorded.start_position, 0, 0
        with txn.cursor(self.dbs.log) as cursor:
            # Without values: a batch may have megabytes, and only its place is asked for. One key
            # more than `step`: the last one is kept, and those before it go.
            for key in itertools.islice(cursor.iternext(values=False), step + 1):
                term, begin = decode_key_untrusted(self.member_id, key)
                if begin > position:
                    break
                kept, start, count = key, begin, count + 1
            else:
                if 0 < count <= step and recorded.append_position <= position:
                    # All batches go. Keep from where the next one will be: appends may come before
                    # this change is made.
                    start = recorded.append_position
                    kept = KEY.pack(term, start)
            if start == recorded.start_position:
                return None
            # The time of the last batch to go is kept with the origin: if the log gets empty, log
            # time goes on from there.
            dropped = record_before(cursor, self.member_id, kept)
        assert dropped is not None
        return kept, start, check_record_untrusted(self.member_id, dropped).timestamp_ms

    def _hole_error(self, term: int, position: int) -> DamagedRecordError:
        return DamagedRecordError(
            member_id=self.member_id, term=term, position=position, reason="no batch begins here"
        )

    def scan(self, recorded: Recorded, position: int, stop: int | None = None) -> Iterator[bytes]:
        """Yield checked batches from `position` to `stop` (default: the end), chunk by chunk.

        Raises:
            PrunedError: `position` is below the first one kept.
            StorageError: no batch begins at `position`.
            DamagedRecordError: a batch is damaged.
        """
        self.check_range(recorded, position)
        stop = recorded.append_position if stop is None else min(stop, recorded.append_position)
        # A transaction per chunk: one for the whole scan would keep LMDB from reusing pages, and
        # the file would grow.
        while position < stop:
            batches = self.chunk(recorded.terms, position, stop, CHUNK_BYTES)
            if batches is None:
                raise self.missing_error(recorded, position)
            yield from batches
            position += sum(map(len, batches))


def _add_tail(
    records: list[Record], tail: Sequence[Record], position: int, stop: int, limit_bytes: int
) -> None:
    """Extend records that begin at `position` by what the journal has behind them."""
    end = records[-1].end if records else position
    room = limit_bytes - (end - position)
    for record in tail:
        # Older batches of the journal may be in front of `position`, and are passed over.
        if record.position == end < stop:
            room -= len(record.batch)
            if records and room < 0:
                return
            records.append(record)
            end = record.end
