"""Every change of a store: the state that it leads to, and the LMDB operations that make it.

A change is made against the submitted state, and checked against it. A change that breaks a rule is
a bug of the caller, and fails an assertion. The operations may run more than once, each time in a
fresh transaction: LMDB repeats a transaction that did not fit its map. So they change nothing but
the transaction.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING

import attrs

from ..rows.identity import SERVICE_KEY, encode_service
from ..rows.log_end import EMPTY_LOG, LogEnd
from ..rows.membership import (
    MAX_MEMBERSHIP_BYTES,
    MembershipRow,
    encode_membership,
    membership_key,
    needed_from,
    up_to,
)
from ..rows.meta_rows import (
    ADMISSION_KEY,
    COMMITTED_KEY,
    LOST_KEY,
    ORIGIN_KEY,
    SUSPENDED_KEY,
    encode_committed,
    encode_last_admission,
    encode_origin,
    encode_suspended,
)
from ..rows.term_table import (
    SnapshotRow,
    TermRow,
    cut_at,
    encode_snapshot,
    encode_term,
    row_of,
    term_at,
    with_term,
)
from ..rows.vote import NODE_STATE_KEY, NodeState, encode_node_state
from ..rows.voting_status import VOTING_STATUS_KEY, VotingRight, VotingStatus, encode_voting_status
from .batch import (
    HEADER_BYTES,
    BatchHeader,
    EntryKind,
    configuration_untrusted,
    decode_header_untrusted,
)
from .log_table import END_KEY, KEY, Record, delete_before, delete_from, put_record
from .state import Recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ..lmdb.environment import Transaction
    from ..rows.databases import Databases


@attrs.frozen
class Change:
    """One change.

    Args:
        after: the state once it is durable.
        apply: makes it in a transaction; may be called again.
        record: set if the change only appends this record. Only such a change may take the journal.
    """

    after: Recorded
    apply: Callable[[Transaction], None]
    record: Record | None = None


def nothing(_dbs: Databases, old: Recorded) -> Change:
    """Change nothing. Durable once everything before it is."""
    # No record, so the group takes the way of LMDB, and the journal's batches go there first.
    return Change(old, lambda _txn: None)


def append(dbs: Databases, old: Recorded, batch: bytes, header: BatchHeader) -> Change:
    """Append a batch with this header; a new term gets its row."""
    term, position, end = header.term, header.position, header.end
    # Asserted although callers check what comes from outside: a gap in the log would show only at
    # the next start.
    assert header.length == len(batch), f"{header} of {len(batch)} bytes"
    assert position == old.append_position, f"{header}: the log ends elsewhere"
    # The term's row comes with the term's first batch, in one change (F7): without the row, a crash
    # would leave a log that claims an older term (H4).
    terms = with_row_of(old.terms, header)
    row = row_of(terms, term)
    assert row is not None, f"{header}: its term is not in the term table"
    assert row.base <= position, f"{header} begins before {row}"
    assert row.end is None or end <= row.end, f"{header} ends behind {row}"
    record = Record(term, position, batch)
    # A configuration is alone in its batch, so the first kind says it all. It may admit a store.
    # Where the last one is matters to votes: see :mod:`quorate.node.membership.admission`.
    configures = batch[HEADER_BYTES] == EntryKind.MEMBERSHIP if header.count else False
    admission = LogEnd(term, end) if configures else old.admission
    memberships = (
        with_configuration(old.memberships, batch, header) if configures else old.memberships
    )
    # Past the end of what was lost, this log has it again, or a newer leader's batches instead.
    lost = EMPTY_LOG if LogEnd(term, end) >= old.lost else old.lost
    # Positional, not attrs.evolve: that takes longer than all the rest of this function.
    after = Recorded(
        old.start_position,
        end,
        terms,
        old.snapshots,
        old.node_state,
        header.commit_position,
        header.timestamp_ms,
        old.suspended,
        old.voting_status,
        admission,
        old.forced,
        lost,
        old.service,
        memberships,
    )
    # A change of more than the record needs a transaction, which only LMDB has.
    alone = terms is old.terms and not configures and lost == old.lost
    apply = functools.partial(_put_batch, dbs, record, old, after)
    return Change(after, apply, record if alone else None)


def _put_batch(
    dbs: Databases, record: Record, old: Recorded, after: Recorded, txn: Transaction
) -> None:
    """Append a record, and write the rows that change with it."""
    put_record(txn, dbs, record)
    if after.terms is not old.terms:
        put_terms(txn, dbs, old.terms, after.terms)
    if after.admission is not old.admission:
        txn.put(ADMISSION_KEY, encode_last_admission(after.admission), db=dbs.meta)
        put_memberships(txn, dbs, old.memberships, after.memberships)
    if after.lost != old.lost:
        txn.delete(LOST_KEY, db=dbs.meta)


def with_row_of(terms: tuple[TermRow, ...], header: BatchHeader) -> tuple[TermRow, ...]:
    """Return `terms`, with a row for the batch's term if that term is above all others."""
    if terms and header.term <= terms[-1].term:
        return terms
    return with_term(terms, TermRow(header.term, header.position, None, header.timestamp_ms))


