"""The term table says which leader made each batch of a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...watching.facts import Elected, Installed, Recorded, Started, TermRecorded, Truncated, Wiped
from ..base import Invariant

if TYPE_CHECKING:
    from ...watching.facts import Fact
    from ...watching.knowledge import Knowledge


class TermTable(Invariant):
    """Terms ascend along a log, each batch lies behind the base of its term, and that is recorded.

    A term begins at the same place on every member. Only terms that had a leader have a row, so a
    jump of the term costs nothing.
    """

    source = "protocol I-11, I-12, fix F7"
    hears: ClassVar[tuple[type[Fact], ...]] = (
        Elected,
        Recorded,
        TermRecorded,
        Started,
        Truncated,
        Installed,
        Wiped,
    )

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known)
        self._last_term: dict[int, int] = {}
        self._led: dict[int, None] = {}

    def hear(self, fact: Fact) -> None:
        """Look at a batch, or at a row of the recording log."""
        match fact:
            case Recorded(member, batch):
                disk = self.known.disks[member]
                base = disk.bases.get(batch.term)
                if not (base is not None and base <= batch.position):
                    raise self.violated(
                        f"member {member} has a batch of term {batch.term} at "
                        f"{batch.position}; that "
                        f"term begins at {base} in its recording log"
                    )
                last = self._last_term.get(member, -1)
                if batch.term < last:
                    raise self.violated(
                        f"member {member} has a batch of term {batch.term} behind one of {last}"
                    )
                self._last_term[member] = batch.term
            case Elected(_, term):
                self._led[term] = None
            case TermRecorded(member, term) if term not in self._led and term > min(
                self._led, default=term
            ):
                raise self.violated(f"member {member} records term {term}, which had no leader")
            case TermRecorded(member, term, base):
                earlier = {t: b for t, b in self.known.disks[member].bases.items() if t < term}
                if not all(b <= base for b in earlier.values()):
                    raise self.violated(
                        f"member {member} has term {term} begin at {base}, and before: {earlier}"
                    )
            case Started(member) | Truncated(member) | Wiped(member) | Installed(member):
                batches = self.known.disks[member].batches
                self._last_term[member] = batches[-1].term if batches else -1
            case _:
                pass
