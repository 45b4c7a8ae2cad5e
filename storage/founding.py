"""Stores that are made before their member runs: those of a new cluster, and one for a lost one."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from .environment import Environment
from .identity import Identity, check_identity
from .standing import STANDING_KEY, Standing, StandingKind, encode_standing
from .state import MAX_DBS, Databases, initialise, load_identity, load_standing

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping
    from pathlib import Path

    from .environment import Transaction


def found(directories: Mapping[int, Path], *, cluster: str, rng: random.Random) -> None:
    """Make the stores of a new cluster that begins with just these, whoever of them runs first.

    For who has all of them at hand, as a simulation does; members found a cluster by themselves.

    Args:
        directories: where to make the store of each member.
        cluster: its name.
        rng: draws the instance ids.
    """
    founders = tuple((member, rng.getrandbits(64)) for member in sorted(directories))
    for member, instance in founders:
        identity = Identity(cluster, member, instance)
        make_store(directories[member], identity, Standing(StandingKind.MEMBER, founders))


def make_store(directory: Path, identity: Identity, standing: Standing) -> Standing:
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
        initialise=functools.partial(initialise, identity=identity, standing=standing),
    )
    with environment.opening():
        dbs = environment.databases(Databases)
        known = environment.read(lambda txn: load_identity(txn, dbs))
        check_identity(known, cluster=identity.cluster, member_id=identity.member_id)
        there = environment.read(lambda txn: load_standing(txn, dbs))
        if (there.kind, standing.kind) == (StandingKind.FRESH, StandingKind.RECOVERING):
            row = encode_standing(standing)
            environment.write(lambda txn: _put(txn, dbs, row))
            there = standing
    environment.close()
    return there


def _put(txn: Transaction, dbs: Databases, row: bytes) -> None:
    txn.put(STANDING_KEY, row, db=dbs.meta)
