"""The state of a store except for its batches: one frozen value, and how it is read from disk.

A change carries the state that holds once it is durable. So what was submitted and what is durable
are two values of one type, see `store`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import attrs

from ...errors import DamagedRecordError
from ..lmdb.sealed_rows import irreplaceable_row
from ..rows.databases import Databases
from ..rows.identity import IDENTITY_KEY, SERVICE_KEY, Identity, encode_identity, service_untrusted
from ..rows.log_end import EMPTY_LOG, LogEnd
from ..rows.meta_rows import (
    ORIGIN_KEY,
    encode_origin,
    load_committed,
    load_forced,
    load_last_admission,
    load_lost,
    load_memberships,
    load_node_state,
    load_origin,
    load_suspended,
    load_terms,
    load_voting_status,
)
from ..rows.term_table import (
    ForcedRow,
    SnapshotRow,
    TermRow,
    decode_snapshot_untrusted,
    incoherences,
    row_of,
)
from ..rows.vote import NODE_STATE_KEY, NodeState, encode_node_state
from ..rows.voting_status import VOTING_STATUS_KEY, VotingStatus, encode_voting_status
from .log_table import KEY, check_record_untrusted, last_record, record_before

if TYPE_CHECKING:
    import lmdb

    from ..lmdb.environment import Transaction
    from ..rows.membership import MembershipRow
    from .batch import BatchHeader


@attrs.frozen
class Recorded:
    """The state of a store. Positions are byte offsets in the log.

    Args:
        start_position: first position kept.
        append_position: end of the log.
        terms: the term table, ascending.
        snapshots: rows of the snapshots that exist, ascending.
        node_state: the vote.
        last_commit_position: the log is committed at least up to here.
        last_timestamp_ms: log time of the last batch.
        suspended: an operator has suspended the cluster.
        voting_status: whether the store has a vote.
        admission: a lower bound on the end of the last batch that admitted a store.
        forced: where a quorum was forced, the oldest first.
        lost: a log that reaches this end has what was damaged at the end of this log (see
            `mending`). `EMPTY_LOG` if nothing was.
        service: kind of the service, empty if the store was never opened with one.
        memberships: the configurations that the log holds, ascending by position, and the one that
            is in force where it begins; none in a store of format 3.
    """

    start_position: int = 0
    append_position: int = 0
    terms: tuple[TermRow, ...] = ()
    snapshots: tuple[SnapshotRow, ...] = ()
    node_state: NodeState = attrs.field(factory=NodeState)
    last_commit_position: int = 0
    last_timestamp_ms: int = 0
    suspended: bool = False
    voting_status: VotingStatus = attrs.field(factory=VotingStatus)
    admission: LogEnd = EMPTY_LOG
    forced: tuple[ForcedRow, ...] = ()
    lost: LogEnd = EMPTY_LOG
    service: str = ""
    memberships: tuple[MembershipRow, ...] = ()


class StateView:
    """Properties of a state that is replaced as a whole.

    Attributes:
        recorded: all of it, one consistent value.
    """

    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded

    @property
    def start_position(self) -> int:
        """First position of the log that is kept."""
        return self.recorded.start_position

    @property
    def append_position(self) -> int:
        """Durable end of the log."""
        return self.recorded.append_position

    @property
    def terms(self) -> tuple[TermRow, ...]:
        """The term table, ascending. Skipped terms have no row; the last row may be open."""
        return self.recorded.terms

    @property
    def log_term(self) -> int:
        """The last term in the term table, -1 without one."""
        return self.recorded.terms[-1].term if self.recorded.terms else -1

    @property
    def snapshots(self) -> tuple[SnapshotRow, ...]:
        """The snapshots, ascending by position."""
        return self.recorded.snapshots

    @property
    def node_state(self) -> NodeState:
        """The vote."""
        return self.recorded.node_state

    @property
    def voting_status(self) -> VotingStatus:
        """Whether this store has a vote."""
        return self.recorded.voting_status

    @property
    def memberships(self) -> tuple[MembershipRow, ...]:
        """The configurations of the log, ascending by position."""
        return self.recorded.memberships

    @property
    def last_commit_position(self) -> int:
        """The log is committed at least up to here, by its last batch or by a backup's row."""
        return self.recorded.last_commit_position

    @property
    def last_timestamp_ms(self) -> int:
        """Log time of the last batch, 0 before the first one."""
        return self.recorded.last_timestamp_ms


def initialise(
    raw: lmdb.Environment, identity: Identity, status: VotingStatus | None = None
) -> None:
    """Fill a new environment; its voting status is NEW unless given."""
    dbs = Databases(raw, create=True)
    # Every row from the start. A row that is missing later is damage, never a store from before its
    # first vote.
    with raw.begin(write=True) as txn:
        txn.put(IDENTITY_KEY, encode_identity(identity), db=dbs.meta)
        txn.put(NODE_STATE_KEY, encode_node_state(NodeState()), db=dbs.meta)
        txn.put(ORIGIN_KEY, encode_origin(0, 0), db=dbs.meta)
        txn.put(VOTING_STATUS_KEY, encode_voting_status(status or VotingStatus()), db=dbs.meta)


