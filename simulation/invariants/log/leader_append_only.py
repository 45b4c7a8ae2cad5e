"""A leader only appends."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import Truncated, Truncating
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact


class LeaderAppendOnly(Invariant):
    """A leader never removes anything from its log."""

    source = "Raft, figure 3; protocol I-9"
    hears: ClassVar[tuple[type[Fact], ...]] = (Truncating, Truncated)

    def hear(self, fact: Fact) -> None:
        """Look at a truncation."""
        assert isinstance(fact, Truncating | Truncated)
        term = self.known.leads.get(fact.member)
        if term is not None:
            raise self.violated(
                f"member {fact.member} leads term {term} and truncates to {fact.position}"
            )
