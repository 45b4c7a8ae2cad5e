"""What was durable is there after every crash."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import CutOff, Installed, Recorded, Started, Truncated, Truncating, Wiped
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact
    from ...watching.knowledge import Knowledge


class DurableStays(Invariant):
    """A log ends, after a restart, no earlier than where it was durable before.

    Where a truncation was under way it may have happened or not. A damaged end is cut off.
    """

    source = "protocol I-25, hazard H7"
    hears: ClassVar[tuple[type[Fact], ...]] = (
        Recorded,
        CutOff,
        Installed,
        Started,
        Truncated,
        Truncating,
        Wiped,
    )

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._durable: dict[int, int] = {}

    def hear(self, fact: Fact) -> None:
        """Look at what is durable, and at what a crash has left of it."""
        match fact:
            case Recorded(member, batch):
                self._durable[member] = batch.end
            case (
                Truncating(member, position)
                | Truncated(member, position)
                | CutOff(member, position)
            ):
                self._durable[member] = min(position, self._durable.get(member, 0))
            case Installed(member, position):
                self._durable[member] = position
            case Started(member, append):
                durable = self._durable.get(member, 0)
                if append < durable:
                    raise self.violated(
                        f"the log of member {member} was durable to {durable}, and ends at "
                        f"{append} "
                        "after a restart"
                    )
            case Wiped(member):
                self._durable.pop(member, None)
            case _:
                pass
