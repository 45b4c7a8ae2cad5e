"""Nothing is applied that nobody sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import Applied, Asked, Refused
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact
    from ...watching.knowledge import Knowledge


class NoPhantoms(Invariant):
    """Nothing is applied that no client has sent, and nothing that a client was refused."""

    source = "OpenRaft's oracle; protocol I-34"
    hears: ClassVar[tuple[type[Fact], ...]] = (Asked, Applied, Refused)

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._asked: set[int] = set()
        self._refused: set[int] = set()
        self._applied: set[int] = set()

    def hear(self, fact: Fact) -> None:
        """Look at a command."""
        match fact:
            case Asked(serial):
                self._asked.add(serial)
            case Refused(serial):
                self._refused.add(serial)
                if serial in self._applied:
                    raise self.violated(f"{serial} was applied, and refused")
            case Applied(member, serial):
                self._applied.add(serial)
                if serial not in self._asked:
                    raise self.violated(f"member {member} applied {serial}: nobody's")
                if serial in self._refused:
                    raise self.violated(f"member {member} applied {serial}: it was refused")
            case _:
                pass
