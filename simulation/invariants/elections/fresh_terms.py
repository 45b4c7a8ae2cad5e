"""A term is begun above all that is in the log of the member that begins it."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import Elected
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact


class FreshTerms(Invariant):
    """A new leader's log has no entry of its term or of a newer one.

    Otherwise the term would be opened twice, and entries before the second opening would be taken
    for the new leader's.
    """

    source = "Raft §5.1 (terms only rise); protocol I-11, I-12"
    hears: ClassVar[tuple[type[Fact], ...]] = (Elected,)

    def hear(self, fact: Fact) -> None:
        """Look at a member that begins to lead."""
        assert isinstance(fact, Elected)
        disk = self.known.disks[fact.member]
        last = max([*disk.bases, *(batch.term for batch in disk.batches[-1:])], default=-1)
        if fact.term <= last:
            raise self.violated(
                f"member {fact.member} begins term {fact.term}, and its log holds term {last}"
            )
