"""The search for one order of operations on one key that explains every reply.

The algorithm is Wing and Gong's (1993) with Lowe's memory (2017). It orders the operations one by
one. The next one is always an operation that began before the first return among the remaining
ones. The search never visits the same set of ordered operations with the same state twice.
Operations of unknown outcome have no return: each may be taken at any time after its start, or
never. Four rules keep the search small:

- A read whose result is right is taken at once and nothing else is tried, since it blocks nothing.
- The search does not leave a state that a remaining operation needs and that none can make again.
- An unknown operation is taken only if that changes the very next operation. If any order exists,
  one with the fewest unknown operations exists, and each of those makes such a difference.
- Among identical unknown operations the earliest is taken first.
"""

from __future__ import annotations

import bisect
import enum
from itertools import compress
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import attrs

from .pins import Pins
from .specification import Unnamed

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from .history import Operation, Value
    from .specification import Specification

__all__ = ["Budget", "Search"]

S = TypeVar("S", bound="Hashable")

_CLOCK_STATES: Final = 1024
"""States between two looks at the clock. Smaller costs time; larger overruns the deadline."""


@attrs.frozen
class Budget:
    """How much a search may take.

    Args:
        states: how many states it may visit.
        clock: returns the time in seconds; needed only with a deadline.
        deadline: when to give up, on that clock.
    """

    states: int = 2_000_000
    clock: Callable[[], float] | None = None
    deadline: float = 0.0

    def spent(self, states: int) -> bool:
        """Return whether a search that has visited `states` states must give up."""
        if states > self.states:
            return True
        if self.clock is None or states % _CLOCK_STATES:
            return False
        return self.clock() >= self.deadline


class _Nothing(enum.Enum):
    """No state at all; None is one."""

    NOTHING = 0


_NOTHING: Final = _Nothing.NOTHING


@attrs.define(eq=False)
class _Place(Generic[S]):
    """A place in the search: the operations ordered so far, and the state that they lead to.

    Args:
        taken: the last of them: known operation i as i, unknown operation u as ~u.
        state: the state after it.
        without: the state there if the unknown operation just taken were left out.
        first: the first known operation that is left, in the order of their starts.
        window: bit k = known operation first + k is taken.
        unknowns: bit u = unknown operation u is taken.
        choices: the next steps that were not tried yet.
    """

    taken: int
    state: S
    without: S | _Nothing
    first: int
    window: int
    unknowns: int
    choices: Iterator[tuple[int, S]] = attrs.field(factory=lambda: iter(()))

    @property
    def memory(self) -> tuple[int, int, int, S, S | _Nothing]:
        """Everything on which the rest of the search depends."""
        return self.first, self.window, self.unknowns, self.state, self.without


