"""How many members a decision needs, and what that many have reached.

Pure functions on numbers. Only members with a vote are counted; the caller leaves all other members
out.
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
        positions: how far each member's log is durable; members that are inactive or unknown may
            be left out or count 0.
        members: of the cluster.
    """
    return _of_quorum(positions, members, nobody=0)


def quorum_time(times: Iterable[float], members: int) -> float:
    """Return the latest time since which a quorum was heard, or the like; -inf without a quorum.

    Args:
        times: of each member; some may be left out.
        members: of the cluster.
    """
    return _of_quorum(times, members, nobody=-math.inf)


def _of_quorum(values: Iterable[T], members: int, *, nobody: T) -> T:
    """Return the highest value that a quorum has at least, `nobody` without a quorum."""
    ranked = sorted(values, reverse=True)
    needed = quorum(members)
    return ranked[needed - 1] if len(ranked) >= needed else nobody


def may_commit(reached: int, *, base: int) -> bool:
    """Say whether what a quorum has on disk is committed.

    Args:
        reached: how far a quorum has the log, durably.
        base: where our term begins.
    """
    # Entries of earlier terms can still be replaced, as long as a rival may hold a newer term than
    # theirs (Raft §5.4.2, figure 8). One entry of our own term settles all before it.
    return reached > base


def is_active(heard_at: float, now: float, timeout: float) -> bool:
    """Say whether a member was heard recently enough to count (strictly within the timeout)."""
    return heard_at + timeout > now
