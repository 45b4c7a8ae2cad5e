"""A command is applied once."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import Applied, Point
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact
    from ...watching.knowledge import Knowledge


class ExactlyOnce(Invariant):
    """A command is applied at one place of the log, the same on all members, or nowhere."""

    source = "protocol I-33"
    hears: ClassVar[tuple[type[Fact], ...]] = (Applied,)

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._points: dict[int, Point] = {}

    def hear(self, fact: Fact) -> None:
        """Compare with where it was applied first."""
        assert isinstance(fact, Applied)
        first = self._points.setdefault(fact.serial, fact.point)
        if first != fact.point:
            raise self.violated(
                f"{fact.serial} was applied at {first}, and at {fact.point} by member {fact.member}"
            )