def with_configuration(
    rows: tuple[MembershipRow, ...], batch: bytes, header: BatchHeader
) -> tuple[MembershipRow, ...]:
    """Return `rows`, with one more for the configuration in a batch."""
    row = configuration_row(batch, header)
    return rows if row is None else (*rows, row)


def configuration_row(batch: bytes, header: BatchHeader) -> MembershipRow | None:
    """Return the row for a whole, checked batch; None if it holds no configuration."""
    payload = configuration_untrusted(batch)
    # No leader writes a longer one, and none is received. Should a log hold one nevertheless, it
    # is no configuration, on this member as on all: they have the same bytes and the same bound.
    if payload is None or len(payload) > MAX_MEMBERSHIP_BYTES:
        return None
    return MembershipRow(header.term, header.end, payload)


def set_terms(dbs: Databases, old: Recorded, terms: tuple[TermRow, ...]) -> Change:
    """Replace the term table. A term that is new must begin at the end of the log."""
    # A term that began inside the log would claim batches that another leader wrote (I-12, I-16).
    if len(terms) > len(old.terms):
        assert terms[-1].base >= old.append_position, f"{terms[-1]} begins inside of the log"
    return Change(attrs.evolve(old, terms=terms), lambda txn: put_terms(txn, dbs, old.terms, terms))


def set_node_state(dbs: Databases, old: Recorded, state: NodeState) -> Change:
    """Replace the vote."""
    # The last line of defence of the protocol: two votes in one term elect two leaders (I-2), and
    # promises only rise (I-3).
    assert old.node_state.may_become(state), f"{old.node_state} can't become {state}"
    row = encode_node_state(state)

    def apply(txn: Transaction) -> None:
        txn.put(NODE_STATE_KEY, row, db=dbs.meta)

    return Change(attrs.evolve(old, node_state=state), apply)


def clear_lost(dbs: Databases, old: Recorded) -> Change:
    """Note that the log again has the batches that were damaged at its end."""

    def apply(txn: Transaction) -> None:
        txn.delete(LOST_KEY, db=dbs.meta)

    return Change(attrs.evolve(old, lost=EMPTY_LOG), apply)


def set_suspended(dbs: Databases, old: Recorded, *, suspended: bool) -> Change:
    """Note whether an operator has suspended the cluster."""

    def apply(txn: Transaction) -> None:
        txn.put(SUSPENDED_KEY, encode_suspended(suspended), db=dbs.meta)

    return Change(attrs.evolve(old, suspended=suspended), apply)


def set_service(dbs: Databases, old: Recorded, kind: str) -> Change:
    """Note the kind of service that the log belongs to; it never changes."""
    # Another service would read the same payloads as other commands.
    assert old.service in {"", kind}, f"{old.service} can't become {kind}"

    def apply(txn: Transaction) -> None:
        txn.put(SERVICE_KEY, encode_service(kind), db=dbs.meta)

    return Change(attrs.evolve(old, service=kind), apply)


def set_committed(dbs: Databases, old: Recorded, position: int) -> Change:
    """Note that the log is committed up to a position; its batches alone do not say so."""
    assert position <= old.append_position, f"{position} is behind the end {old.append_position}"

    def apply(txn: Transaction) -> None:
        txn.put(COMMITTED_KEY, encode_committed(position), db=dbs.meta)

    # What is known to be committed never shrinks, even if this caller knows of less.
    known = max(position, old.last_commit_position)
    return Change(attrs.evolve(old, last_commit_position=known), apply)


