"""A leader has everything that was ever committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import Elected
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact


class LeaderCompleteness(Invariant):
    """What was committed in any term is in the log of every leader of a later one."""

    source = "Raft, figure 3, §5.4.3; protocol I-21"
    hears: ClassVar[tuple[type[Fact], ...]] = (Elected,)

    def hear(self, fact: Fact) -> None:
        """Look at a member that begins to lead."""
        assert isinstance(fact, Elected)
        before = [end for term, end in self.known.committed_in.items() if term < fact.term]
        end = max(before, default=0)
        prefix = self.known.committed_prefix.get(end)
        mine = self.known.disks[fact.member].prefix_at.get(end)
        if prefix != mine:
            raise self.violated(
                f"member {fact.member} leads term {fact.term}; its log ends at "
                f"{self.known.disks[fact.member].end} and is not the one committed up to {end}"
            )
