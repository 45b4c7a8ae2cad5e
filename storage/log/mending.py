"""What a store mends by itself when it is opened: its small rows, and the end of its log.

Rows of the term table
----------------------
Such a row can nearly always be rebuilt. A term begins where the term before ends, or where its
first batch is; it ends where the next one begins. So a damaged or missing row is made again from
its neighbours and the keys of the log. Where they do not settle it, the store is refused: for
example, if the batches are pruned and the next row is gone, too. A missing row shows as a gap
between its neighbours. The row of a term without batches may be missing unnoticed; no log needs it.

A damaged row about a snapshot is removed. Another snapshot, or another member, serves instead.

A damaged row about a configuration is made again from the batch that ends at its position. If that
batch is pruned or damaged, the store is refused. Without the row it would take an older
configuration for the one in force, and might vote in an election that is not its own.

The last batches
----------------
A damaged batch inside the log is fetched from another member when it is read
(:mod:`quorate.node.upkeep.repair`); the batches behind it prove how far the log goes. At the very
end nothing proves that. So damaged batches there are cut off, with their configurations, as a
truncation would do. A durable note says that they were there (`meta_rows.LOST_KEY`).

Why cutting is safe
-------------------
This member may have acknowledged those batches. Until its log has them again, or a newer leader's
batches in their place, it never stands, and votes only for candidates whose log has them. Say they
were committed. Then a winner has them itself, or it won with a quorum without this member; one of
that quorum has them, and votes for no candidate that has not. So every winner has them, and this
member gets them back like any follower that is behind.

The note is an end in the log: the term of the last damaged batch, and one byte behind that batch's
beginning. A log that reaches this end has that very batch, since a term has one writer. The bytes
of the damaged batches are not trusted; their keys are, if they fit the intact batch before them and
the term table.

What we do not do
-----------------
Without peers nothing is cut off: nobody could send it again.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
from typing import TYPE_CHECKING

import attrs

from ...errors import DamagedRecordError, LostStoreError, StorageError, WireError
from ...log_events import log_event
from ..lmdb.sealed_rows import irreplaceable_row
from ..rows.log_end import LogEnd
from ..rows.membership import (
    decode_membership_untrusted,
    encode_membership,
    membership_key,
)
from ..rows.meta_rows import LOST_KEY, encode_lost, load_lost, load_origin, load_terms
from ..rows.term_table import (
    TermRow,
    cut_at,
    decode_snapshot_untrusted,
    decode_term_untrusted,
    encode_term,
    row_of,
    term_at,
)
from .batch import check_sum_untrusted
from .changes import configuration_row, put_terms
from .log_table import (
    KEY,
    Record,
    check_record_untrusted,
    decode_key_untrusted,
    delete_from,
    last_record,
    record_before,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..lmdb.environment import Environment, Transaction
    from ..rows.databases import Databases
    from ..rows.membership import MembershipRow

log = logging.getLogger("quorate.storage")


def mend(environment: Environment, dbs: Databases, member_id: int, *, peers: bool) -> None:
    """Mend a store durably, and log each mend.

    Args:
        environment: of the store.
        dbs: its sub-databases.
        member_id: of the store.
        peers: other members exist, from which cut-off batches come back.

    Raises:
        DamagedRecordError: a row of the term table can't be rebuilt, or the place of a damaged
            batch is not certain.
        LostStoreError: the row about a configuration is damaged, and so is its batch, or pruned.
    """
    # The term table before the end of the log, whose batches are compared with it. Configurations
    # last: a row is not needed if its batch is cut off.
    snapshots = environment.read(lambda txn: _damaged_snapshots(txn, dbs, member_id))
    for key, damage in snapshots:
        # Durable before it is logged, as each mend: a line about a mend that a crash undid would
        # mislead.
        environment.write(functools.partial(_delete, dbs, key))
        log_event(
            log,
            logging.ERROR,
            "snapshot_row_damaged",
            "%(damage)s: the row is removed, and its file is not used",
            damage=str(damage),
        )
    rows = environment.read(lambda txn: _mended_rows(txn, dbs, member_id))
    if rows:
        environment.write(lambda txn: _put_rows(txn, dbs, rows))
        for row in rows:
            _log_mended(row, member_id)
    tail = environment.read(lambda txn: _damaged_tail(txn, dbs, member_id)) if peers else []
    if tail:
        environment.write(lambda txn: _cut(txn, dbs, member_id, tail))
        for record in tail:
            _log_cut(record, member_id)
    _mend_configurations(environment, dbs, member_id)


def _log_mended(row: TermRow, member_id: int) -> None:
    log_event(
        log,
        logging.ERROR,
        "term_mended",
        "member %(member)d: term table: the row of term %(term)d was damaged or missing; it is "
        "mended: by its neighbours and the log it covers %(base)d to %(end)s",
        member=member_id,
        term=row.term,
        base=row.base,
        end="the end" if row.end is None else row.end,
    )


def _log_cut(record: Record, member_id: int) -> None:
    log_event(
        log,
        logging.ERROR,
        "record_cut",
        "member %(member)d: damaged record at term %(term)d, position %(position)d, at the end of "
        "the log: it is cut off. It may have been acknowledged: until another member has sent it "
        "again, this member votes only for candidates that have it",
        member=member_id,
        term=record.term,
        position=record.position,
    )


def _start(txn: Transaction, dbs: Databases, member_id: int) -> int:
    return irreplaceable_row(member_id, "where its log begins", lambda: load_origin(txn, dbs)[0])


def _damaged_snapshots(
    txn: Transaction, dbs: Databases, member_id: int
) -> list[tuple[bytes, DamagedRecordError]]:
    """Return key and error of each damaged snapshot row."""
    damaged: list[tuple[bytes, DamagedRecordError]] = []
    with txn.cursor(dbs.snapshots) as cursor:
        for key, value in cursor:
            try:
                decode_snapshot_untrusted(member_id, key, value)
            except DamagedRecordError as damage:
                damaged.append((key, damage))
    return damaged


def _delete(dbs: Databases, key: bytes, txn: Transaction) -> None:
    txn.delete(key, db=dbs.snapshots)


# --- the term table -------------------------------------------------------------------------------


def _mended_rows(txn: Transaction, dbs: Databases, member_id: int) -> list[TermRow]:
    """Return the rows that are damaged or missing, rebuilt."""
    rows: dict[int, TermRow | None] = {}
    damage: StorageError | None = None
    with txn.cursor(dbs.terms) as cursor:
        for key, value in cursor:
            term = int.from_bytes(key)
            try:
                rows[term] = decode_term_untrusted(member_id, key, value)
            except DamagedRecordError as error:
                # The checksum covers key and row, so the damage may be in the key. Then the term
                # itself is not certain.
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
            # A log with a batch of this term needs its row, even if that row has vanished.
            rows.setdefault(last.term, None)
        except DamagedRecordError:
            end = None  # and its key may be damaged too
    # The usual case: no row is damaged. Of the log, only the last batch was read for this.
    if _meet(rows):
        return []
    # There is a gap. Only now is the log searched for terms whose rows have vanished.
    for term in _terms_of_log(txn, dbs, member_id, above=min(rows)):
        rows.setdefault(term, None)
    if _meet(rows):
        return []
    try:
        left = TermTableRepair(rows, lambda term: _first_of(txn, dbs, term), start, end)
        return left.mended()
    except StorageError as error:
        term = next((term for term in sorted(rows) if rows[term] is None), max(rows))
        reason = f"term table: the row of the term is damaged or missing, and {error}"
        raise DamagedRecordError(
            member_id=member_id, term=term, position=-1, reason=reason
        ) from damage


def _meet(rows: Mapping[int, TermRow | None]) -> bool:
    """Whether every row is there, and each begins where the one before ends."""
    ordered = [rows[term] for term in sorted(rows)]
    return None not in ordered and all(
        before is not None and row is not None and before.end == row.base
        for before, row in itertools.pairwise(ordered)
    )


def _terms_of_log(txn: Transaction, dbs: Databases, member_id: int, *, above: int) -> list[int]:
    """Return the terms above one that have an intact batch in the log."""
    terms: list[int] = []
    with txn.cursor(dbs.log) as cursor:
        more = cursor.set_range(KEY.pack(above + 1, 0))
        while more:
            try:
                record = Record(*decode_key_untrusted(member_id, cursor.key()), cursor.value())
                term = check_record_untrusted(member_id, record).term
            except DamagedRecordError:
                more = cursor.next()  # its key may be damaged, too
            else:
                terms.append(term)
                # One batch is enough to prove a term, so the rest of it is skipped: the log may
                # have gigabytes.
                more = cursor.set_range(KEY.pack(term + 1, 0))
    return terms


def _is_of_another_term(member_id: int, term: int, value: bytes) -> bool:
    """Whether a flipped bit of the row's key explains the damage, instead of one in the row."""
    # Believing such a key would invent a term, and a log with it would win over longer ones.
    for bit in range(64):
        key = (term ^ 1 << bit).to_bytes(8, "big")
        with contextlib.suppress(DamagedRecordError):
            decode_term_untrusted(member_id, key, value)
            return True
    return False


