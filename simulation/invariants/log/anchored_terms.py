"""A leader writes nothing before a quorum has recorded its term."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import TermRecorded, Wiped, Writes
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact
    from ...watching.knowledge import Knowledge


class AnchoredTerms(Invariant):
    """When a leader writes its first entry, a quorum has its term in the recording log.

    A disk may be lost between the report and its arrival, so "had it" is enough. The leader then
    counts what is gone, and that member must not vote before it has everything again.
    """

    source = "protocol I-13, I-28, hazard H3, fix F3"
    hears: ClassVar[tuple[type[Fact], ...]] = (TermRecorded, Wiped, Writes)

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._recorded: dict[int, set[int]] = {}
        self._lost: dict[int, set[int]] = {}

    def hear(self, fact: Fact) -> None:
        """Look at a leader that begins to write."""
        match fact:
            case TermRecorded(member, term):
                self._recorded.setdefault(member, set()).add(term)
            case Wiped(member):
                self._lost[member] = self._recorded.pop(member, set())
            case Writes(member, term):
                self._look(member, term)
            case _:
                pass

    def _look(self, leader: int, term: int) -> None:
        disks = self.known.disks
        found = [
            i
            for i in self.known.voters
            if term in disks[i].bases or term in self._lost.get(i, set())
        ]
        if len(found) < self.known.quorum:
            raise self.violated(
                f"leader {leader} writes in term {term}, which only {found} have recorded"
            )
