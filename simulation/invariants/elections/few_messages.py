"""No member sends more messages than it has to."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, ClassVar, Final

from ...watching.facts import Said
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact
    from ...watching.knowledge import Knowledge

MOST_A_SECOND: Final = 1000
"""More than any member says in an election; two that answer each other without a pause say more."""


class FewMessages(Invariant):
    """What a member says without being asked to carry a request or log is bounded.

    Members repeat what they say in elections, and while they wait for others, at intervals. If they
    answer a broadcast by a broadcast, as many messages travel as the network lets them.
    """

    source = "ours"
    hears: ClassVar[tuple[type[Fact], ...]] = (Said,)

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._said: dict[int, deque[float]] = {}

    def hear(self, fact: Fact) -> None:
        """Count what a member says."""
        assert isinstance(fact, Said)
        said = self._said.setdefault(fact.member, deque(maxlen=MOST_A_SECOND))
        if len(said) == MOST_A_SECOND and fact.at - said[0] < 1.0:
            raise self.violated(
                f"member {fact.member} says more than {MOST_A_SECOND} messages in a second, the "
                f"last one a {fact.kind}"
            )
        said.append(fact.at)