def set_voting_status(dbs: Databases, old: Recorded, status: VotingStatus) -> Change:
    """Replace the voting status; a store that has a vote keeps it until its member is removed."""
    # Taken back sooner, a vote could leave a committed entry without the quorum that it counted on.
    removed = attrs.evolve(old.voting_status, kind=VotingRight.REMOVED)
    assert old.voting_status.kind is not VotingRight.VOTER or status == removed, (
        f"{old.voting_status} can't become {status}"
    )

    def apply(txn: Transaction) -> None:
        txn.put(VOTING_STATUS_KEY, encode_voting_status(status), db=dbs.meta)

    return Change(attrs.evolve(old, voting_status=status), apply)


def add_snapshot(dbs: Databases, old: Recorded, added: SnapshotRow) -> Change:
    """Add a snapshot, or replace the one of the same position and term."""
    key, value = encode_snapshot(added)
    # By the key that LMDB uses: a snapshot that is taken or fetched again replaces its row.
    rows = {(row.position, row.term): row for row in (*old.snapshots, added)}

    def apply(txn: Transaction) -> None:
        txn.put(key, value, db=dbs.snapshots)

    return Change(attrs.evolve(old, snapshots=tuple(row for _, row in sorted(rows.items()))), apply)


def remove_snapshots(dbs: Databases, old: Recorded, removed: Collection[SnapshotRow]) -> Change:
    """Remove rows of snapshots."""

    def apply(txn: Transaction) -> None:
        for row in removed:
            txn.delete(encode_snapshot(row)[0], db=dbs.snapshots)

    kept = tuple(row for row in old.snapshots if row not in removed)
    return Change(attrs.evolve(old, snapshots=kept), apply)


def install(
    dbs: Databases,
    old: Recorded,
    snapshot: SnapshotRow,
    terms: tuple[TermRow, ...],
    *,
    suspended: bool,
    membership: bytes,
) -> Change:
    """Begin the log anew, empty, at the position of a snapshot from another member.

    Args:
        dbs: of the store.
        old: the state before.
        snapshot: where the log begins.
        terms: the term table up to there.
        suspended: an operator has suspended the cluster.
        membership: the configuration that is in force there; empty without one.
    """
    # The dropped log may have admitted a store anywhere. The safe guess is: at its very end.
    admission = LogEnd(snapshot.term, snapshot.position)
    lost = EMPTY_LOG if admission >= old.lost else old.lost
    # Its batch is not in this log. But the batch was committed, so no truncation asks for an older
    # one.
    row = MembershipRow(snapshot.term, snapshot.position, membership)
    after = attrs.evolve(
        old,
        start_position=snapshot.position,
        append_position=snapshot.position,
        terms=terms,
        snapshots=(snapshot,),
        # A snapshot has only what was committed, so its position is a lower bound.
        last_commit_position=snapshot.position,
        last_timestamp_ms=snapshot.timestamp_ms,
        suspended=suspended,
        admission=admission,
        lost=lost,
        memberships=(row,) if membership else (),
    )
    return Change(after, functools.partial(_begin_anew, dbs, snapshot, old, after))


def _begin_anew(
    dbs: Databases, snapshot: SnapshotRow, old: Recorded, after: Recorded, txn: Transaction
) -> None:
    """Empty the tables about the log, and write what they say behind a snapshot."""
    # One transaction: a crash leaves the old log, or the snapshot with an empty one.
    # Emptied, not deleted: the handles of the tables stay valid for the readers.
    for table in (dbs.log, dbs.terms, dbs.snapshots, dbs.members):
        txn.drop(table, delete=False)
    # Against no rows at all: every row has just been dropped.
    put_terms(txn, dbs, (), after.terms)
    put_memberships(txn, dbs, (), after.memberships)
    key, value = encode_snapshot(snapshot)
    txn.put(key, value, db=dbs.snapshots)
    origin = encode_origin(snapshot.position, snapshot.timestamp_ms)
    txn.put(ORIGIN_KEY, origin, db=dbs.meta)
    txn.put(SUSPENDED_KEY, encode_suspended(after.suspended), db=dbs.meta)
    txn.put(ADMISSION_KEY, encode_last_admission(after.admission), db=dbs.meta)
    if after.lost != old.lost:
        txn.delete(LOST_KEY, db=dbs.meta)


