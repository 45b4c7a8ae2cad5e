"""The log says who sent a command, and that is true."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import Applied, Asked
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact
    from ...watching.knowledge import Knowledge


class TruePrincipal(Invariant):
    """An entry's principal is that of the client that sent it, however it came into the log."""

    source = "docs/users.md, who did it"
    hears: ClassVar[tuple[type[Fact], ...]] = (Asked, Applied)

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._senders: dict[int, int] = {}

    def hear(self, fact: Fact) -> None:
        """Note who sends a command, and compare."""
        match fact:
            case Asked(serial, principal):
                self._senders[serial] = principal
            case Applied(member, serial, _, principal):
                sender = self._senders.get(serial, principal)  # nobody's: see `NoPhantoms`
                if sender != principal:
                    raise self.violated(
                        f"member {member} applied {serial} of principal {sender} as one of "
                        f"{principal}"
                    )
            case _:
                pass
