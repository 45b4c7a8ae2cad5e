"""Keys expire at the same position of the log on all members."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import Probed
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact
    from ...watching.knowledge import Knowledge


class EqualExpiry(Invariant):
    """Asked the same at the same position, all members give the same answer.

    The questions are about keys that expire, and how long they have left: time is the log's, so at
    one position it is one time, whatever the members' clocks say.
    """

    source = "design, section 6 (time comes from the entry); protocol I-23"
    hears: ClassVar[tuple[type[Fact], ...]] = (Probed,)

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._answers: dict[tuple[int, bytes], tuple[int, bytes]] = {}

    def hear(self, fact: Fact) -> None:
        """Compare with the first member that was asked."""
        assert isinstance(fact, Probed)
        asked = fact.position, fact.question
        first, answer = self._answers.setdefault(asked, (fact.member, fact.answer))
        if answer != fact.answer:
            raise self.violated(
                f"asked {fact.question!r} at position {fact.position}, member {first} says "
                f"{answer!r} and member {fact.member} says {fact.answer!r}"
            )
