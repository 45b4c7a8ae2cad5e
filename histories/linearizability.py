"""Is a history linearizable? Each key on its own, which is enough (Herlihy and Wing, 1990).

A history is linearizable if its operations have an order with two properties. Each operation gives
the result that its client saw. Operations that did not overlap keep their order. A failed
operation has no effect and is left out. A key that cannot be decided within the budget is reported
as *undecided*, never as linearizable.

A key that is not linearizable is reported with a small window of operations that shows why.
All functions are pure and all data can be pickled, so many processes may check keys in parallel.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final, TypeVar

import attrs

from .search import Budget, Search
from .specification import Specification, Strings
from .window import Window, shrink

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from .history import Operation

__all__ = ["Budget", "KeyReport", "Report", "Verdict", "by_key", "check", "check_key"]

S = TypeVar("S", bound="Hashable")

_STRINGS: Final = Strings()
_USUAL: Final = Budget()


class Verdict(enum.Enum):
    """The result of a check."""

    LINEARIZABLE = "linearizable"
    VIOLATED = "violated"
    UNDECIDED = "undecided"


@attrs.frozen
class KeyReport:
    """What was found about one key.

    Args:
        key: the key.
        verdict: the result of the check.
        operations: how many there were, failed ones included.
        states: how many states were looked at.
        window: if violated, some operations that show it.
    """

    key: bytes
    verdict: Verdict
    operations: int
    states: int
    window: Window | None = None

    def __str__(self) -> str:
        match self.verdict:
            case Verdict.LINEARIZABLE:
                return f"{self.key!r}: linearizable ({self.operations:,} operations)"
            case Verdict.UNDECIDED:
                return (
                    f"{self.key!r}: undecided: {self.operations:,} operations, gave up after "
                    f"{self.states:,} states"
                )
            case Verdict.VIOLATED:
                return f"{self.key!r}: not linearizable\n{self.window}"


@attrs.frozen
class Report:
    """What was found about all keys, in the order in which they first appear."""

    keys: tuple[KeyReport, ...]

    @property
    def verdict(self) -> Verdict:
        """Violated if any key is, else undecided if any key is."""
        found = {report.verdict for report in self.keys}
        for verdict in (Verdict.VIOLATED, Verdict.UNDECIDED):
            if verdict in found:
                return verdict
        return Verdict.LINEARIZABLE

    @property
    def operations(self) -> int:
        """How many operations were checked."""
        return sum(report.operations for report in self.keys)

    @property
    def trouble(self) -> list[KeyReport]:
        """The keys that are not linearizable, or not decided."""
        return [one for one in self.keys if one.verdict is not Verdict.LINEARIZABLE]


def by_key(operations: Iterable[Operation]) -> dict[bytes, list[Operation]]:
    """Split a history into one history per key."""
    keys: dict[bytes, list[Operation]] = {}
    for operation in operations:
        keys.setdefault(operation.key, []).append(operation)
    return keys


def check_key(
    key: bytes,
    operations: Iterable[Operation],
    specification: Specification[S],
    budget: Budget = _USUAL,
) -> KeyReport:
    """Check the operations on one key.

    Raises:
        HistoryError: the specification does not know an operation.
    """
    found = list(operations)
    for one in found:
        specification.apply(specification.initial, one.op, one.args)
    search = Search(found, specification, budget)
    if next(search.orders(specification.initial), None) is not None:
        return KeyReport(key, Verdict.LINEARIZABLE, len(found), search.states)
    if search.gave_up:
        return KeyReport(key, Verdict.UNDECIDED, len(found), search.states)
    window = shrink(search, specification)
    return KeyReport(key, Verdict.VIOLATED, len(found), search.states, window)


def check(operations: Iterable[Operation], budget: Budget = _USUAL) -> Report:
    """Check a history of a key-value store: a budget of states for each key, one deadline for all.

    Raises:
        HistoryError: an operation is none of the store's.
    """
    keys = by_key(operations)
    return Report(tuple(check_key(key, those, _STRINGS, budget) for key, those in keys.items()))
