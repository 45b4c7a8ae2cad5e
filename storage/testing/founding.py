"""A cluster founded from outside: all of its stores at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..log.founding import make_store
from ..rows.identity import Identity
from ..rows.voting_status import VotingRight, VotingStatus

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping
    from pathlib import Path


def found_cluster(directories: Mapping[int, Path], *, cluster: str, rng: random.Random) -> None:
    """Make the stores of a new cluster with exactly these members, each with a vote.

    Members found their cluster themselves, see :mod:`quorate.node.membership`; this skips
    it where one process has all directories.

    Args:
        directories: where to make the store of each member.
        cluster: name of the cluster.
        rng: draws the instance ids.
    """
    founders = tuple((member, rng.getrandbits(64)) for member in sorted(directories))
    for member, instance in founders:
        identity = Identity(cluster, member, instance)
        make_store(directories[member], identity, VotingStatus(VotingRight.VOTER, founders))
