"""Nobody leads while another one's lease holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ..facts import Elected, Leased
from .base import Invariant

if TYPE_CHECKING:
    from ..facts import Fact
    from ..knowledge import Knowledge


class OneAtATime(Invariant):
    """When a leader begins a term, no leader of an older one answers reads by a lease."""

    source = "Raft dissertation §6.4.1; protocol I-37, H14"
    hears: ClassVar[tuple[type[Fact], ...]] = (Elected, Leased)

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._newest = -1

    def hear(self, fact: Fact) -> None:
        """Look at who leads, and at who has a lease."""
        if isinstance(fact, Leased):
            if fact.term < self._newest:
                raise self.violated(
                    f"member {fact.member} has a lease of term {fact.term}, and term "
                    f"{self._newest} has a leader"
                )
        else:
            assert isinstance(fact, Elected)
            self._newest = max(self._newest, fact.term)
