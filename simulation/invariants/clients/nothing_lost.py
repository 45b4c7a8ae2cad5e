"""What was acknowledged is never lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import Answered, Applied, Point
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact
    from ...watching.knowledge import Knowledge


class NothingLost(Invariant):
    """What was acknowledged is committed, where the reply says, and stays so.

    That it stays is what `LeaderCompleteness` and `CommittedForEver` say of everything that is
    committed. And no place of the log is two commands'.
    """

    source = "protocol I-34"
    hears: ClassVar[tuple[type[Fact], ...]] = (Answered, Applied)

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._serials: dict[Point, int] = {}
        self._acknowledged: dict[Point, int] = {}

    def hear(self, fact: Fact) -> None:
        """Compare a reply with what is in the log."""
        match fact:
            case Answered(serial, point, query=False):
                self._acknowledged[point] = serial
                end = self.known.committed_end
                if point.position >= end:
                    raise self.violated(f"{serial} was acknowledged at {point}, committed is {end}")
                self._compare(point, serial)
            case Applied(_, serial, point):
                self._compare(point, serial)
                first = self._acknowledged.get(point, serial)
                if first != serial:
                    raise self.violated(f"{first} was acknowledged at {point}; {serial} is there")
            case _:
                pass

    def _compare(self, point: Point, serial: int) -> None:
        first = self._serials.setdefault(point, serial)
        if first != serial:
            raise self.violated(f"{first} and {serial} are both at {point}")
