"""One leader per term."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import Elected
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact
    from ...watching.knowledge import Knowledge


class ElectionSafety(Invariant):
    """At most one member is ever leader of a term."""

    source = "Raft, figure 3; protocol I-1"
    hears: ClassVar[tuple[type[Fact], ...]] = (Elected,)

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._leaders: dict[int, int] = {}

    def hear(self, fact: Fact) -> None:
        """Check a new leader."""
        assert isinstance(fact, Elected)
        first = self._leaders.setdefault(fact.term, fact.member)
        if first != fact.member:
            raise self.violated(f"members {first} and {fact.member} both lead term {fact.term}")
