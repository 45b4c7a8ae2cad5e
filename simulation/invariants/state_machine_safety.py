"""All services are equal at equal positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ..facts import Reached
from .base import Invariant

if TYPE_CHECKING:
    from ..facts import Fact
    from ..knowledge import Knowledge


class StateMachineSafety(Invariant):
    """All members have applied the same commands, and given the same replies, at each position.

    A service that takes time, chance or the order of a set from its machine is found by this.
    """

    source = "Raft, figure 3; protocol I-22, I-23"
    hears: ClassVar[tuple[type[Fact], ...]] = (Reached,)

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._digests: dict[int, tuple[int, bytes]] = {}

    def hear(self, fact: Fact) -> None:
        """Compare with who was here first."""
        assert isinstance(fact, Reached)
        first, digest = self._digests.setdefault(fact.position, (fact.member, fact.digest))
        if digest != fact.digest:
            raise self.violated(
                f"members {first} and {fact.member} differ at position {fact.position}: other "
                "commands, or other replies to them"
            )