def truncate(
    dbs: Databases,
    old: Recorded,
    position: int,
    last_term: int | None,
    *,
    commit_position: int,
    timestamp_ms: int,
) -> Change:
    """Drop the batches at and behind `position`.

    Args:
        dbs: of the store.
        old: the state before.
        position: the end of the log then.
        last_term: the last term to keep; None keeps every term that begins at or before `position`.
        commit_position: what the last batch left says is committed.
        timestamp_ms: the time of that batch.
    """
    # No row covers `position` only at the end of a log whose last term is closed. Then there is no
    # batch to drop.
    row = term_at(old.terms, position)
    key = END_KEY if row is None else KEY.pack(row.term, position)
    # Rows and batches go in one transaction: a row that outlives its batches would make the log
    # look longer than it is (I-12).
    terms = cut_at(old.terms, position, last_term)
    # So do configurations: the one before the cut is in force again.
    memberships = up_to(old.memberships, position)

    def apply(txn: Transaction) -> None:
        with txn.cursor(dbs.log) as cursor:
            delete_from(cursor, key)
        put_terms(txn, dbs, old.terms, terms)
        put_memberships(txn, dbs, old.memberships, memberships)

    after = attrs.evolve(
        old,
        append_position=position,
        terms=terms,
        last_commit_position=commit_position,
        last_timestamp_ms=timestamp_ms,
        memberships=memberships,
    )
    return Change(after, apply)


def replace(dbs: Databases, old: Recorded, batch: bytes) -> Change:
    """Put a batch where the one of its term and position is damaged or missing."""
    header = decode_header_untrusted(batch)
    key = KEY.pack(header.term, header.position)

    # The state stays: the new batch has the place, the length and the header of the old one.
    def apply(txn: Transaction) -> None:
        txn.put(key, batch, db=dbs.log)

    return Change(old, apply)


def prune(dbs: Databases, old: Recorded, key: bytes, position: int, timestamp_ms: int) -> Change:
    """Drop every batch before `key`, which is the key of the first one to keep, at `position`."""
    if position <= old.start_position:
        return nothing(dbs, old)  # a snapshot was installed in between: the log begins later
    origin = encode_origin(position, timestamp_ms)
    # Pruning goes in steps, so what a row is needed for is asked anew in each of them.
    memberships = needed_from(old.memberships, position)

    def apply(txn: Transaction) -> None:
        with txn.cursor(dbs.log) as cursor:
            delete_before(cursor, key)
        put_memberships(txn, dbs, old.memberships, memberships)
        txn.put(ORIGIN_KEY, origin, db=dbs.meta)

    # Terms and snapshots stay: a row is needed for as long as anybody compares logs by it.
    after = attrs.evolve(old, start_position=position, memberships=memberships)
    if position == old.append_position:
        # The last batch, which said what is committed, is gone. Only committed ones are pruned.
        after = attrs.evolve(after, last_commit_position=position)
    return Change(after, apply)


def put_terms(
    txn: Transaction, dbs: Databases, old: tuple[TermRow, ...], new: tuple[TermRow, ...]
) -> None:
    """Write the rows that differ, and the kind of service, in a transaction."""
    # Written with each change of terms, so a store with a log also says which service made it.
    if dbs.service:
        txn.put(SERVICE_KEY, encode_service(dbs.service), db=dbs.meta)
    for before, after in itertools.zip_longest(old, new):
        if after is None:
            txn.delete(encode_term(before)[0], db=dbs.terms)
        elif before != after:
            # A table changes at its end only, so rows at one index are of one term.
            assert before is None or before.term == after.term, f"{after} in the place of {before}"
            key, value = encode_term(after)
            txn.put(key, value, db=dbs.terms)


def put_memberships(
    txn: Transaction,
    dbs: Databases,
    old: tuple[MembershipRow, ...],
    new: tuple[MembershipRow, ...],
) -> None:
    """Write the configurations that differ, in a transaction."""
    if new is old:
        return
    before, after = {row.position: row for row in old}, {row.position: row for row in new}
    for position in before.keys() - after.keys():
        txn.delete(membership_key(position), db=dbs.members)
    for position, row in after.items():
        if row != before.get(position):
            key, value = encode_membership(row)
            txn.put(key, value, db=dbs.members)
