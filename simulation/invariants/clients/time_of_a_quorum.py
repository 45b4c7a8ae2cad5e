"""The log's time goes by what the clocks of a quorum show."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from ....node.clocks import MAX_SKEW_MS
from ...watching.facts import Timed
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact
    from ...watching.knowledge import Knowledge


class TimeOfAQuorum(Invariant):
    """No batch is stamped with a time that no quorum of clocks has reached.

    Only the allowed skew is added. Log time never goes back, so it must not follow a single clock
    that is years ahead, even the leader's. What the clocks of a former quorum had reached counts
    for ever, for the same reason.
    """

    source = "node/clocks.py: the time reached"
    hears: ClassVar[tuple[type[Fact], ...]] = (Timed,)

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._reached = -math.inf

    def hear(self, fact: Fact) -> None:
        """Compare with the clocks of the voters."""
        assert isinstance(fact, Timed)
        clocks = dict(fact.clocks_ms)
        quorums = self.known.decides_by(fact.member)
        shown = {
            voter: float(clocks[voter.member_id])
            for voter in quorums.voters
            if voter.member_id in clocks
        }
        self._reached = max(self._reached, quorums.time(shown))
        if fact.ahead_ms > self._reached + MAX_SKEW_MS:
            raise self.violated(
                f"member {fact.member} stamps a batch {fact.ahead_ms} ms ahead; the clocks of a "
                f"quorum are {self._reached:g} ms ahead at most"
            )
