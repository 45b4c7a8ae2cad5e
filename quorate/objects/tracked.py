"""Containers of a replicated state: they check what is put in, and can undo a failed call.

The problem
    A state machine in memory must be able to save its state at any moment, and each member must
    hold the same. Plain containers break that late: a value that has no bytes, a cycle, or a list
    that is in two places at once is found by the next snapshot, on another member, after the call
    has been answered. And a method that fails half-way leaves half of its changes.

What we do
    Each change passes through a method here. It first takes a copy of the new value, by way of its
    bytes, so that the state is a tree of checked values that nobody else holds. Then it notes how
    to undo the change. Nothing may be changed outside of a call that is being applied.

What we do not do
    The order of a dict may differ after an undone deletion, in the same way on all members.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence
from typing import Any, Final, SupportsIndex, TypeVar, cast

__all__ = ["Take", "TrackedDict", "TrackedList", "UndoLog"]

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")
T = TypeVar("T")

Take = Callable[[Any], Any]
"""Returns a checked copy of a value, as the state may hold it."""

_MISSING: Final = object()
_DICT: Final[Any] = dict
"""Its own methods, without ours."""


class UndoLog:
    """The changes of the call that is being applied, and how to undo them.

    The state may be changed between `begin` and `end`, by the thread that has begun.
    """

    def __init__(self) -> None:
        self._thread = 0
        self._steps: list[Callable[[], object]] = []

    @property
    def is_open(self) -> bool:
        """Whether this thread applies a call now."""
        return self._thread == threading.get_ident()

    def begin(self) -> None:
        """Let this thread change the state."""
        self._thread = threading.get_ident()

    def end(self) -> None:
        """Let nobody change the state, and keep what was changed."""
        self._thread = 0
        self._steps.clear()

    def roll_back(self) -> None:
        """Undo all changes since `begin`; more may follow."""
        while self._steps:
            self._steps.pop()()

    def check(self) -> None:
        """Check that the state may be changed.

        Raises:
            TypeError: no call is being applied by this thread.
        """
        if self._thread != threading.get_ident():
            raise TypeError(
                "a replicated state was changed outside of a replicated method, so the other "
                "members would not change theirs: give the method @replicated, or change a copy"
            )

    def note(self, step: Callable[[], object]) -> None:
        """Note how to undo the change that follows."""
        self._steps.append(step)


class TrackedDict(dict[K, V]):
    """A dict of the state; its keys and values are checked copies."""

    def __init__(self, undo: UndoLog, key: Take, value: Take, items: Mapping[K, V]) -> None:
        self._undo, self._key, self._value = undo, key, value
        super().__init__(items)  # which are checked copies already

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def __setitem__(self, key: K, value: V) -> None:
        self._undo.check()
        key, value = self._key(key), self._value(value)
        old: Any = self.get(key, cast("Any", _MISSING))
        if old is _MISSING:
            self._undo.note(lambda: _DICT.__delitem__(self, key))
        else:
            self._undo.note(lambda: _DICT.__setitem__(self, key, old))
        super().__setitem__(key, value)

    def __delitem__(self, key: K) -> None:
        self._undo.check()
        old = self[key]
        self._undo.note(lambda: _DICT.__setitem__(self, key, old))
        super().__delitem__(key)

    def pop(self, key: K, *default: Any) -> Any:
        """Remove a key and return its value, or the default."""
        self._undo.check()
        if key not in self and default:
            return default[0]
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[K, V]:
        """Remove and return the newest item."""
        self._undo.check()
        key, value = super().popitem()
        self._undo.note(lambda: _DICT.__setitem__(self, key, value))
        return key, value

    def clear(self) -> None:
        """Remove all items."""
        self._undo.check()
        before = dict(self)
        self._undo.note(lambda: _DICT.update(self, before))
        super().clear()

    def setdefault(self, key: K, default: Any = None) -> Any:
        """Return the value of a key, which is set to the default if it is missing."""
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *others: Any, **more: Any) -> None:
        """Set items, as `dict.update` does."""
        self._undo.check()
        for key, value in dict(*others, **more).items():
            self[cast("Any", key)] = value

    def __ior__(self, other: Any) -> TrackedDict[K, V]:  # type: ignore[override, misc]
        self.update(other)
        return self


class TrackedList(MutableSequence[T]):
    """A list of the state; its items are checked copies.

    It is no `list`: `heapq` and other C code would change that without its methods.
    """

    def __init__(self, undo: UndoLog, item: Take, items: Iterable[T]) -> None:
        self._undo, self._item = undo, item
        self._items: list[T] = list(items)  # which are checked copies already

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (self.copy(),)

    def __repr__(self) -> str:
        return repr(self._items)

    def __eq__(self, other: object) -> bool:
        return self._items == (
            list(cast("Any", other)) if isinstance(other, TrackedList) else other
        )

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __getitem__(self, place: Any) -> Any:
        return cast("Any", self._items)[place]

    def __add__(self, other: Iterable[T]) -> list[T]:
        return [*self._items, *other]

    def __radd__(self, other: Iterable[T]) -> list[T]:
        return [*other, *self._items]

    def copy(self) -> list[T]:
        """Return a plain copy."""
        return self._items.copy()

    def __setitem__(self, place: Any, value: Any) -> None:
        self._undo.check()
        items = self._items
        if isinstance(place, slice):
            taken = [self._item(each) for each in value]
            self._note_all()
            items[place] = taken
            return
        at = range(len(items))[cast("SupportsIndex", place)]
        old, one = items[at], self._item(value)
        self._undo.note(lambda: items.__setitem__(at, old))
        items[at] = one

    def __delitem__(self, place: Any) -> None:
        self._undo.check()
        items = self._items
        if isinstance(place, slice):
            self._note_all()
            del items[place]
            return
        at = range(len(items))[cast("SupportsIndex", place)]
        old = items.pop(at)
        self._undo.note(lambda: items.insert(at, old))

    def insert(self, index: int, value: T) -> None:
        """Add an item before a place."""
        self._undo.check()
        items, taken = self._items, self._item(value)
        at = range(len(items) + 1)[max(index, -len(items)) if index < 0 else min(index, len(items))]
        at -= index < 0
        self._undo.note(lambda: items.pop(at))
        items.insert(at, taken)

    def clear(self) -> None:
        """Remove all items."""
        del self[:]

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        """Sort in place."""
        self[:] = sorted(cast("Any", self._items), key=key, reverse=reverse)

    def __imul__(self, times: SupportsIndex) -> TrackedList[T]:
        self[:] = self._items * times
        return self

    def _note_all(self) -> None:
        items, before = self._items, self._items.copy()
        self._undo.note(lambda: items.__setitem__(slice(None), before))
