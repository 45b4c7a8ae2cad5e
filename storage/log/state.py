"""What a store holds besides the batches, as one value, and how it is read from the disk.

A write carries the state that is true once it is durable; so the state before the disk (what
was submitted) and the state on the disk (what is durable) are two values of one type.
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, Final

import attrs

from ...errors import DamagedRecordError
from ..lmdb.sealed_rows import irreplaceable_row, seal, unpack_untrusted, unseal_untrusted
from .identity import (
    IDENTITY_KEY,
    SERVICE_KEY,
    Identity,
    decode_identity_untrusted,
    encode_identity,
    service_untrusted,
)
from .log_end import EMPTY_LOG, LogEnd
from .log_table import KEY, check_record_untrusted, last_record, record_before
from .term_table import (
    FORCED_PREFIX,
    ForcedRow,
    SnapshotRow,
    TermRow,
    decode_forced_untrusted,
    decode_snapshot_untrusted,
    decode_term_untrusted,
    incoherences,
    row_of,
)
from .vote import NODE_STATE_KEY, NodeState, decode_node_state_untrusted, encode_node_state
from .voting_status import (
    VOTING_STATUS_KEY,
    VotingStatus,
    decode_voting_status_untrusted,
    encode_voting_status,
)

if TYPE_CHECKING:
    import lmdb

    from ..lmdb.environment import Transaction
    from .batch import BatchHeader

ORIGIN_KEY: Final = b"origin"
SUSPENDED_KEY: Final = b"suspended"
COMMITTED_KEY: Final = b"committed"
ADMISSION_KEY: Final = b"admission"
LOST_KEY: Final = b"lost"
MAX_DBS: Final = 4
LOG_TABLE: Final = "log"
_ORIGIN: Final = struct.Struct("<qq")
_COMMITTED: Final = struct.Struct("<q")


class Databases:
    """Handles of the sub-databases of an open environment, and what kind of service opened it."""

    def __init__(self, raw: lmdb.Environment, *, create: bool = False) -> None:
        self.service = ""
        self.log = raw.open_db(LOG_TABLE.encode(), create=create)
        self.terms = raw.open_db(b"terms", create=create)
        self.snapshots = raw.open_db(b"snapshots", create=create)
        self.meta = raw.open_db(b"meta", create=create)


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
        """The last term of the recording log, -1 without one."""
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


def encode_origin(start_position: int, timestamp_ms: int) -> bytes:
    """Return the row that says where the log begins, and the time of the last batch before."""
    return seal(ORIGIN_KEY, _ORIGIN.pack(start_position, timestamp_ms))


def decode_origin_untrusted(value: bytes | None) -> tuple[int, int]:
    """Return where the log begins, and the time of the last batch before.

    Raises:
        StorageError: the row is missing or damaged.
    """
    body = unseal_untrusted(ORIGIN_KEY, value)
    position, timestamp_ms = unpack_untrusted(_ORIGIN, ORIGIN_KEY, body)
    return position, timestamp_ms


def load_identity(txn: Transaction, dbs: Databases) -> Identity:
    """Read whose store it is.

    Raises:
        StoreMismatchError: that can't be told, or the format is another one.
    """
    return decode_identity_untrusted(txn.get(IDENTITY_KEY, db=dbs.meta))


def load_origin(txn: Transaction, dbs: Databases) -> tuple[int, int]:
    """Read where the log begins, and the time of the last batch before.

    Raises:
        StorageError: the row is missing or damaged.
    """
    return decode_origin_untrusted(txn.get(ORIGIN_KEY, db=dbs.meta))


def load_suspended(txn: Transaction, dbs: Databases) -> bool:
    """Read whether an operator has suspended the cluster.

    Raises:
        StorageError: the row is damaged.
    """
    value = txn.get(SUSPENDED_KEY, db=dbs.meta)
    return value is not None and unseal_untrusted(SUSPENDED_KEY, value) == b"\1"


def encode_suspended(suspended: bool) -> bytes:  # noqa: FBT001 - a value
    """Return the row for `SUSPENDED_KEY`."""
    return seal(SUSPENDED_KEY, b"\1" if suspended else b"\0")


def load_committed(txn: Transaction, dbs: Databases) -> int:
    """Read up to where a backup, which gets nothing else, knew its log to be committed; 0 if none.

    Raises:
        StorageError: the row is damaged.
    """
    value = txn.get(COMMITTED_KEY, db=dbs.meta)
    if value is None:
        return 0
    body = unseal_untrusted(COMMITTED_KEY, value)
    return unpack_untrusted(_COMMITTED, COMMITTED_KEY, body)[0]


def encode_committed(position: int) -> bytes:
    """Return the row for `COMMITTED_KEY`."""
    return seal(COMMITTED_KEY, _COMMITTED.pack(position))


def load_admission(txn: Transaction, dbs: Databases) -> LogEnd:
    """Read term and end of the last batch that admitted a store; (-1, 0) if there was none.

    Raises:
        StorageError: the row is damaged.
    """
    value = txn.get(ADMISSION_KEY, db=dbs.meta)
    if value is None:
        return EMPTY_LOG
    term, end = unpack_untrusted(_ORIGIN, ADMISSION_KEY, unseal_untrusted(ADMISSION_KEY, value))
    return LogEnd(term, end)


def encode_admission(admission: LogEnd) -> bytes:
    """Return the row for `ADMISSION_KEY`."""
    return seal(ADMISSION_KEY, _ORIGIN.pack(*admission))


def load_lost(txn: Transaction, dbs: Databases) -> LogEnd:
    """Read where a log ends, at least, that has what was damaged at the end of this one.

    Raises:
        StorageError: the row is damaged.
    """
    value = txn.get(LOST_KEY, db=dbs.meta)
    if value is None:
        return EMPTY_LOG
    term, position = unpack_untrusted(_ORIGIN, LOST_KEY, unseal_untrusted(LOST_KEY, value))
    return LogEnd(term, position)


def encode_lost(lost: LogEnd) -> bytes:
    """Return the row for `LOST_KEY`."""
    return seal(LOST_KEY, _ORIGIN.pack(*lost))


def load_voting_status(txn: Transaction, dbs: Databases) -> VotingStatus:
    """Read whether the store has a vote.

    Raises:
        StorageError: the row is missing or damaged.
    """
    return decode_voting_status_untrusted(txn.get(VOTING_STATUS_KEY, db=dbs.meta))


def load_node_state(txn: Transaction, dbs: Databases) -> NodeState:
    """Read the vote.

    Raises:
        StorageError: the row is missing or damaged.
    """
    return decode_node_state_untrusted(txn.get(NODE_STATE_KEY, db=dbs.meta))


def load_forced(txn: Transaction, dbs: Databases) -> tuple[ForcedRow, ...]:
    """Read where a quorum was forced, the oldest first.

    Raises:
        StorageError: a row is damaged.
    """
    rows: list[ForcedRow] = []
    with txn.cursor(dbs.meta) as cursor:
        more = cursor.set_range(FORCED_PREFIX)
        while more and cursor.key().startswith(FORCED_PREFIX):
            rows.append(decode_forced_untrusted(*cursor.item()))
            more = cursor.next()
    return tuple(rows)


def load_terms(txn: Transaction, dbs: Databases, member_id: int) -> tuple[TermRow, ...]:
    """Read the table of terms.

    Raises:
        DamagedRecordError: a row is damaged.
    """
    with txn.cursor(dbs.terms) as cursor:
        return tuple(decode_term_untrusted(member_id, key, row) for key, row in cursor)


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
        admission=kept("whom it has admitted", lambda: load_admission(txn, dbs)),
        forced=kept("whether a quorum was forced", lambda: load_forced(txn, dbs)),
        lost=kept("what else it has lost", lambda: load_lost(txn, dbs)),
        service=kept("whose it is", lambda: service_untrusted(txn.get(SERVICE_KEY, db=dbs.meta))),
    )
    for term, words in incoherences(recorded.terms):
        raise DamagedRecordError(
            member_id=member_id, term=term, position=-1, reason=f"recording log: {words}"
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
            reason=f"the recording log says {row}, the log starts at {recorded.start_position}",
        )
    return attrs.evolve(
        recorded,
        append_position=header.end,
        last_commit_position=header.commit_position,
        last_timestamp_ms=header.timestamp_ms,
    )
