"""What a store that is being opened mends by itself: rows of the table of terms, and its own end.

**Rows of the table of terms** say nothing that cannot be told without them, mostly: a term begins
where the one before ends, or where its first batch is, and ends where the next one begins. So a
damaged or missing row is made again from its neighbours and from the keys of the log. Where these
do not settle it (the batches are pruned, and the row beside is gone too) the store is refused. A
missing row is noticed where its neighbours do not meet; one of a term without batches is not
missed, since no log needs it.

A damaged row about a snapshot is taken out: there are others, or another member has one.

**The last batches.** A damaged batch amidst the log is fetched from another member when it is read
(:mod:`quorate.node.upkeep.repair`); those behind it prove how far the log goes. Of damaged ones at
its very end that cannot be said. They are cut off, and durably it is noted that they were there
(`state.LOST_KEY`), for this member may have acknowledged them. Until its log has them again, or
what a newer leader has in their place, it votes for nobody whose log lacks them, and does not
stand. So whoever wins has them, if they were committed: it has them itself, or it has met a quorum
without this member, of which one has them and votes for nobody who has not. They come back as to
any follower that is behind. The note is the term of the last of them and the position one behind
its beginning: a log that goes beyond its beginning in that term has the very batch, since a term
has one writer. Nothing rests on the damaged bytes; the keys are believed only if they fit to the
intact batch in front and to the table of terms.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
from typing import TYPE_CHECKING

import attrs

from ...errors import DamagedRecordError, StorageError, WireError
from ..lmdb.sealed_rows import irreplaceable_row
from .batch import check_sum_untrusted
from .changes import put_terms
from .log_end import LogEnd
from .log_table import (
    KEY,
    Record,
    check_record_untrusted,
    decode_key_untrusted,
    last_record,
    record_before,
)
from .meta_rows import LOST_KEY, encode_lost, load_lost, load_origin, load_terms
from .term_table import (
    TermRow,
    cut_at,
    decode_snapshot_untrusted,
    decode_term_untrusted,
    encode_term,
    row_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..lmdb.environment import Environment, Transaction
    from .databases import Databases

log = logging.getLogger("quorate.storage")


def mend(environment: Environment, dbs: Databases, member_id: int, *, peers: bool) -> None:
    """Mend what can be mended of a store, durably, and tell it.

    Args:
        environment: of the store.
        dbs: its sub-databases.
        member_id: whose it is.
        peers: there are other members, from whom what is cut off comes back.

    Raises:
        DamagedRecordError: a row of the table of terms can't be told, or the place of a batch.
    """
    snapshots = environment.read(lambda txn: _damaged_snapshots(txn, dbs, member_id))
    for key, damage in snapshots:
        environment.write(functools.partial(_delete, dbs, key))
        log.error("%s: it is taken out, and its file is not used", damage)
    rows = environment.read(lambda txn: _mended_rows(txn, dbs, member_id))
    if rows:
        environment.write(lambda txn: _put_rows(txn, dbs, rows))
        for row in rows:
            log.error(
                "member %d: table of terms: the row of term %d was damaged or missing; by its "
                "neighbours and the log it covers %d to %s, and is mended",
                member_id,
                row.term,
                row.base,
                "the end" if row.end is None else row.end,
            )
    tail = environment.read(lambda txn: _damaged_tail(txn, dbs, member_id)) if peers else []
    if tail:
        environment.write(lambda txn: _cut(txn, dbs, member_id, tail))
        for record in tail:
            log.error(
                "member %d: damaged record at term %d, position %d, at the end of the log: it is "
                "cut off. What was in it may have been acknowledged: this member votes for nobody "
                "who lacks it, until another one has sent it again",
                member_id,
                record.term,
                record.position,
            )


def _start(txn: Transaction, dbs: Databases, member_id: int) -> int:
    return irreplaceable_row(member_id, "where its log begins", lambda: load_origin(txn, dbs)[0])


def _damaged_snapshots(
    txn: Transaction, dbs: Databases, member_id: int
) -> list[tuple[bytes, DamagedRecordError]]:
    found: list[tuple[bytes, DamagedRecordError]] = []
    with txn.cursor(dbs.snapshots) as cursor:
        for key, value in cursor:
            try:
                decode_snapshot_untrusted(member_id, key, value)
            except DamagedRecordError as damage:
                found.append((key, damage))
    return found


def _delete(dbs: Databases, key: bytes, txn: Transaction) -> None:
    txn.delete(key, db=dbs.snapshots)


# --- the table of terms
# ----------------------------------------------------------------------------


def _mended_rows(txn: Transaction, dbs: Databases, member_id: int) -> list[TermRow]:
    """Return the rows that are not there as they should be."""
    rows: dict[int, TermRow | None] = {}
    damage: StorageError | None = None
    with txn.cursor(dbs.terms) as cursor:
        for key, value in cursor:
            term = int.from_bytes(key)
            try:
                rows[term] = decode_term_untrusted(member_id, key, value)
            except DamagedRecordError as error:
                if len(key) != len(encode_term(TermRow(0, 0, None, 0))[0]) or _is_of_another_term(
                    member_id, term, value
                ):
                    raise
                rows[term], damage = None, error
    with txn.cursor(dbs.log) as cursor:
        last = last_record(cursor, member_id)
    start = _start(txn, dbs, member_id)
    end: int | None = start
    if last is not None:
        try:
            end = check_record_untrusted(member_id, last).end
            rows.setdefault(last.term, None)
        except DamagedRecordError:
            end = None  # and its key says nothing, either
    if _meet(rows):
        return []
    for term in _terms_of_log(txn, dbs, member_id, above=min(rows)):
        rows.setdefault(term, None)
    if _meet(rows):
        return []
    try:
        left = TermTableRepair(rows, lambda term: _first_of(txn, dbs, term), start, end)
        return left.mended()
    except StorageError as error:
        term = next((term for term in sorted(rows) if rows[term] is None), max(rows))
        reason = f"table of terms: the row of the term is damaged or missing, and {error}"
        raise DamagedRecordError(
            member_id=member_id, term=term, position=-1, reason=reason
        ) from damage


def _meet(rows: Mapping[int, TermRow | None]) -> bool:
    """Whether all rows are there, and each begins where the one before ends."""
    ordered = [rows[term] for term in sorted(rows)]
    return None not in ordered and all(
        before is not None and row is not None and before.end == row.base
        for before, row in itertools.pairwise(ordered)
    )


def _terms_of_log(txn: Transaction, dbs: Databases, member_id: int, *, above: int) -> list[int]:
    """Return the terms above one that have whole batches in the log."""
    found: list[int] = []
    with txn.cursor(dbs.log) as cursor:
        more = cursor.set_range(KEY.pack(above + 1, 0))
        while more:
            try:
                record = Record(*decode_key_untrusted(member_id, cursor.key()), cursor.value())
                term = check_record_untrusted(member_id, record).term
            except DamagedRecordError:
                more = cursor.next()  # its key may be damaged, too
            else:
                found.append(term)
                more = cursor.set_range(KEY.pack(term + 1, 0))
    return found


def _is_of_another_term(member_id: int, term: int, value: bytes) -> bool:
    """Whether a bit of a row's key has flipped, and not one of the row.

    A term that never was would win over logs that have more.
    """
    for bit in range(64):
        key = (term ^ 1 << bit).to_bytes(8, "big")
        with contextlib.suppress(DamagedRecordError):
            decode_term_untrusted(member_id, key, value)
            return True
    return False


@attrs.frozen
class TermTableRepair:
    """What is left of a table of terms, and what the log tells of it.

    Args:
        rows: those that there are, by their terms; None for a damaged one.
        first_of: gives where the first batch of a term begins that is kept, and its time; None if
            the log has none.
        start: where the log begins.
        end: where it ends, None if that is not certain.
    """

    rows: Mapping[int, TermRow | None]
    first_of: Callable[[int], tuple[int, int] | None]
    start: int
    end: int | None

    def mended(self) -> list[TermRow]:
        """Make again the rows that are damaged or missing, ascending.

        Raises:
            StorageError: where one of them begins can't be told.
        """
        made: list[TermRow] = []
        before: TermRow | None = None
        ordered = sorted(self.rows)
        for index, term in enumerate(ordered):
            row = self.rows[term]
            if row is None:
                row = self._made(term, ordered[index + 1 :], before)
                made.append(row)
            before = row
        return made

    def _made(self, term: int, behind: list[int], before: TermRow | None) -> TermRow:
        base = 0 if term == 0 else None if before is None else before.end
        if base is None:
            base = self._base_of([term, *behind])
        until = self._base_of(behind) if behind else None
        first = self.first_of(term)
        time = first[1] if first else before.timestamp_ms if before else 0
        return TermRow(term, base, until, time)

    def _base_of(self, terms: list[int]) -> int:
        """Say where the first of these terms begins by its row, or by what lies behind it."""
        asked = terms[0]
        telling = (one for one in terms if self.rows[one] or self.first_of(one))
        term = next(telling, terms[-1])  # the others are empty, or pruned
        row, first = self.rows[term], self.first_of(term)
        base = row.base if row is not None else self.end if first is None else first[0]
        if base is None:
            raise StorageError("the last batch of the log is damaged, too")
        if 0 < self.start >= base and (row is None or term > asked):
            raise StorageError(f"what there was of term {asked} before {self.start} is pruned")
        return base


def _first_of(txn: Transaction, dbs: Databases, term: int) -> tuple[int, int] | None:
    """Return where the first batch of a term begins, and its time, 0 if it is damaged."""
    with txn.cursor(dbs.log) as cursor:
        if not cursor.set_range(KEY.pack(term, 0)) or len(cursor.key()) != KEY.size:
            return None
        found, position = KEY.unpack(cursor.key())
        if found != term:
            return None
        try:
            return position, check_sum_untrusted(cursor.value()).timestamp_ms
        except WireError:
            return position, 0


def _put_rows(txn: Transaction, dbs: Databases, rows: list[TermRow]) -> None:
    for row in rows:
        key, value = encode_term(row)
        txn.put(key, value, db=dbs.terms)


# --- the end of the log ---------------------------------------------------------------------------


def _damaged_tail(txn: Transaction, dbs: Databases, member_id: int) -> list[Record]:
    """Return the damaged batches at the end of the log, ascending; mostly none.

    Raises:
        DamagedRecordError: they do not lie where they should: their keys may be damaged, too.
    """
    tail: list[Record] = []
    term, position = -1, _start(txn, dbs, member_id)
    damage: DamagedRecordError | None = None
    with txn.cursor(dbs.log) as cursor:
        record = last_record(cursor, member_id)
        while record is not None:
            try:
                header = check_record_untrusted(member_id, record)
            except DamagedRecordError as error:
                damage = damage or error
            else:
                term, position = header.term, header.end
                break
            tail.insert(0, attrs.evolve(record, batch=bytes(record.batch)))
            record = record_before(cursor, member_id, KEY.pack(record.term, record.position))
    rows = load_terms(txn, dbs, member_id) if tail else ()
    for record in tail:
        row = row_of(rows, record.term)
        begins = row is not None and (row.base == position or record.term == term)
        if record.position != position or not begins:
            assert damage is not None
            raise damage
        term, position = record.term, record.end
    return tail


def _cut(txn: Transaction, dbs: Databases, member_id: int, tail: list[Record]) -> None:
    """Take the batches off, as a truncation does, and note that they were there."""
    for record in tail:
        txn.delete(KEY.pack(record.term, record.position), db=dbs.log)
    rows = load_terms(txn, dbs, member_id)
    put_terms(txn, dbs, rows, cut_at(rows, tail[0].position))
    before = irreplaceable_row(member_id, "what else it has lost", lambda: load_lost(txn, dbs))
    lost = max(before, LogEnd(tail[-1].term, tail[-1].position + 1))
    txn.put(LOST_KEY, encode_lost(lost), db=dbs.meta)