@attrs.frozen
class TermTableRepair:
    """What is left of a term table, and what the log says about it.

    Args:
        rows: by term; None for a damaged or missing one.
        first_of: returns position and time of the first batch of a term that is kept; None if the
            log has none.
        start: where the log begins.
        end: where it ends; None if that is not certain.
    """

    rows: Mapping[int, TermRow | None]
    first_of: Callable[[int], tuple[int, int] | None]
    start: int
    end: int | None

    def mended(self) -> list[TermRow]:
        """Return the damaged and missing rows, rebuilt, ascending.

        Raises:
            StorageError: where one of them begins can't be determined.
        """
        made: list[TermRow] = []
        before: TermRow | None = None
        ordered = sorted(self.rows)
        # Ascending: a rebuilt row is the neighbour by which the next one is rebuilt.
        for index, term in enumerate(ordered):
            row = self.rows[term]
            if row is None:
                row = self._rebuilt(term, ordered[index + 1 :], before)
                made.append(row)
            before = row
        return made

    def _rebuilt(self, term: int, behind: list[int], before: TermRow | None) -> TermRow:
        if term == 0:
            base = 0  # the first term there can be
        elif before is not None and before.end is not None:
            base = before.end
        else:
            # The row before is open or missing, so what lies behind says where this one begins.
            base = self._base_of([term, *behind])
        # Without a term behind it this row is the open one.
        until = self._base_of(behind) if behind else None
        time = before.timestamp_ms if before else 0
        if (first := self.first_of(term)) is not None:
            time = first[1]
        return TermRow(term, base, until, time)

    def _base_of(self, terms: list[int]) -> int:
        """Return where the first of these terms begins, by its row or by what lies behind it."""
        asked = terms[0]
        # Terms without a row and without a batch are empty or pruned; the next one decides.
        known = (one for one in terms if self.rows[one] or self.first_of(one))
        term = next(known, terms[-1])
        row, first = self.rows[term], self.first_of(term)
        base = row.base if row is not None else self.end if first is None else first[0]
        if base is None:
            raise StorageError("the last batch of the log is damaged, too")
        # The asked term may have begun among the pruned batches. What is left would then give too
        # late a beginning.
        if self.start > 0 and base <= self.start and (row is None or term > asked):
            raise StorageError(f"the batches of term {asked} before {self.start} are pruned")
        return base


