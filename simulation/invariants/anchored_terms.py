"""A leader writes nothing before a quorum knows of its term."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ..facts import Writes
from .base import Invariant

if TYPE_CHECKING:
    from ..facts import Fact


class AnchoredTerms(Invariant):
    """When a leader writes its first entry, a quorum has its term in the recording log."""

    source = "protocol I-13, I-28, hazard H3, fix F3"
    hears: ClassVar[tuple[type[Fact], ...]] = (Writes,)

    def hear(self, fact: Fact) -> None:
        """Look at a leader that begins to write."""
        assert isinstance(fact, Writes)
        disks = self.known.disks
        found = [i for i in self.known.voters if fact.term in disks[i].bases]
        if len(found) < self.known.quorum:
            raise self.violated(
                f"leader {fact.member} writes in term {fact.term}, which only {found} have recorded"
            )
