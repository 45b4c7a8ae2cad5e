"""A command of a session is applied once, and its reply is one."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ....keyvalue.protocol.payload import PART
from ...watching.facts import Stamped
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact
    from ...watching.knowledge import Knowledge


class OncePerSession(Invariant):
    """All replies to one sequence of a session are equal, whichever member gave them.

    Errors are excepted: a reply that was acknowledged is forgotten, and a session ends. So is the
    reply that says that nothing was done yet. A command whose reply differs each time it is applied
    shows whether it was applied twice.
    """

    source = "protocol I-33; Ongaro's dissertation, section 6.3"
    hears: ClassVar[tuple[type[Fact], ...]] = (Stamped,)

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._replies: dict[tuple[int, int], bytes] = {}

    def hear(self, fact: Fact) -> None:
        """Compare with the first reply."""
        assert isinstance(fact, Stamped)
        if fact.reply.startswith((b"-", PART)):
            return
        first = self._replies.setdefault((fact.session, fact.sequence), fact.reply)
        if first != fact.reply:
            raise self.violated(
                f"{fact.sequence} of session {fact.session} was answered with {first!r}, and with "
                f"{fact.reply!r} by member {fact.member}"
            )
