"""Commit positions only rise, and lie within what is durable."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import Committed, Reached, Started, Truncating, Wiped
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact
    from ...watching.knowledge import Knowledge


class CommitMonotonic(Invariant):
    """A running member's commit position never goes back, and it has all below it, durably.

    Nobody truncates below what it takes for committed, and nobody applies above it.
    """

    source = "protocol I-14, I-17, I-18"
    hears: ClassVar[tuple[type[Fact], ...]] = (Committed, Reached, Started, Truncating, Wiped)

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._commit: dict[int, int] = {}

    def hear(self, fact: Fact) -> None:
        """Look at what a member takes for committed."""
        match fact:
            case Committed(member, position):
                before, end = self._commit.get(member, 0), self.known.disks[member].end
                if not before <= position <= end:
                    raise self.violated(
                        f"member {member} commits {position} after {before}; durable is {end}"
                    )
                self._commit[member] = position
            case Truncating(member, position):
                commit = self._commit.get(member, 0)
                if position < commit:
                    raise self.violated(
                        f"member {member} truncates to {position}, below its commit position "
                        f"{commit}"
                    )
            case Started(member) | Wiped(member):
                self._commit.pop(member, None)
            case _:
                pass
