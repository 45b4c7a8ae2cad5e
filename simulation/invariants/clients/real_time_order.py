"""Commands and queries take effect in the order of real time."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import Answered, Asked, Point, Refused
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact
    from ...watching.knowledge import Knowledge

BEGINNING = Point(0, -1)


class RealTimeOrder(Invariant):
    """What is asked after something was answered takes effect behind it: linearizability.

    The log is one order of all commands, and a query has its place in it too. A history is
    linearizable in that order if it keeps to real time, and that is checked here, for each
    operation as it is answered. (That replies are those of this order is `StateMachineSafety`.)
    """

    source = "Herlihy and Wing 1990; Raft §8; protocol I-36, I-37, hazard H14"
    hears: ClassVar[tuple[type[Fact], ...]] = (Asked, Answered, Refused)

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._newest = BEGINNING
        self._floors: dict[int, Point] = {}

    def hear(self, fact: Fact) -> None:
        """Look at an operation's begin, or its end."""
        match fact:
            case Asked(serial):
                self._floors[serial] = self._newest
            case Answered(serial, point, query):
                floor = self._floors.pop(serial, BEGINNING)
                if not (point >= floor if query else point > floor):
                    raise self.violated(
                        f"{'query' if query else 'command'} {serial} took effect at {point}; "
                        "before "
                        f"it was asked something at {floor} had been answered"
                    )
                self._newest = max(self._newest, point)
            case Refused(serial):
                self._floors.pop(serial, None)
            case _:
                pass
