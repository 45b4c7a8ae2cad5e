"""The log's time goes by what the clocks of a quorum show."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ....node.clocks import MAX_SKEW_MS
from ...watching.facts import Timed
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact


class TimeOfAQuorum(Invariant):
    """No batch is stamped with a time that no quorum of clocks has reached.

    Only the allowed skew is added. Log time never goes back, so it must not follow a single clock
    that is years ahead, even the leader's.
    """

    source = "node/clocks.py: the time reached"
    hears: ClassVar[tuple[type[Fact], ...]] = (Timed,)

    def hear(self, fact: Fact) -> None:
        """Compare with the clocks of all members."""
        assert isinstance(fact, Timed)
        reached = sorted(fact.clocks_ms, reverse=True)[self.known.quorum - 1]
        if fact.ahead_ms > reached + MAX_SKEW_MS:
            raise self.violated(
                f"member {fact.member} stamps a batch {fact.ahead_ms} ms ahead; the clocks of a "
                f"quorum are {reached} ms ahead at most"
            )
