"""No member is elected while another leader's lease holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import Leased
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact


class OneAtATime(Invariant):
    """While a leader answers reads by a lease, nobody was elected in a newer term."""

    source = "Raft dissertation §6.4.1; protocol I-37, H14"
    hears: ClassVar[tuple[type[Fact], ...]] = (Leased,)

    def hear(self, fact: Fact) -> None:
        """Check every leader with a lease."""
        assert isinstance(fact, Leased)
        if fact.term < self.known.newest:
            raise self.violated(
                f"member {fact.member} has a lease of term {fact.term}, and a leader of term "
                f"{self.known.newest} was elected"
            )
