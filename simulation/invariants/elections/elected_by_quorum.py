"""A leader has the votes of a quorum."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import Elected
from ..base import Invariant, names, rule

if TYPE_CHECKING:
    from ...watching.facts import Fact


class ElectedByQuorum(Invariant):
    """A quorum of the configuration in force at a new leader has voted for it, durably.

    While the voters change, it is a majority of each set. A vote counts by the store that gave it,
    also if that store was lost since.
    """

    source = "Raft §5.2, dissertation §4.3; protocol I-3"
    hears: ClassVar[tuple[type[Fact], ...]] = (Elected,)

    def hear(self, fact: Fact) -> None:
        """Look at a member that begins to lead."""
        assert isinstance(fact, Elected)
        quorums = self.known.decides_by(fact.member)
        found = self.known.voters(quorums, lambda disk: disk.given.get(fact.term) == fact.member)
        if not quorums.agree(found):
            raise self.violated(
                f"member {fact.member} leads term {fact.term} with the votes of "
                f"{names(found)}; it decides by a majority of {rule(quorums)}"
            )
