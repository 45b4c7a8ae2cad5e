"""What a leader counts of a follower is in the follower's log."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import Counted, Wiped
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact
    from ...watching.knowledge import Knowledge


class CountsArePrefixes(Invariant):
    """What a leader counts of a member for its quorum is in that member's log as in its own.

    Of a disk that was replaced, the report of the old one may still be under way.
    """

    source = "protocol I-27, hazard H2, fix F2"
    hears: ClassVar[tuple[type[Fact], ...]] = (Counted, Wiped)

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._replaced: set[int] = set()

    def hear(self, fact: Fact) -> None:
        """Compare the two logs."""
        if isinstance(fact, Wiped):
            self._replaced.add(fact.member)
            return
        assert isinstance(fact, Counted)
        mine = self.known.disks[fact.member].prefix_at.get(fact.position)
        theirs = self.known.disks[fact.follower]
        if mine is None or theirs.term > fact.term:
            return  # not durable at the leader yet; or the member has gone on to a newer term
        if fact.follower in self._replaced and theirs.end < fact.position:
            return
        if theirs.prefix_at.get(fact.position) != mine:
            raise self.violated(
                f"leader {fact.member} counts {fact.position} of member {fact.follower} in term "
                f"{fact.term}, whose log is another"
            )
