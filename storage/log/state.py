"""What a store holds besides the batches, as one value, and how it is read from the disk.

A write carries the state that is true once it is durable; so the state before the disk (what
was submitted) and the state on the disk (what is durable) are two values of one type.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import attrs

from ...errors import DamagedRecordError
from ..lmdb.sealed_rows import irreplaceable_row
from .databases import Databases
from .identity import IDENTITY_KEY, SERVICE_KEY, Identity, encode_identity, service_untrusted
from .log_end import EMPTY_LOG, LogEnd
from .log_table import KEY, check_record_untrusted, last_record, record_before
from .meta_rows import (
    ORIGIN_KEY,
    encode_origin,
    load_committed,
    load_forced,
    load_last_admission,
    load_lost,
    load_node_state,
    load_origin,
    load_suspended,
    load_terms,
    load_voting_status,
)
from .term_table import (
    ForcedRow,
    SnapshotRow,
    TermRow,
    decode_snapshot_untrusted,
    incoherences,
    row_of,
)
from .vote import NODE_STATE_KEY, NodeState, encode_node_state
from .voting_status import VOTING_STATUS_KEY, VotingStatus, encode_voting_status

if TYPE_CHECKING:
    import lmdb

    from ..lmdb.environment import Transaction
    from .batch import BatchHeader


@attrs.frozen
class Recorded:
    """The state of a store; positions are byte offsets in the log.

    `admission` is term and end of the last batch that admitted a member's new store: at least
    of the last one that is in the log. `lost` is where a log ends, at least, that has what was
    damaged at the end of this one (see :mod:`.mending`); `EMPTY_LOG` if nothing was.
    `service` is the kind of the service, empty if the store was never opened with one.
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


class StateView:
    """Shows the parts of a state that is replaced as a whole.

    Attributes:
        recorded: all of it, as one consistent value.
    """

    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded

    @property
    def start_position(self) -> int:
        """First kept position of the log."""
        return self.recorded.start_position

    @property
    def append_position(self) -> int:
        """Durable end of the log."""
        return self.recorded.append_position

    @property
    def terms(self) -> tuple[TermRow, ...]:
        """The terms, ascending; those that were skipped have no row. Only the last may be open."""
        return self.recorded.terms

    @property
    def log_term(self) -> int:
        """The last term of the table of terms, -1 without one."""
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
        """Whether this store has a vote at all."""
        return self.recorded.voting_status

    @property
    def last_commit_position(self) -> int:
        """At least this was committed, by the header of the last batch or the word of a backup."""
        return self.recorded.last_commit_position

    @property
    def last_timestamp_ms(self) -> int:
        """Cluster time of the last batch, 0 before the first one."""
        return self.recorded.last_timestamp_ms


def initialise(
    raw: lmdb.Environment, identity: Identity, status: VotingStatus | None = None
) -> None:
    """Fill a new environment; its voting status is NEW unless given."""
    dbs = Databases(raw, create=True)
    with raw.begin(write=True) as txn:
        txn.put(IDENTITY_KEY, encode_identity(identity), db=dbs.meta)
        txn.put(NODE_STATE_KEY, encode_node_state(NodeState()), db=dbs.meta)
        txn.put(ORIGIN_KEY, encode_origin(0, 0), db=dbs.meta)
        txn.put(VOTING_STATUS_KEY, encode_voting_status(status or VotingStatus()), db=dbs.meta)


def load(txn: Transaction, dbs: Databases, member_id: int, *, lenient: bool = False) -> Recorded:
    """Read the state; the last batch of the log is checked, unless the reader is `lenient`.

    Raises:
        StorageError: something of it is damaged (DamagedRecordError where a place is known).
    """
    kept = functools.partial(irreplaceable_row, member_id)
    start, timestamp_ms = kept("where its log begins", lambda: load_origin(txn, dbs))
    with txn.cursor(dbs.snapshots) as cursor:
        snapshots = tuple(decode_snapshot_untrusted(member_id, key, row) for key, row in cursor)
    recorded = Recorded(
        start_position=start,
        append_position=start,
        terms=load_terms(txn, dbs, member_id),
        snapshots=snapshots,
        node_state=kept("whom it has voted for", lambda: load_node_state(txn, dbs)),
        last_commit_position=start,
        last_timestamp_ms=timestamp_ms,
        suspended=kept("whether it is suspended", lambda: load_suspended(txn, dbs)),
        voting_status=kept("whether it may vote", lambda: load_voting_status(txn, dbs)),
        admission=kept("whom it has admitted", lambda: load_last_admission(txn, dbs)),
        forced=kept("whether a quorum was forced", lambda: load_forced(txn, dbs)),
        lost=kept("what else it has lost", lambda: load_lost(txn, dbs)),
        service=kept("whose it is", lambda: service_untrusted(txn.get(SERVICE_KEY, db=dbs.meta))),
    )
    for term, words in incoherences(recorded.terms):
        raise DamagedRecordError(
            member_id=member_id, term=term, position=-1, reason=f"table of terms: {words}"
        )
    try:
        recorded = _with_last_batch(txn, dbs, member_id, recorded)
    except DamagedRecordError:
        if not lenient:
            raise
        return _with_last_whole_batch(txn, dbs, member_id, recorded)
    committed = min(load_committed(txn, dbs), recorded.append_position)
    known = max(committed, recorded.last_commit_position)
    return attrs.evolve(recorded, last_commit_position=known)


def ending_with(recorded: Recorded, header: BatchHeader) -> Recorded:
    """Return the state with a batch, which the caller has checked, at the end of the log."""
    return attrs.evolve(
        recorded,
        append_position=header.end,
        last_commit_position=max(recorded.last_commit_position, header.commit_position),
        last_timestamp_ms=header.timestamp_ms,
    )


def _with_last_whole_batch(
    txn: Transaction, dbs: Databases, member_id: int, recorded: Recorded
) -> Recorded:
    """Return the state as if the log ended in front of the damage at its end."""
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
    """Return the state with what the last batch says, and check that the tables agree with it."""
    with txn.cursor(dbs.log) as cursor:
        last = last_record(cursor, member_id)
    if last is None:
        return recorded
    header = check_record_untrusted(member_id, last)
    row = row_of(recorded.terms, header.term)
    if row is None or header.position < max(row.base, recorded.start_position):
        raise DamagedRecordError(
            member_id=member_id,
            term=last.term,
            position=last.position,
            reason=f"the table of terms says {row}, the log starts at {recorded.start_position}",
        )
    return attrs.evolve(
        recorded,
        append_position=header.end,
        last_commit_position=header.commit_position,
        last_timestamp_ms=header.timestamp_ms,
    )
