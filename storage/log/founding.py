"""Stores that are made or changed while their member does not run.

`make_store` makes the store of a founding member, or one that replaces a lost store. `force` begins
a new cluster with what one surviving store has.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import attrs

from ...errors import StorageError
from ..lmdb.environment import Environment
from ..rows.databases import MAX_DBS, Databases
from ..rows.identity import IDENTITY_KEY, Identity, check_identity, encode_identity
from ..rows.log_end import LogEnd
from ..rows.meta_rows import LOST_KEY, load_identity, load_voting_status
from ..rows.term_table import ForcedRow, encode_forced
from ..rows.voting_status import VOTING_STATUS_KEY, VotingRight, VotingStatus, encode_voting_status
from .mending import mend
from .readonly import open_readonly
from .recorder import carry_over
from .state import initialise, load
from .upgrade import upgrade

if TYPE_CHECKING:
    from pathlib import Path

    import lmdb

    from ..lmdb.environment import Transaction


def make_store(directory: Path, identity: Identity, status: VotingStatus) -> VotingStatus:
    """Make a store unless there is one; return the voting status of the store that is there.

    A NEW store that is there may become RECOVERING. Any other status stays.

    Raises:
        StoreMismatchError: there is a store of another cluster, member or format.
        StoreBusyError: it is open.
        StoreFullError: there is no room to make it.
        StorageError: it is damaged.
    """
    environment = Environment.open(
        directory,
        max_dbs=MAX_DBS,
        initialise=functools.partial(initialise, identity=identity, status=status),
    )
    with environment.opening():
        dbs = environment.databases(Databases)
        known = environment.read(lambda txn: load_identity(txn, dbs))
        check_identity(known, cluster=identity.cluster, member_id=identity.member_id)
        there = environment.read(lambda txn: load_voting_status(txn, dbs))
        # Only this step is allowed here. A store with a vote keeps it, and RECOVERING ends by an
        # admission alone.
        if (there.kind, status.kind) == (VotingRight.NEW, VotingRight.RECOVERING):
            row = encode_voting_status(status)
            environment.write(lambda txn: _put(txn, dbs, row))
            there = status
    environment.close()
    return there


def _put(txn: Transaction, dbs: Databases, row: bytes) -> None:
    txn.put(VOTING_STATUS_KEY, row, db=dbs.meta)


def force(directory: Path, *, instance_id: int, timestamp_ms: int) -> ForcedRow:
    """Begin a cluster anew with the store of one member; that member must not run.

    The store keeps its log and becomes NEW, with another instance id. Together with NEW stores of
    all other members it then founds the cluster, which has another history than before. A row in
    the store says that this was done, written in the same transaction.

    Args:
        directory: of the store.
        instance_id: the new one of the store.
        timestamp_ms: by the clock of the machine.

    Raises:
        StoreBusyError: its member runs.
        StorageError: the store has no vote, so acknowledged entries may be missing; or it is
        damaged.
    """
    # Looked at before it is opened for writing, so that a refused store stays exactly as it was.
    with open_readonly(directory) as store:  # raises if there is none
        check_has_vote(directory, store.voting_status)
    environment = Environment.open(directory, max_dbs=MAX_DBS, initialise=nothing_to_make)
    with environment.opening():
        dbs = environment.databases(Databases)
        identity = upgrade(environment, dbs, environment.read(lambda txn: load_identity(txn, dbs)))
        # As at a normal start, so that the row written below names the real end of the log.
        carry_over(environment, dbs, identity, peers=True)
        mend(environment, dbs, identity.member_id, peers=True)
        recorded = environment.read(lambda txn: load(txn, dbs, identity.member_id))
        term = recorded.terms[-1].term if recorded.terms else -1
        row = ForcedRow(recorded.append_position, term, timestamp_ms, identity.instance_id)
        # A history is a fingerprint of the founders' instance ids, so a new id makes a new history.
        anew = attrs.evolve(identity, instance_id=instance_id)

        # All in one transaction: a store with only some of these rows belongs to neither history.
        def write(txn: Transaction) -> None:
            key, value = encode_forced(row)
            txn.put(key, value, db=dbs.meta)
            txn.put(IDENTITY_KEY, encode_identity(anew), db=dbs.meta)
            # The configurations in the log are of the history before.
            status = VotingStatus(floor=LogEnd(term, recorded.append_position))
            txn.put(VOTING_STATUS_KEY, encode_voting_status(status), db=dbs.meta)
            # Nobody can send again what was cut off: the new history is without it.
            txn.delete(LOST_KEY, db=dbs.meta)

        environment.write(write)
    environment.close()
    return row


def check_has_vote(directory: Path, status: VotingStatus) -> None:
    """Refuse a store from which acknowledged entries may be missing.

    Raises:
        StorageError: it has no vote.
    """
    if status.kind is not VotingRight.VOTER:
        raise StorageError(
            f"{directory}: this store has no vote, so acknowledged entries may be missing from it; "
            "expected the store of a voting member"
        )


def nothing_to_make(_raw: lmdb.Environment) -> None:
    """The `initialise` of an environment that is known to exist."""
    raise AssertionError("there is a store")  # pragma: no cover - it was opened before