def _first_of(txn: Transaction, dbs: Databases, term: int) -> tuple[int, int] | None:
    """Return position and time of a term's first batch; time 0 if the batch is damaged."""
    with txn.cursor(dbs.log) as cursor:
        if not cursor.set_range(KEY.pack(term, 0)) or len(cursor.key()) != KEY.size:
            return None
        there, position = KEY.unpack(cursor.key())
        if there != term:
            return None
        try:
            return position, check_sum_untrusted(cursor.value()).timestamp_ms
        except WireError:
            # The key alone proves where the term begins. The time is lost with the batch.
            return position, 0


def _put_rows(txn: Transaction, dbs: Databases, rows: list[TermRow]) -> None:
    for row in rows:
        key, value = encode_term(row)
        txn.put(key, value, db=dbs.terms)


# --- configurations -------------------------------------------------------------------------------


def _mend_configurations(environment: Environment, dbs: Databases, member_id: int) -> None:
    """Mend the rows of configurations durably, and log each mend."""
    rows = environment.read(lambda txn: _mended_configurations(txn, dbs, member_id))
    if not rows:
        return

    def write(txn: Transaction) -> None:
        for row in rows:
            key, value = encode_membership(row)
            txn.put(key, value, db=dbs.members)

    environment.write(write)
    for row in rows:
        log_event(
            log,
            logging.ERROR,
            "config_mended",
            "member %(member)d: configurations: the row at %(position)d was damaged; it is mended "
            "by the batch that ends there, in term %(term)d",
            member=member_id,
            position=row.position,
            term=row.term,
        )


