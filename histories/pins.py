"""Which states are still needed by operations that are left, and what can still make them.

A read that found a value needs the state with that value. So does a change from that value to
another one. If no remaining operation makes that state again, the search must not leave the state
before that read. Without this rule the search learns of its mistake only when that read must be
placed, many choices later.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Generic, TypeVar

from .specification import ANY, GROWN, KEPT

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from .history import Operation
    from .specification import Specification

__all__ = ["Pins"]

S = TypeVar("S", bound="Hashable")


class Pins(Generic[S]):
    """Counts what is left.

    Args:
        known: operations of known outcome; number i is named i.
        unknown: operations of unknown outcome; number u is named ~u.
        specification: what operations do.

    Attributes:
        needs: which state a known operation needs, if it is only one.
        makes: which state an operation makes, by its name.
    """

    def __init__(
        self,
        known: Sequence[Operation],
        unknown: Sequence[Operation],
        specification: Specification[S],
    ) -> None:
        self.needs = [specification.needs(one.op, one.args, one.result) for one in known]
        self.makes = [
            specification.makes(one.op, one.args, one.result, known=one.status == "ok")
            for one in (*known, *reversed(unknown))
        ]
        self._unknown = len(unknown)
        self.begin(0)

    def begin(self, unknowns: int) -> None:
        """Begin with all operations but some unknown ones."""
        self._needed = Counter(self.needs)
        self._made = Counter(self.makes)
        self._others = len(self.makes) - self._made[KEPT] - self._made[GROWN]
        for u in range(self._unknown):
            if unknowns >> u & 1:
                self.take(~u)

    def take(self, taken: int) -> None:
        """An operation is taken."""
        self._count(taken, -1)

    def put_back(self, taken: int) -> None:
        """An operation is left again."""
        self._count(taken, 1)

    def _count(self, taken: int, change: int) -> None:
        if taken >= 0:
            self._needed[self.needs[taken]] += change
        made = self.makes[taken]
        self._made[made] += change
        self._others += change * (made is not GROWN and made is not KEPT)

    @property
    def grows(self) -> bool:
        """Whether no operation is left but those that keep a state and those that let it grow."""
        return not self._others

    def unmade(self, state: S) -> bool:
        """Say whether a state is needed that no operation makes, and that is not there either."""
        if self._made[ANY] or self._made[GROWN]:
            return False
        named = (one for one, count in self._needed.items() if count and one is not ANY)
        return any(not self._made[one] and one != state for one in named)

    def keeps(self, taken: int) -> bool:
        """Say whether an operation certainly leaves the state as it is."""
        return self.makes[taken] is KEPT

    def lost(self, state: S, taken: int) -> bool:
        """Say whether taking an operation leaves a state that will be needed in vain."""
        needed = self._needed[state] - (taken >= 0 and self.needs[taken] == state)
        if not needed or self._made[state]:
            return False  # the common case
        made = self.makes[taken]
        if self._made[ANY] > (made is ANY):
            return False
        if made is GROWN and not self._others:
            return True
        return self._made[GROWN] == (made is GROWN)
