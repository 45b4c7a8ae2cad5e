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
    C code that changes a list without its methods (`heapq`) is not seen. `TrackedList.verify` finds
    it for a list whose length has changed. The order of a dict may differ after an undone deletion,
    in the same way on all members.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
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
_LIST: Final[Any] = list
"""Their own methods, without ours."""


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
        super().__init__({key(name): value(item) for name, item in items.items()})

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


class TrackedList(list[T]):
    """A list of the state; its items are checked copies."""

    def __init__(self, undo: UndoLog, item: Take, items: Iterable[T]) -> None:
        self._undo, self._item = undo, item
        super().__init__(item(each) for each in items)
        self._length = len(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    def verify(self) -> None:
        """Check that the list was changed by its methods alone.

        Raises:
            TypeError: its length says otherwise.
        """
        if len(self) != self._length:
            raise TypeError(
                "a replicated list was changed by other means than its methods, such as heapq: "
                "use bisect.insort and pop(0), or a dict"
            )

    def _changing(self) -> None:
        """Check that it may be changed, and note its content for the undo."""
        self._undo.check()
        self.verify()
        before = list(self)

        def put_back() -> None:
            _LIST.__setitem__(self, slice(None), before)
            self._length = len(before)

        self._undo.note(put_back)

    def append(self, item: T) -> None:
        """Add an item at the end."""
        self.insert(len(self), item)

    def insert(self, place: SupportsIndex, item: T) -> None:
        """Add an item before a place."""
        self._undo.check()
        self.verify()
        taken = self._item(item)
        at = min(max(int(place) + (len(self) if int(place) < 0 else 0), 0), len(self))
        self._undo.note(lambda: self._remove(at))
        super().insert(at, taken)
        self._length += 1

    def pop(self, place: SupportsIndex = -1) -> T:
        """Remove and return the item at a place."""
        self._undo.check()
        self.verify()
        at = range(len(self))[place]
        item = super().pop(at)
        self._length -= 1
        self._undo.note(lambda: self._put(at, item))
        return item

    def _remove(self, at: int) -> None:
        super().__delitem__(at)
        self._length -= 1

    def _put(self, at: int, item: T) -> None:
        super().insert(at, item)
        self._length += 1

    def __setitem__(self, place: Any, value: Any) -> None:
        if isinstance(place, slice):
            taken = [self._item(each) for each in value]
            self._changing()
            super().__setitem__(cast("Any", place), taken)
            self._length = len(self)
            return
        self._undo.check()
        self.verify()
        at = range(len(self))[cast("SupportsIndex", place)]
        old, taken_one = self[at], self._item(value)
        self._undo.note(lambda: _LIST.__setitem__(self, at, old))
        super().__setitem__(at, taken_one)

    def __delitem__(self, place: Any) -> None:
        if isinstance(place, slice):
            self._changing()
            super().__delitem__(cast("Any", place))
            self._length = len(self)
        else:
            self.pop(place)

    def extend(self, items: Iterable[T]) -> None:
        """Add items at the end."""
        for item in list(items):
            self.append(item)

    def __iadd__(self, items: Iterable[T]) -> TrackedList[T]:  # type: ignore[override, misc]
        self.extend(items)
        return self

    def __imul__(self, times: SupportsIndex) -> TrackedList[T]:  # type: ignore[override, misc]
        self[:] = list(self) * times
        return self

    def remove(self, item: T) -> None:
        """Remove the first item that equals one."""
        self.pop(self.index(item))

    def clear(self) -> None:
        """Remove all items."""
        del self[:]

    def reverse(self) -> None:
        """Reverse the order."""
        self._changing()
        super().reverse()

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        """Sort in place."""
        self[:] = sorted(cast("Any", self), key=key, reverse=reverse)