def _mended_configurations(txn: Transaction, dbs: Databases, member_id: int) -> list[MembershipRow]:
    """Return the rows of configurations that are damaged, made again from their batches.

    Raises:
        LostStoreError: there is no intact batch with such a configuration.
    """
    made: list[MembershipRow] = []
    with txn.cursor(dbs.members) as cursor:
        for key, value in cursor:
            try:
                decode_membership_untrusted(member_id, key, value)
            except DamagedRecordError as damage:
                row = _configuration_at(txn, dbs, member_id, damage.position)
                # A damaged key leads to a batch of another kind, or to none.
                if row is None or membership_key(row.position) != key:
                    raise LostStoreError(
                        f"member {member_id}: {damage.reason}; the batch that ends at "
                        f"{damage.position} is pruned or damaged, too, so which members vote is "
                        "lost with it"
                    ) from damage
                made.append(row)
    return made


def _configuration_at(
    txn: Transaction, dbs: Databases, member_id: int, end: int
) -> MembershipRow | None:
    """Return the row for the batch that ends at a position; None if it holds no configuration."""
    # Within the batch, not at its end: there the next term may begin.
    term = term_at(load_terms(txn, dbs, member_id), end - 1)
    if term is None:
        return None
    with txn.cursor(dbs.log) as cursor:
        record = record_before(cursor, member_id, KEY.pack(term.term, end))
    if record is None or record.end != end:
        return None
    try:
        header = check_record_untrusted(member_id, record)
    except DamagedRecordError:
        return None
    return configuration_row(record.batch, header)


# --- the end of the log ---------------------------------------------------------------------------


def _damaged_tail(txn: Transaction, dbs: Databases, member_id: int) -> list[Record]:
    """Return the damaged batches at the end of the log, ascending; usually none.

    Raises:
        DamagedRecordError: they do not fit what is before them, so their keys may be damaged too.
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
                # The error of the last batch is the one to raise: it names where the log would have
                # ended.
                damage = damage or error
            else:
                term, position = header.term, header.end
                break
            tail.insert(0, attrs.evolve(record, batch=bytes(record.batch)))
            record = record_before(cursor, member_id, KEY.pack(record.term, record.position))
    rows = load_terms(txn, dbs, member_id) if tail else ()
    for record in tail:
        row = row_of(rows, record.term)
        # A batch begins its term's row, or goes on in the term of the batch before. A damaged key
        # rarely satisfies that and the position as well.
        begins = row is not None and (row.base == position or record.term == term)
        if record.position != position or not begins:
            assert damage is not None
            raise damage
        term, position = record.term, record.end
    return tail


def _cut(txn: Transaction, dbs: Databases, member_id: int, tail: list[Record]) -> None:
    """Delete the batches, as a truncation does, and note that they were there."""
    for record in tail:
        txn.delete(KEY.pack(record.term, record.position), db=dbs.log)
    rows = load_terms(txn, dbs, member_id)
    # As a truncation would: a row behind the new end would claim a log that is not there (I-12).
    put_terms(txn, dbs, rows, cut_at(rows, tail[0].position))
    with txn.cursor(dbs.members) as cursor:
        # By the keys alone: one of these rows may be damaged, too.
        delete_from(cursor, membership_key(tail[0].position + 1))
    # An older note may reach further; keep the later end.
    before = irreplaceable_row(member_id, "what else it has lost", lambda: load_lost(txn, dbs))
    # In the transaction of the cut: without the note, this member would vote as if it had never
    # acknowledged these batches.
    lost = max(before, LogEnd(tail[-1].term, tail[-1].position + 1))
    txn.put(LOST_KEY, encode_lost(lost), db=dbs.meta)
