"""Logs that agree in one batch agree in all before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import Recorded
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact
    from ...watching.knowledge import Knowledge


class LogMatching(Invariant):
    """Two logs with a batch of one term at one position are equal up to its end."""

    source = "Raft, figure 3; protocol I-10, I-16"
    hears: ClassVar[tuple[type[Fact], ...]] = (Recorded,)

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._seen: dict[tuple[int, int], tuple[int, bytes]] = {}

    def hear(self, fact: Fact) -> None:
        """Look at a batch that has become durable."""
        assert isinstance(fact, Recorded)
        batch = fact.batch
        first, prefix = self._seen.setdefault(
            (batch.term, batch.position), (fact.member, batch.prefix)
        )
        if prefix != batch.prefix:
            raise self.violated(
                f"the logs of members {first} and {fact.member} differ at or before position "
                f"{batch.position}, and both have a batch of term {batch.term} there"
            )
