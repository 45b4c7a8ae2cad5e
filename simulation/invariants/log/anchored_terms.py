"""A leader writes nothing before a quorum has recorded its term."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import Writes
from ..base import Invariant, names, rule

if TYPE_CHECKING:
    from ...watching.facts import Fact


class AnchoredTerms(Invariant):
    """When a leader writes its first entry, a quorum has its term in the recording log.

    A disk may be lost between the report and its arrival, so "had it" is enough. The leader then
    counts what is gone, and that member must not vote before it has everything again. While the
    voters change, a quorum is a majority of each set.
    """

    source = "protocol I-13, I-28, hazard H3, fix F3"
    hears: ClassVar[tuple[type[Fact], ...]] = (Writes,)

    def hear(self, fact: Fact) -> None:
        """Look at a leader that begins to write."""
        assert isinstance(fact, Writes)
        quorums = self.known.decides_by(fact.member)
        found = self.known.voters(quorums, lambda disk: fact.term in disk.bases)
        if not quorums.agree(found):
            raise self.violated(
                f"leader {fact.member} writes in term {fact.term}, which only "
                f"{names(found)} recorded; it decides by a majority of {rule(quorums)}"
            )
