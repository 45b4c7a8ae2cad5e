"""The rows of the table ``meta``, and how the small tables are read.

::

    key            body, before its checksum             without the row
    identity       see `identity`                        not a store
    service        kind of the service, text             never noted
    node_state     see `vote`                            damage
    standing       see `voting_status`                   damage
    origin         start i64, timestamp i64              damage
    journal        see `journal`                         there is no journal
    suspended      u8, 1 while suspended                 not suspended
    committed      position i64                          nothing but what the batches say
    admission      term i64, end i64                     no admission in the log
    lost           term i64, position i64                nothing was cut off
    unlisted       position i64                          each configuration has its row
    forced:<time>  see `term_table`                      never forced

Each body is followed by a checksum of key and body (`lmdb.sealed_rows`); integers are little
endian.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from ...errors import StoreMismatchError
from ..lmdb.sealed_rows import seal, unpack_untrusted, unseal_untrusted
from .identity import FORMAT_VERSION, IDENTITY_KEY, Identity, decode_identity_untrusted
from .log_end import EMPTY_LOG, LogEnd
from .membership import MembershipRow, decode_membership_untrusted
from .term_table import (
    FORCED_PREFIX,
    ForcedRow,
    TermRow,
    decode_forced_untrusted,
    decode_term_untrusted,
)
from .vote import NODE_STATE_KEY, NodeState, decode_node_state_untrusted
from .voting_status import VOTING_STATUS_KEY, VotingStatus, decode_voting_status_untrusted

if TYPE_CHECKING:
    from ..lmdb.environment import Transaction
    from .databases import Databases

ORIGIN_KEY: Final = b"origin"
SUSPENDED_KEY: Final = b"suspended"
COMMITTED_KEY: Final = b"committed"
ADMISSION_KEY: Final = b"admission"
LOST_KEY: Final = b"lost"
UNLISTED_KEY: Final = b"unlisted"

_PAIR: Final = struct.Struct("<qq")
_POSITION: Final = struct.Struct("<q")


def encode_origin(start_position: int, timestamp_ms: int) -> bytes:
    """Return the row that says where the log begins, with the time of the batch before."""
    return seal(ORIGIN_KEY, _PAIR.pack(start_position, timestamp_ms))


def decode_origin_untrusted(value: bytes | None) -> tuple[int, int]:
    """Return where the log begins, and the time of the batch before.

    Raises:
        StorageError: the row is missing or damaged.
    """
    body = unseal_untrusted(ORIGIN_KEY, value)
    position, timestamp_ms = unpack_untrusted(_PAIR, ORIGIN_KEY, body)
    return position, timestamp_ms


def load_identity(txn: Transaction, dbs: Databases) -> Identity:
    """Read the identity of the store.

    Raises:
        StoreMismatchError: it can't be read, or the format is another one.
    """
    identity = decode_identity_untrusted(txn.get(IDENTITY_KEY, db=dbs.meta))
    if identity.format_version == FORMAT_VERSION and not dbs.has_members:
        raise StoreMismatchError("a store of LMDB, but of other tables")
    return identity


def load_origin(txn: Transaction, dbs: Databases) -> tuple[int, int]:
    """Read where the log begins, and the time of the batch before.

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
    """Read the position up to which a backup knew its log to be committed; 0 without one.

    A backup gets batches only once they are committed, so its last batch says too little.

    Raises:
        StorageError: the row is damaged.
    """
    value = txn.get(COMMITTED_KEY, db=dbs.meta)
    if value is None:
        return 0
    body = unseal_untrusted(COMMITTED_KEY, value)
    return unpack_untrusted(_POSITION, COMMITTED_KEY, body)[0]


def encode_committed(position: int) -> bytes:
    """Return the row for `COMMITTED_KEY`."""
    return seal(COMMITTED_KEY, _POSITION.pack(position))


def load_last_admission(txn: Transaction, dbs: Databases) -> LogEnd:
    """Read a lower bound on the end of the last batch that admitted a store.

    Raises:
        StorageError: the row is damaged.
    """
    # Written with the first admission, so a store without the row has had none. Damage is another
    # matter: it must not pass for "none".
    value = txn.get(ADMISSION_KEY, db=dbs.meta)
    if value is None:
        return EMPTY_LOG
    term, end = unpack_untrusted(_PAIR, ADMISSION_KEY, unseal_untrusted(ADMISSION_KEY, value))
    return LogEnd(term, end)


def encode_last_admission(admission: LogEnd) -> bytes:
    """Return the row for `ADMISSION_KEY`."""
    return seal(ADMISSION_KEY, _PAIR.pack(*admission))


def load_lost(txn: Transaction, dbs: Databases) -> LogEnd:
    """Read the end that a log must reach to have what was damaged at the end of this one.

    Raises:
        StorageError: the row is damaged.
    """
    # Missing means that nothing was lost, so a damaged row has to raise: the member would vote too
    # freely.
    value = txn.get(LOST_KEY, db=dbs.meta)
    if value is None:
        return EMPTY_LOG
    term, position = unpack_untrusted(_PAIR, LOST_KEY, unseal_untrusted(LOST_KEY, value))
    return LogEnd(term, position)


def encode_lost(lost: LogEnd) -> bytes:
    """Return the row for `LOST_KEY`."""
    return seal(LOST_KEY, _PAIR.pack(*lost))


def load_unlisted(txn: Transaction, dbs: Databases) -> int:
    """Read up to which position configurations have no row; 0 without the row.

    A store of format 3 had no such rows. What its log held then is no configuration, but an entry
    that only admits a store.

    Raises:
        StorageError: the row is damaged.
    """
    value = txn.get(UNLISTED_KEY, db=dbs.meta)
    if value is None:
        return 0
    return unpack_untrusted(_POSITION, UNLISTED_KEY, unseal_untrusted(UNLISTED_KEY, value))[0]


def encode_unlisted(position: int) -> bytes:
    """Return the row for `UNLISTED_KEY`."""
    return seal(UNLISTED_KEY, _POSITION.pack(position))


def load_voting_status(txn: Transaction, dbs: Databases) -> VotingStatus:
    """Read the voting status.

    Raises:
        StorageError: the row is missing or damaged.
    """
    # Without a default: `initialise` wrote the row, so a missing one is damage. The same holds for
    # the vote.
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
        # Keys end with the time, big endian, so the order of the keys is that of time.
        more = cursor.set_range(FORCED_PREFIX)
        while more and cursor.key().startswith(FORCED_PREFIX):
            rows.append(decode_forced_untrusted(*cursor.item()))
            more = cursor.next()
    return tuple(rows)


def load_terms(txn: Transaction, dbs: Databases, member_id: int) -> tuple[TermRow, ...]:
    """Read the term table.

    Raises:
        DamagedRecordError: a row is damaged.
    """
    with txn.cursor(dbs.terms) as cursor:
        # The cursor goes in the order of the keys, which is that of terms: they are big endian.
        return tuple(decode_term_untrusted(member_id, key, row) for key, row in cursor)


def load_memberships(txn: Transaction, dbs: Databases, member_id: int) -> tuple[MembershipRow, ...]:
    """Read the configurations of the log, ascending; none in a store of format 3.

    Raises:
        DamagedRecordError: a row is damaged.
    """
    if not dbs.has_members:
        return ()
    with txn.cursor(dbs.members) as cursor:
        return tuple(decode_membership_untrusted(member_id, key, row) for key, row in cursor)