def load(txn: Transaction, dbs: Databases, member_id: int, *, lenient: bool = False) -> Recorded:
    """Read the state.

    The last batch of the log is checked. If it is damaged and the reader is `lenient`, the log ends
    before the damage.

    Raises:
        StorageError: something is damaged (DamagedRecordError if its place in the log is known).
    """
    # Rows that only this store has. A guess in place of one could give a second vote in a term
    # (I-2), so damage stops the member.
    kept = functools.partial(irreplaceable_row, member_id)
    start, timestamp_ms = kept("where its log begins", lambda: load_origin(txn, dbs))
    with txn.cursor(dbs.snapshots) as cursor:
        snapshots = tuple(decode_snapshot_untrusted(member_id, key, row) for key, row in cursor)
    recorded = Recorded(
        start_position=start,
        append_position=start,
        terms=load_terms(txn, dbs, member_id),
        snapshots=snapshots,
        node_state=kept("its vote", lambda: load_node_state(txn, dbs)),
        last_commit_position=start,
        last_timestamp_ms=timestamp_ms,
        suspended=kept("whether it is suspended", lambda: load_suspended(txn, dbs)),
        voting_status=kept("whether it may vote", lambda: load_voting_status(txn, dbs)),
        admission=kept("its last admission", lambda: load_last_admission(txn, dbs)),
        forced=kept("whether a quorum was forced", lambda: load_forced(txn, dbs)),
        lost=kept("what else it has lost", lambda: load_lost(txn, dbs)),
        service=kept(
            "its kind of service", lambda: service_untrusted(txn.get(SERVICE_KEY, db=dbs.meta))
        ),
        memberships=load_memberships(txn, dbs, member_id),
    )
    _check_terms(member_id, recorded.terms)
    try:
        recorded = _with_last_batch(txn, dbs, member_id, recorded)
    except DamagedRecordError:
        # A member must not go on with a shortened log: it may have acknowledged what is missing
        # (I-25).
        if not lenient:
            raise
        # The row about commits is left out: it may speak of batches behind the damage.
        return _with_last_whole_batch(txn, dbs, member_id, recorded)
    # Cutting off a damaged end leaves this row as it is. It must not claim more than the log has
    # (I-18).
    committed = min(load_committed(txn, dbs), recorded.append_position)
    known = max(committed, recorded.last_commit_position)
    return attrs.evolve(recorded, last_commit_position=known)


def _check_terms(member_id: int, rows: tuple[TermRow, ...]) -> None:
    """Refuse a term table that contradicts itself.

    Raises:
        DamagedRecordError: it does.
    """
    for term, words in incoherences(rows):
        raise DamagedRecordError(
            member_id=member_id, term=term, position=-1, reason=f"term table: {words}"
        )


def ending_with(recorded: Recorded, header: BatchHeader) -> Recorded:
    """Return the state with one more batch, checked by the caller, at the end of the log."""
    return attrs.evolve(
        recorded,
        append_position=header.end,
        # A backup may know of more than the batch says; see `load_committed`.
        last_commit_position=max(recorded.last_commit_position, header.commit_position),
        last_timestamp_ms=header.timestamp_ms,
    )


def _with_last_whole_batch(
    txn: Transaction, dbs: Databases, member_id: int, recorded: Recorded
) -> Recorded:
    """Return the state of a log that ends before the damage at its end."""
    with txn.cursor(dbs.log) as cursor:
        record = last_record(cursor, member_id)
        while record is not None and record.position >= recorded.start_position:
            try:
                header = check_record_untrusted(member_id, record)
            except DamagedRecordError:
                key = KEY.pack(record.term, record.position)
                record = record_before(cursor, member_id, key)
            else:
                return ending_with(recorded, header)
    return recorded


def _with_last_batch(
    txn: Transaction, dbs: Databases, member_id: int, recorded: Recorded
) -> Recorded:
    """Return the state with what the last batch says; check that the tables agree with it."""
    with txn.cursor(dbs.log) as cursor:
        last = last_record(cursor, member_id)
    # An empty log, perhaps behind a snapshot. The row about the origin has its position and time.
    if last is None:
        return recorded
    # Only the last batch is checked at a start; the others are checked whenever they are read
    # (I-43).
    header = check_record_untrusted(member_id, last)
    row = row_of(recorded.terms, header.term)
    # A term's row is written with its first batch (F7). So a batch without a row is damage, never
    # the trace of a crash.
    if row is None or header.position < max(row.base, recorded.start_position):
        raise DamagedRecordError(
            member_id=member_id,
            term=last.term,
            position=last.position,
            reason=f"the term table says {row}, the log starts at {recorded.start_position}",
        )
    return attrs.evolve(
        recorded,
        append_position=header.end,
        last_commit_position=header.commit_position,
        last_timestamp_ms=header.timestamp_ms,
    )
