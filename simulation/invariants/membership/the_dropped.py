"""What members hear that the cluster removes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ....node.protocol.quorum import VoterId
from ...watching.facts import Dismissed, Recorded
from ...watching.knowledge import quorums_of
from ..base import Invariant

if TYPE_CHECKING:
    from ....node.protocol.membership import Membership
    from ...watching.facts import Fact


class NotForTheDropped(Invariant):
    """No voter has a configuration that ends its vote before that is committed.

    Otherwise a member that may not stand could hold the newest log, and its vote is needed to win.
    """

    source = "openraft #2091; rule 3 of tests/model/change.py; I10 of the design"
    hears: ClassVar[tuple[type[Fact], ...]] = (Recorded,)

    def hear(self, fact: Fact) -> None:
        """Look at a configuration that has become durable."""
        assert isinstance(fact, Recorded)
        batch, membership = fact.batch, fact.batch.membership
        if membership is None or membership.joint or not self._drops(fact.member, membership):
            return
        if not self.known.is_committed(batch.end, batch.prefix):
            raise self.violated(
                f"member {fact.member} has version {membership.version} in its log, which drops it "
                "and is not committed"
            )

    def _drops(self, member: int, after: Membership) -> bool:
        disk = self.known.disks[member]
        rows = self.known.configurations_of(member)
        before = rows[-2][1] if len(rows) > 1 else self.known.first
        if not before.version:
            return before.has_vote(member) and not after.has_vote(member)
        # A store that replaces a lost one is no voter yet, and nobody needs its vote.
        names = {VoterId(member), VoterId(member, disk.instance)}
        return bool(names & quorums_of(before).voters) and not names & quorums_of(after).voters


class RemovedIfCommitted(Invariant):
    """A member's store says that it was removed only if that is committed."""

    source = "I12 of the design"
    hears: ClassVar[tuple[type[Fact], ...]] = (Dismissed,)

    def hear(self, fact: Fact) -> None:
        """Look at a member that was removed."""
        assert isinstance(fact, Dismissed)
        if not self.known.latest.is_removed(fact.member):
            raise self.violated(
                f"member {fact.member} takes itself for removed; version "
                f"{self.known.latest.version} is committed, with members {self.known.latest.ids}"
            )
