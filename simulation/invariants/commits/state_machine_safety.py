"""All services are equal at equal positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import Holds, Reached
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact
    from ...watching.knowledge import Knowledge


class StateMachineSafety(Invariant):
    """All members have applied the same commands, given the same replies, and hold the same.

    Commands and replies are compared at each position, states at some. This finds a service that
    depends on its machine's time, chance or set order, or on what is in memory and what on disk.
    """

    source = "Raft, figure 3; protocol I-22, I-23"
    hears: ClassVar[tuple[type[Fact], ...]] = (Reached, Holds)

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._digests: dict[int, tuple[int, bytes]] = {}
        self._states: dict[int, tuple[int, bytes]] = {}

    def hear(self, fact: Fact) -> None:
        """Compare with the first member that reached this position."""
        match fact:
            case Reached(member, position, digest):
                first, known = self._digests.setdefault(position, (member, digest))
                if digest != known:
                    raise self.violated(
                        f"members {first} and {member} differ at position {position}: other "
                        "commands, or other replies to them"
                    )
            case Holds(member, position, state):
                first, known = self._states.setdefault(position, (member, state))
                if state != known:
                    raise self.violated(
                        f"members {first} and {member} hold other things at position {position}, "
                        "after the same commands and replies"
                    )
            case _:
                pass
