"""What is committed is the same everywhere, and for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import Committed
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact


class CommittedForEver(Invariant):
    """What one member has committed no member ever commits otherwise."""

    source = "Raft, figure 3 (state machine safety); protocol I-22"
    hears: ClassVar[tuple[type[Fact], ...]] = (Committed,)

    def hear(self, fact: Fact) -> None:
        """Compare with what was committed first."""
        assert isinstance(fact, Committed)
        if not fact.position:
            return
        mine = self.known.disks[fact.member].prefix_at.get(fact.position)
        first = self.known.committed_prefix.get(fact.position)
        if not (mine is not None and mine == first):
            raise self.violated(
                f"member {fact.member} commits another log up to {fact.position} than was committed"
            )
