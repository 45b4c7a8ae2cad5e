"""Stores that are made before their member runs: those of a new cluster, and one for a lost one."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import attrs

from ...errors import StorageError
from ..lmdb.environment import Environment
from .commit import carry_over
from .databases import MAX_DBS, Databases
from .identity import IDENTITY_KEY, Identity, check_identity, encode_identity
from .mending import mend
from .meta_rows import LOST_KEY, load_identity, load_voting_status
from .readonly import open_readonly
from .state import initialise, load
from .term_table import ForcedRow, encode_forced
from .voting_status import VOTING_STATUS_KEY, VotingRight, VotingStatus, encode_voting_status

if TYPE_CHECKING:
    from pathlib import Path

    import lmdb

    from ..lmdb.environment import Transaction


def make_store(directory: Path, identity: Identity, status: VotingStatus) -> VotingStatus:
    """Make a store if there is none; return how the one that is there stands to its cluster.

    A fresh one that is there may become one that recovers.

    Raises:
        StoreMismatchError: there is one of another cluster, member or format.
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
        if (there.kind, status.kind) == (VotingRight.NEW, VotingRight.RECOVERING):
            row = encode_voting_status(status)
            environment.write(lambda txn: _put(txn, dbs, row))
            there = status
    environment.close()
    return there


def _put(txn: Transaction, dbs: Databases, row: bytes) -> None:
    txn.put(VOTING_STATUS_KEY, row, db=dbs.meta)


def force(directory: Path, *, instance_id: int, timestamp_ms: int) -> ForcedRow:
    """Let a cluster begin anew with what one member's store has; its member must not run.

    The store is a fresh one from then on, with all that is in it: with the fresh stores of all
    other members it founds the cluster, whose history is another one than before. What was done is
    marked in its table of terms, in the same transaction.

    Args:
        directory: of the store.
        instance_id: the new one of the store.
        timestamp_ms: by the clock of the machine.

    Raises:
        StoreBusyError: its member runs.
        StorageError: it has no vote, so it lacks what others had acknowledged; or it is damaged.
    """
    with open_readonly(directory) as store:  # also that there is one, and that it can be read
        check_has_vote(directory, store.voting_status)
    environment = Environment.open(directory, max_dbs=MAX_DBS, initialise=nothing_to_make)
    with environment.opening():
        dbs = environment.databases(Databases)
        identity = environment.read(lambda txn: load_identity(txn, dbs))
        carry_over(environment, dbs, identity, peers=True)
        mend(environment, dbs, identity.member_id, peers=True)
        recorded = environment.read(lambda txn: load(txn, dbs, identity.member_id))
        term = recorded.terms[-1].term if recorded.terms else -1
        row = ForcedRow(recorded.append_position, term, timestamp_ms, identity.instance_id)
        anew = attrs.evolve(identity, instance_id=instance_id)

        def write(txn: Transaction) -> None:
            key, value = encode_forced(row)
            txn.put(key, value, db=dbs.meta)
            txn.put(IDENTITY_KEY, encode_identity(anew), db=dbs.meta)
            txn.put(VOTING_STATUS_KEY, encode_voting_status(VotingStatus()), db=dbs.meta)
            txn.delete(LOST_KEY, db=dbs.meta)

        environment.write(write)
    environment.close()
    return row


def check_has_vote(directory: Path, status: VotingStatus) -> None:
    """Refuse a store that may lack what was acknowledged.

    Raises:
        StorageError: it has no vote.
    """
    if status.kind is not VotingRight.VOTER:
        raise StorageError(f"{directory}: this store has no vote: it may lack what others had")


def nothing_to_make(_raw: lmdb.Environment) -> None:
    """Stand in for what makes a store where there is one."""
    raise AssertionError("there is a store")  # pragma: no cover - it was opened before
