"""Sets and deques of a replicated state; see :mod:`..objects.tracked`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableSet
from typing import TYPE_CHECKING, Any, TypeVar

from ..objects.tracked import Take, TrackedList

if TYPE_CHECKING:
    from ..objects.tracked import UndoLog

__all__ = ["TrackedDeque", "TrackedSet"]

T = TypeVar("T")


class TrackedSet(MutableSet[T]):
    """A set of the state, in the order of its items' bytes: the same on all members.

    Args:
        undo: notes the changes.
        take: returns a checked copy of an item.
        order: returns the bytes of an item.
        items: at first.
    """

    def __init__(
        self, undo: UndoLog, take: Take, order: Callable[[T], bytes], items: Iterable[T]
    ) -> None:
        self._undo, self._take, self._order = undo, take, order
        self._items: dict[T, bytes] = {item: order(item) for item in items}

    @classmethod
    def _from_iterable(cls, it: Iterable[Any]) -> set[Any]:
        return set(it)  # what `a | b` and so on return

    def __reduce__(self) -> tuple[Any, ...]:
        return set, (list(self._items),)

    def __repr__(self) -> str:
        return repr(set(self._items))

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(sorted(self._items, key=self._items.__getitem__))

    def add(self, value: T) -> None:
        """Add an item."""
        self._undo.check()
        taken, items = self._take(value), self._items
        if taken not in items:
            items[taken] = self._order(taken)
            self._undo.note(lambda: items.pop(taken))

    def discard(self, value: T) -> None:
        """Remove an item, if there is one."""
        self._undo.check()
        items = self._items
        if value in items:
            order = items.pop(value)
            self._undo.note(lambda: items.__setitem__(value, order))

    def pop(self) -> T:
        """Remove and return the first item in the order of the bytes."""
        if not self._items:
            raise KeyError("pop from an empty set")
        first = min(self._items, key=self._items.__getitem__)
        self.discard(first)
        return first

    def copy(self) -> set[T]:
        """Return a plain copy."""
        return set(self._items)

    def update(self, *others: Iterable[T]) -> None:
        """Add items."""
        for other in others:
            for item in list(other):
                self.add(item)

    def difference_update(self, *others: Iterable[T]) -> None:
        """Remove items."""
        for other in others:
            for item in list(other):
                self.discard(item)

    def intersection_update(self, *others: Iterable[T]) -> None:
        """Remove the items that are not in all others."""
        for other in others:
            kept = set(other)
            for item in [item for item in self._items if item not in kept]:
                self.discard(item)

    def union(self, *others: Iterable[T]) -> set[T]:
        """Return a plain set of these items and others."""
        return set(self._items).union(*others)

    def issubset(self, other: Iterable[T]) -> bool:
        """Return whether another one has all items."""
        return set(self._items).issubset(other)

    def issuperset(self, other: Iterable[T]) -> bool:
        """Return whether all items of another one are here."""
        return set(self._items).issuperset(other)


class TrackedDeque(TrackedList[T]):
    """A deque of the state.

    Args:
        undo: notes the changes.
        take: returns a checked copy of an item.
        items: at first.
        maxlen: how many it holds; None for any number.

    Attributes:
        maxlen: see above.
    """

    def __init__(
        self, undo: UndoLog, take: Take, items: Iterable[T], maxlen: int | None = None
    ) -> None:
        super().__init__(undo, take, items)
        self.maxlen = maxlen

    def append(self, value: T) -> None:
        """Add an item at the end; the first one falls out of a full deque."""
        super().append(value)
        if self.maxlen is not None and len(self) > self.maxlen:
            del self[0]

    def appendleft(self, value: T) -> None:
        """Add an item at the beginning; the last one falls out of a full deque."""
        self.insert(0, value)
        if self.maxlen is not None and len(self) > self.maxlen:
            del self[-1]

    def popleft(self) -> T:
        """Remove and return the first item."""
        return self.pop(0)

    def extendleft(self, items: Iterable[T]) -> None:
        """Add items at the beginning, one after the other."""
        for item in list(items):
            self.appendleft(item)

    def rotate(self, steps: int = 1) -> None:
        """Move items from the end to the beginning."""
        if len(self):
            at = -steps % len(self)
            self[:] = [*self[at:], *self[:at]]
