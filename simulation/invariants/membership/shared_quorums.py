"""Consecutive configurations share a quorum, and no store is counted as two voters."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from ....node.protocol.membership import UNKNOWN_STORE
from ...watching.facts import Committed
from ...watching.knowledge import quorums_of
from ..base import Invariant

if TYPE_CHECKING:
    from ....node.protocol.membership import Membership
    from ...watching.facts import Fact
    from ...watching.knowledge import Knowledge


class _OfCommitted(Invariant):
    """A rule about each configuration that is committed, and the one before it."""

    hears: ClassVar[tuple[type[Fact], ...]] = (Committed,)

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._looked = 0

    def hear(self, fact: Fact) -> None:
        """Look at what was committed since the last time."""
        del fact
        found = self.known.configurations
        if self._looked > len(found):  # a new history has begun
            self._looked = 0
        while self._looked < len(found):
            at, self._looked = self._looked, self._looked + 1
            self.look(found[at - 1][1] if at else self.known.first, found[at][1])

    @abstractmethod
    def look(self, before: Membership, after: Membership) -> None:
        """Compare two configurations of which one follows the other.

        Raises:
            ViolationError: that must not be.
        """


class SharedQuorums(_OfCommitted):
    """Any quorum of a configuration has a voter of any quorum of the next one.

    By construction, since they have a set of voters in common. In the first one that is an entry,
    the voters are named with their stores: those that had a vote.
    """

    source = "Raft dissertation §4.3; I2 of the design"

    def look(self, before: Membership, after: Membership) -> None:
        """Look for a common set."""
        if before.version:
            if not {*quorums_of(before).sets} & {*quorums_of(after).sets}:
                raise self.violated(f"{quorums_of(after).sets} follows {quorums_of(before).sets}")
            return
        ids = {frozenset(v.member_id for v in each) for each in quorums_of(before).sets}
        named = {frozenset(v.member_id for v in each) for each in quorums_of(after).sets}
        if not ids & named:
            raise self.violated(f"{quorums_of(after).sets} follows members {ids}")
        known = self.known
        for member, instance in quorums_of(after).voters:
            disks = [*([known.disks[member]] if member in known.disks else [])]
            disks += known.lost.get(member, [])
            stores = {disk.instance for disk in disks if disk.votes}
            if instance != UNKNOWN_STORE and instance not in stores:
                raise self.violated(
                    f"version {after.version} counts store {instance:016x} of member {member}, "
                    "which has no vote"
                )


class StoresCountOnce(_OfCommitted):
    """No store and no member is two voters of a set, and none that has left comes back."""

    source = "I8 of the design; openraft PR #2002, RedisRaft #2"

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._left: set[int] = set()

    def look(self, before: Membership, after: Membership) -> None:
        """Look at the voters and seats."""
        for voters in quorums_of(after).sets:
            named = [v.instance_id for v in voters if v.instance_id != UNKNOWN_STORE]
            if len({v.member_id for v in voters}) < len(voters) or len({*named}) < len(named):
                raise self.violated(f"version {after.version} counts {sorted(voters)}")
        self._left |= _stores(before) - _stores(after)
        if back := _stores(after) & self._left:
            raise self.violated(
                f"stores {[f'{each:016x}' for each in sorted(back)]} had left, and are in "
                f"version {after.version}"
            )


def _stores(membership: Membership) -> set[int]:
    """Give all stores that have a seat or a vote."""
    seats = {seat.instance for seat in membership.seats}
    voters = {voter.instance_id for voter in membership.quorums.voters}
    return {each for each in seats | voters if each > UNKNOWN_STORE}