class Search(Generic[S]):
    """One search for an order of operations on one key.

    Args:
        operations: operations on that key, in any order; failed ones are left out.
        specification: what operations do.
        budget: when to give up.

    Attributes:
        known: the operations that are ok, by their starts.
        unknown: those of unknown outcome, by their starts.
        states: how many states it has visited.
        gave_up: whether the budget ran out.
        stuck_ns: the latest return that it reached. If there is no order, it got no further.
    """

    def __init__(
        self, operations: Iterable[Operation], specification: Specification[S], budget: Budget
    ) -> None:
        relevant = sorted(operations, key=lambda one: (one.start_ns, one.end_ns))
        self.known = [one for one in relevant if one.status == "ok"]
        self.unknown = [one for one in relevant if one.status == "unknown"]
        self.states = 0
        self.gave_up = False
        self.stuck_ns = 0
        self._apply = specification.apply
        self._grows = specification.grows
        self._budget = budget
        self._calls = [(one.op, one.args, one.result) for one in self.known]
        self._unknown_calls = [(one.op, one.args) for one in self.unknown]
        self._blind = specification.overwriters
        self._twins = _twins(self._unknown_calls)
        self._pins = Pins(self.known, self.unknown, specification)
        self._changers: list[int] = []
        self._overwriters: dict[S | Unnamed, list[int]] = {}
        for u, one in enumerate(self.unknown):
            if one.op in self._blind:
                self._overwriters.setdefault(self._pins.makes[~u], []).append(u)
            else:
                self._changers.append(u)
        self._lay_out()

    def _lay_out(self) -> None:
        """List calls and returns by time, doubly linked behind a head at 0."""
        events = [(one.start_ns, 0, i) for i, one in enumerate(self.known)]
        events += [(one.end_ns, 1, i) for i, one in enumerate(self.known)]
        events.sort()  # at one moment calls come first: such operations overlap
        self._time = [0, *(at for at, _, _ in events)]
        self._what = [0, *(~i if returns else i for _, returns, i in events)]
        self._call = [0] * len(self.known)
        self._return = [0] * len(self.known)
        for at, (_, returns, i) in enumerate(events, 1):
            (self._return if returns else self._call)[i] = at
        # an unknown operation may be taken when the first return that is left is not before this
        starts = [(one.start_ns, 0, -1) for one in self.unknown]
        self._since = [bisect.bisect_left(events, start) + 1 for start in starts]

    def orders(self, state: S, unknowns: int = 0) -> Iterator[tuple[S, int]]:
        """Yield the end of every order that differs from others, until the budget is spent.

        Args:
            state: the state before all operations.
            unknowns: which of the unknown operations have happened before; bit u for the u-th.

        Yields:
            The state behind all known operations, and which unknown ones have happened by then;
            further ones may follow.
        """
        count = len(self._what)
        self._next = [*range(1, count), 0]
        self._previous = [count - 1, *range(count - 1)]
        self._pins.begin(unknowns)
        here = _Place(-1, state, _NOTHING, 0, 0, unknowns)
        if not self.known:
            yield state, unknowns
        if not self.known or self._pins.unmade(state):
            return
        seen: set[object] = set()
        here.choices = self._choices(here)
        way = [here]
        while way:
            step = self._step(way[-1], seen)
            if step is None:
                taken = way.pop().taken
                if way:
                    self._put_back(taken)
                continue
            self.states += 1
            if self._budget.spent(self.states):
                self.gave_up = True
                return
            if self._next[0]:
                step.choices = self._choices(step)
                way.append(step)
            else:
                yield step.state, step.unknowns
                self._put_back(step.taken)

    def _step(self, here: _Place[S], seen: set[object]) -> _Place[S] | None:
        """Take the next choice that leads to a place not seen before; None if there is none."""
        for taken, state in here.choices:
            if taken < 0:
                self._pins.take(taken)
                unknowns = here.unknowns | 1 << ~taken
                step = _Place(taken, state, here.state, here.first, here.window, unknowns)
            else:
                self._take(taken)
                window = here.window | 1 << (taken - here.first)
                first = self._what[self._next[0]] if self._next[0] else len(self.known)
                window >>= first - here.first
                step = _Place(taken, state, _NOTHING, first, window, here.unknowns)
            memory = step.memory
            if memory not in seen:
                seen.add(memory)
                return step
            self._put_back(taken)
        return None

    def _choices(self, here: _Place[S]) -> Iterator[tuple[int, S]]:
        """The operations that may come next, with the state behind each, the best ones first.

        The operation that returns first is the most urgent one. The best choices take it, or make
        it possible. Unknown operations are tried only when there is nothing better.
        """
        found: list[tuple[int, S]] = []
        event = self._next[0]
        while (i := self._what[event]) >= 0:
            op, args, result = self._calls[i]
            new, told = self._apply(here.state, op, args)
            if told == result:
                if self._pins.keeps(i):
                    yield i, new
                    return
                found.append((i, new))
            elif self._out_of_reach(here.state, i):
                return
            event = self._next[event]
        self.stuck_ns = max(self.stuck_ns, self._time[event])
        found = [one for one in found if self._worth(here, *one)]
        found.sort(key=lambda one: self._return[one[0]])
        good = [self._presses_less(~i, *one) for one in found]
        yield from compress(found, good)
        if self.unknown:
            late = list(self._unknown_choices(here, event))
            late.sort(key=lambda one: not self._presses_less(~i, *one))
            yield from late
        yield from (one for one, is_good in zip(found, good, strict=True) if not is_good)

    def _out_of_reach(self, state: S, i: int) -> bool:
        """Whether the only state in which a known operation can happen cannot come any more."""
        needed = self._pins.needs[i]
        if isinstance(needed, Unnamed) or not self._pins.grows:
            return False
        return not self._grows(state, needed)

    def _worth(self, here: _Place[S], taken: int, new: S) -> bool:
        """Whether taking a known operation can still lead to an order."""
        if new != here.state and self._pins.lost(here.state, taken):
            return False
        if here.without is _NOTHING:
            return True
        op, args, result = self._calls[taken]
        return self._apply(here.without, op, args) != (new, result)

    def _presses_less(self, pressing: int, taken: int, new: S) -> bool:
        if taken == pressing:
            return True
        op, args, result = self._calls[pressing]
        return self._apply(new, op, args)[1] == result

    def _unknown_choices(self, here: _Place[S], event: int) -> Iterator[tuple[int, S]]:
        """The unknown operations that had begun before an event, and make a difference here."""
        for u in self._differing(here, event):
            op, args = self._unknown_calls[u]
            new, _ = self._apply(here.state, op, args)
            if new == here.state:
                continue
            useful = here.without is _NOTHING or self._apply(here.without, op, args)[0] != new
            if useful and not self._pins.lost(here.state, ~u):
                yield ~u, new

    def _differing(self, here: _Place[S], event: int) -> list[int]:
        """The unknown operations that may be taken, without most of those that change nothing."""
        changers = self._open(self._changers, here, event)
        if here.without is not _NOTHING:
            return changers  # one that overwrites would make what was taken last useless
        wanted = None if changers else self._wanted(here.state, event)
        if wanted is None:
            return self._open(range(len(self.unknown)), here, event)
        found = [u for state in wanted for u in self._overwriters.get(state, ())]
        return self._open(sorted(found), here, event)

    def _open(self, which: Iterable[int], here: _Place[S], event: int) -> list[int]:
        """Those of some unknown operations that may be taken."""
        taken, twins = here.unknowns, self._twins
        return [
            u
            for u in which
            if self._since[u] <= event
            and not taken >> u & 1
            and (twins[u] < 0 or taken >> twins[u] & 1)
        ]

    def _wanted(self, state: S, event: int) -> set[S] | None:
        """The states in which something may come next that can't come now; None if it's many."""
        wanted: set[S] = set()
        at = self._next[0]
        while at != event:
            i = self._what[at]
            op, args, result = self._calls[i]
            needed = self._pins.needs[i]
            if not isinstance(needed, Unnamed):
                wanted.add(needed)
            elif op not in self._blind or self._apply(state, op, args)[1] != result:
                return None
            at = self._next[at]
        return wanted

    def _take(self, i: int) -> None:
        """Take a known operation out of the list of those that are left."""
        self._pins.take(i)
        following, previous = self._next, self._previous
        for event in (self._call[i], self._return[i]):
            before, behind = previous[event], following[event]
            following[before] = behind
            previous[behind] = before

    def _put_back(self, taken: int) -> None:
        """Undo the taking of an operation; those that were taken later are back already."""
        self._pins.put_back(taken)
        if taken < 0:
            return
        following, previous = self._next, self._previous
        for event in (self._return[taken], self._call[taken]):
            following[previous[event]] = event
            previous[following[event]] = event


def _twins(calls: Sequence[tuple[str, tuple[Value, ...]]]) -> list[int]:
    """For each operation the one before it that is the same; -1 if there is none."""
    last: dict[tuple[str, tuple[Value, ...]], int] = {}
    found: list[int] = []
    for u, call in enumerate(calls):
        found.append(last.get(call, -1))
        last[call] = u
    return found
