"""No member refuses a leader for what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import LeaderRefused
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact


class HonestLeaders(Invariant):
    """What a leader says never contradicts itself, our log, or another leader of its term.

    A member refuses such a leader and goes on, since bytes from the network must not end it. But
    all members here are honest: that one seems not to be is a bug in one of them.
    """

    source = "protocol I-1 (one leader per term), I-6 (nothing committed is truncated)"
    hears: ClassVar[tuple[type[Fact], ...]] = (LeaderRefused,)

    def hear(self, fact: Fact) -> None:
        """Look at a leader that is refused."""
        assert isinstance(fact, LeaderRefused)
        raise self.violated(f"member {fact.member} refuses a leader: {fact.why}")
