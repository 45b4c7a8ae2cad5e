"""Whose agreement a decision needs, and what that many voters have reached.

A decision needs a majority of one set of voters; of each of two sets while the voters change (a
joint configuration: Raft dissertation, section 4.3). Each decision of the protocol that counts
members goes through :class:`Quorums`: pre-vote, ballot, READY, commit, reads, lease, and whether a
leader is heard by enough.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet

T = TypeVar("T", int, float)
V = TypeVar("V", bound=Hashable)
"""Whatever names a voter."""
W = TypeVar("W", bound=Hashable)

ANY_STORE: Final = 0
"""In a voter's name: any store of the member that has a vote."""


class VoterId(NamedTuple):
    """Names a voter of a configuration: a member, and the store with which it votes.

    A store that takes the place of a lost one is another voter: it has given none of the promises
    of the lost one. Either all voters are named with their stores or none is. In the first
    configuration none is: which store of a member has a vote is the business of
    :mod:`..membership.admission`.
    """

    member_id: int
    instance_id: int = ANY_STORE


def quorum(members: int) -> int:
    """Return how many of `members` are a majority."""
    return members // 2 + 1


@attrs.frozen
class Quorums(Generic[V]):
    """The sets of voters by which every decision is made: a majority of each set is needed.

    A voter that is in no set has no weight, whatever it says. That includes the member that
    counts: it must name itself, and is counted only in the sets that it is in.

    Args:
        sets: one set of voters, or two while the voters change; none of them empty.

    Attributes:
        voters: all members that are in a set.
    """

    sets: tuple[frozenset[V], ...]
    voters: frozenset[V] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        # A majority of no voters would be none at all, and so would be there always.
        if not self.sets or not all(self.sets):
            raise ValueError(f"sets of voters {self.sets}: expected one or two that are not empty")
        object.__setattr__(self, "voters", frozenset[V]().union(*self.sets))

    @staticmethod
    def of(*sets: Iterable[W]) -> Quorums[W]:
        """Make it of one or two collections of voters."""
        return Quorums(tuple(frozenset(each) for each in sets))

    @property
    def smallest(self) -> int:
        """How many members a decision needs, at least."""
        return max(quorum(len(each)) for each in self.sets)

    def agree(self, voters: AbstractSet[V]) -> bool:
        """Say whether these members are enough for a decision."""
        # Set by set. The majority of the union may be a minority of one set: two such decisions
        # need not have a voter in common.
        return all(len(each & voters) >= quorum(len(each)) for each in self.sets)

    def position(self, reached: Mapping[V, int]) -> int:
        """Return the highest position that enough voters have reached; 0 without them.

        Args:
            reached: how far each member's log is durable; members that are inactive or unknown may
                be left out or count 0.
        """
        return min([_reached_by_majority(each, reached, nobody=0) for each in self.sets])

    def time(self, at: Mapping[V, float]) -> float:
        """Return the latest time since which enough voters were heard; -inf without them.

        Args:
            at: when each member was heard, or promised, and the like; some may be left out.
        """
        return min(_reached_by_majority(each, at, nobody=-math.inf) for each in self.sets)


def _reached_by_majority(voters: frozenset[V], values: Mapping[V, T], *, nobody: T) -> T:
    """Return the highest value that a majority has at least; `nobody` counts for the missing."""
    ranked = sorted([values.get(voter, nobody) for voter in voters], reverse=True)
    return ranked[quorum(len(voters)) - 1]


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
