"""A member deletes no file that it has not written."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import Deleted
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact


class ForeignFilesStay(Invariant):
    """Files that others put into a member's folders are still there after each start.

    It may be the copy of a snapshot, or the last one of a log that is lost.
    """

    source = "an operator's copy of a snapshot that a start had deleted"
    hears: ClassVar[tuple[type[Fact], ...]] = (Deleted,)

    def hear(self, fact: Fact) -> None:
        """Look at a file that has gone."""
        if isinstance(fact, Deleted):
            raise self.violated(f"member {fact.member} has deleted {fact.name}, not its own file")
