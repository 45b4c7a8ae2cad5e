"""How many members a decision needs, and what that many have reached.

Pure functions on numbers. Only members with a vote are counted; the caller leaves the others out.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T", int, float)


def quorum(members: int) -> int:
    """Return how many of `members` a decision needs."""
    return members // 2 + 1


def quorum_position(positions: Iterable[int], members: int) -> int:
    """Return the highest position that a quorum has reached.

    Args:
        positions: what each member has durably recorded; members that are inactive or unknown
            may be left out or count 0.
        members: the size of the cluster.
    """
    return _of_quorum(positions, members, nobody=0)


def quorum_time(times: Iterable[float], members: int) -> float:
    """Return the latest time at which a quorum was heard, or the like; minus infinity if none was.

    Args:
        times: of each member; some may be left out.
        members: the size of the cluster.
    """
    return _of_quorum(times, members, nobody=-math.inf)


def _of_quorum(values: Iterable[T], members: int, *, nobody: T) -> T:
    """Return the highest value that a quorum has at least."""
    ranked = sorted(values, reverse=True)
    needed = quorum(members)
    return ranked[needed - 1] if len(ranked) >= needed else nobody


def may_commit(reached: int, *, base: int) -> bool:
    """Say whether what a quorum has recorded is committed: not before an entry of our own term is.

    Entries of earlier terms can still be replaced while a rival may hold a newer term than their
    own (Raft §5.4.2, figure 8); one of our own term settles all before it.

    Args:
        reached: what a quorum has recorded durably.
        base: where our term begins.
    """
    return reached > base


def is_active(heard_at: float, now: float, timeout: float) -> bool:
    """Say whether a member was heard recently enough to count (strictly within the timeout)."""
    return heard_at + timeout > now
