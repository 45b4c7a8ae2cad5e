"""The few operations that show why a history is not linearizable.

The window never hides an operation that could explain the others. It shrinks by steps that keep a
linearizable history linearizable. So if the smaller history is violated, the whole one is:

- cut off what came after the first return that can't be explained: operations that were under way
  there become unknown ones;
- cut off the beginning where nothing was under way, and go on from every state that may have been
  reached there;
- free an operation: a read is left out, another becomes unknown, so it may have happened at any
  time after its start, or never.

The last step is tried with all operations but those around the failure and those that have to do
with the same value. Then it is repeated, for many operations at once and at last for single ones,
while the rest is still violated (delta debugging, Zeller 1999) and the budget lasts. What remains
is shown.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import attrs

from .search import Budget, Search
from .specification import KEPT, Unnamed

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from .history import Operation
    from .specification import Specification

__all__ = ["Window", "shrink", "words"]

S = TypeVar("S", bound="Hashable")

CONTEXT_OPERATIONS: Final = 16
"""The beginning is cut off no later than so many operations before the end."""
MAX_STARTS: Final = 64
"""The beginning is not cut off where more states than this may have been reached."""
SHRINK_STATES: Final = 300_000
"""How many states are looked at to make a window smaller."""
STEP_STATES: Final = 30_000
"""How many of them for one step."""
_MAX_SHOWN: Final = 32
_MAX_VALUE_BYTES: Final = 40


@attrs.frozen
class Window:
    """Operations that no order explains.

    Args:
        operations: the ones that matter, by their starts.
        before: the states that are possible in front of them, or some of these.
        free: how many others of the window were let free to happen at any time or never.
    """

    operations: tuple[Operation, ...]
    before: tuple[object, ...]
    free: int

    def __str__(self) -> str:
        zero = min((one.start_ns for one in self.operations), default=0)
        states = " or ".join(map(_shown, self.before[:4]))
        more = " or others" if len(self.before) > 4 else ""
        lines = [f"  no order explains these; the window begins with {states}{more}"]
        if hidden := len(self.operations) - _MAX_SHOWN:
            lines += [f"  ... {hidden} earlier ones"] if hidden > 0 else []
        lines += [f"  {_line(one, zero)}" for one in self.operations[-_MAX_SHOWN:]]
        if self.free:
            lines.append(f"  {self.free} other operations nearby do not help, whenever they happen")
        return "\n".join(lines)


def _line(one: Operation, zero: int) -> str:
    begin, end = ((at - zero) / 1e9 for at in (one.start_ns, one.end_ns))
    return f"{begin:+.6f} s to {end:+.6f} s  client {one.client}: {words(one)}"


def words(one: Operation) -> str:
    """Return each request and its reply as one line, each value cut to its last 40 bytes."""
    asked = " ".join([one.op, *map(_shown, one.args)])
    return f"{asked} -> {'?' if one.status == 'unknown' else _shown(one.result)}"


def _shown(value: object) -> str:
    if isinstance(value, bytes):
        rest = len(value) - _MAX_VALUE_BYTES
        text = repr(value[-_MAX_VALUE_BYTES:])[1:]
        return f"({rest} bytes)...{text}" if rest > 0 else text
    return "nothing" if value is None else str(value)


def shrink(search: Search[S], specification: Specification[S]) -> Window:
    """Find a small window of what a search could not order."""
    return _Shrinker(search, specification).window()


class _Shrinker(Generic[S]):
    """Makes one window; each question to `_violated` is a search of its own."""

    def __init__(self, search: Search[S], specification: Specification[S]) -> None:
        self._specification = specification
        self._known = search.known
        self._unknown = search.unknown
        self._stuck_ns = search.stuck_ns
        self._starts: list[tuple[S, int]] = [(specification.initial, 0)]
        self._left = SHRINK_STATES

    def window(self) -> Window:
        """Make it."""
        self._cut_end()
        self._cut_beginning()
        count = len(self._known)
        self._free_far_ones()
        self._free_operations()
        return Window(
            tuple(self._known),
            tuple(dict.fromkeys(state for state, _ in self._starts)),
            count - len(self._known),
        )

    def _violated(self, known: Iterable[Operation], unknown: Iterable[Operation]) -> bool:
        """Whether no order exists from any start; not if that takes too long to find out."""
        search = Search([*known, *unknown], self._specification, self._step())
        orders = (next(search.orders(*start), None) for start in self._starts)
        violated = all(order is None for order in orders) and not search.gave_up
        self._left = max(self._left - search.states, 0)
        return violated

    def _step(self) -> Budget:
        return Budget(min(self._left, STEP_STATES))

    def _freed(self, operations: Iterable[Operation]) -> list[Operation]:
        """Those that may happen at any time after their start or never; reads need not stay."""
        makes = self._specification.makes
        return [
            attrs.evolve(one, status="unknown", result=None)
            for one in operations
            if makes(one.op, one.args, None, known=False) is not KEPT
        ]

    def _until(self, end_ns: int) -> tuple[list[Operation], list[Operation]]:
        """Known and unknown operations of the history up to a moment."""
        begun = [one for one in self._known if one.start_ns <= end_ns]
        known = [one for one in begun if one.end_ns <= end_ns]
        under_way = self._freed(one for one in begun if one.end_ns > end_ns)
        return known, [*(one for one in self._unknown if one.start_ns <= end_ns), *under_way]

    def _cut_end(self) -> None:
        """Find the first return up to which there is no order; it is not before `stuck_ns`."""
        ends = sorted({one.end_ns for one in self._known if one.end_ns >= self._stuck_ns})
        low, high = 0, len(ends) - 1
        while low < high:
            middle = (low + high) // 2 if low else 0  # mostly it is the first one
            if self._violated(*self._until(ends[middle])):
                high = middle
            else:
                low = middle + 1
        self._known, self._unknown = self._until(ends[high])

    def _cut_beginning(self) -> None:
        """Go on from what may have been reached where nothing was under way."""
        ends = list(accumulate((one.end_ns for one in self._known), max))
        quiet = [k for k in range(1, len(ends)) if ends[k - 1] < self._known[k].start_ns]
        cut = max((k for k in quiet if len(ends) - k >= CONTEXT_OPERATIONS), default=0)
        if not cut:
            return
        begin_ns = self._known[cut].start_ns
        earlier = [one for one in self._unknown if one.start_ns < begin_ns]
        search = Search([*self._known[:cut], *earlier], self._specification, self._step())
        reached: list[tuple[S, int]] = []
        for end in search.orders(*self._starts[0]):
            reached.append(end)
            if len(reached) > MAX_STARTS:
                break
        self._left = max(self._left - search.states, 0)
        if len(reached) <= MAX_STARTS and not search.gave_up:
            self._known = self._known[cut:]
            self._starts = reached

    def _free_far_ones(self) -> None:
        """Try with the last operations, and with those that see or make what the last one does."""
        near = self._known[-CONTEXT_OPERATIONS:]
        values = self._values(max(near, key=lambda one: one.end_ns))
        far = self._known[: -len(near)]
        kept = [one for one in far if self._values(one) & values]
        unknown = [*self._unknown, *self._freed(one for one in far if one not in kept)]
        if self._violated([*kept, *near], unknown):
            self._known, self._unknown = [*kept, *near], unknown

    def _values(self, one: Operation) -> set[object]:
        """The states that an operation is known to need or to make."""
        needs, makes = self._specification.needs, self._specification.makes
        found = {
            needs(one.op, one.args, one.result),
            makes(one.op, one.args, one.result, known=True),
        }
        return {state for state in found if not isinstance(state, Unnamed)}

    def _free_operations(self) -> None:
        """Free what can be freed, many at a time first."""
        size = len(self._known)
        while size := size // 2:
            at = 0
            while at < len(self._known) and self._left:
                kept = [*self._known[:at], *self._known[at + size :]]
                unknown = [*self._unknown, *self._freed(self._known[at : at + size])]
                if self._violated(kept, unknown):
                    self._known, self._unknown = kept, unknown
                else:
                    at += size
