"""Replicated objects for the usual needs.

Each has methods to call with `await`, and `local`: what this member has applied, to read only.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast, overload

from ..errors import ConfigurationError
from .base import Replicated
from .methods import query, replicated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Counter", "ReplicatedDict", "ReplicatedQueue", "ReplicatedSet", "Scalar"]

Scalar = str | int | float | bool | None
"""What keys, values and items are if no type is given."""

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

_LARGEST: Final = 2**63 - 1


class Counter(Replicated):
    """A number that everybody adds to.

    Args:
        name: see :class:`Replicated`.
    """

    value: int

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.value = 0

    @property
    def local(self) -> int:
        """The number, as far as this member has applied the log."""
        return self.value

    @replicated
    def add(self, by: int = 1) -> int:
        """Add to the number; return the sum. Beyond 64 bits: CallError, and nothing is done."""
        self.value = _within(self.value + by)
        return self.value

    @replicated
    def set(self, to: int) -> int:
        """Set the number; return what it was."""
        before, self.value = self.value, _within(to)
        return before

    @query
    def get(self) -> int:
        """Return the number."""
        return self.value


def _within(number: int) -> int:
    if not -_LARGEST <= number <= _LARGEST:
        raise OverflowError("a counter has 64 bits")
    return number


class ReplicatedDict(Replicated, Generic[K, V]):
    """A dict, in the order of insertion.

    Args:
        name: see :class:`Replicated`.
        key: type of the keys; any hashable one that a state may have.
        value: type of the values.

    Raises:
        ConfigurationError: a state can't have one of the types.
    """

    items: dict[K, V]

    @overload
    def __init__(self: ReplicatedDict[str, Scalar], name: str) -> None: ...
    @overload
    def __init__(self, name: str, key: type[K], value: type[V]) -> None: ...
    def __init__(self, name: str, key: Any = str, value: Any = Scalar) -> None:
        super().__init__(name, {"K": key, "V": value})
        self.items = {}

    @property
    def local(self) -> Mapping[K, V]:
        """The dict, as far as this member has applied the log; it changes with every call."""
        return MappingProxyType(self.items)

    @replicated
    def set(self, key: K, value: V) -> None:
        """Set the value of a key."""
        self.items[key] = value

    @replicated
    def set_default(self, key: K, value: V) -> V:
        """Set the value of a key that is missing; return the value that it has now."""
        return self.items.setdefault(key, value)

    @replicated
    def compare_and_set(self, key: K, expected: V | None, new: V | None) -> bool:
        """Set a key that has the expected value; None stands for a missing key, both times."""
        if self.items.get(key) != expected:
            return False
        if new is None:
            self.items.pop(key, None)
        else:
            self.items[key] = new
        return True

    @replicated
    def update(self, items: dict[K, V]) -> None:
        """Set the values of several keys at once."""
        self.items.update(items)

    @replicated
    def pop(self, key: K) -> V | None:
        """Delete a key; return its value, or None if it was missing."""
        return self.items.pop(key, None)

    @replicated
    def clear(self) -> int:
        """Delete all keys; return their number."""
        count = len(self.items)
        self.items.clear()
        return count

    @query
    def get(self, key: K) -> V | None:
        """Return the value of a key; None if it is missing."""
        return self.items.get(key)

    @query
    def all(self) -> dict[K, V]:
        """Return a copy."""
        return dict(self.items)

    @query
    def size(self) -> int:
        """Return the number of keys."""
        return len(self.items)


class ReplicatedSet(Replicated, Generic[T]):
    """A set, in the order in which its members were added.

    Args:
        name: see :class:`Replicated`.
        item: type of its members; any hashable one that a state may have.

    Raises:
        ConfigurationError: a state can't have that type.
    """

    items: dict[T, None]

    @overload
    def __init__(self: ReplicatedSet[Scalar], name: str) -> None: ...
    @overload
    def __init__(self, name: str, item: type[T]) -> None: ...
    def __init__(self, name: str, item: Any = Scalar) -> None:
        super().__init__(name, {"T": item})
        self.items = {}

    @property
    def local(self) -> Mapping[T, None]:
        """The members, as the keys of a mapping, as far as this member has applied the log."""
        return MappingProxyType(self.items)

    @replicated
    def add(self, item: T) -> bool:
        """Add a member; return whether it is new."""
        if item in self.items:
            return False
        self.items[item] = None
        return True

    @replicated
    def discard(self, item: T) -> bool:
        """Remove a member; return whether there was one."""
        if item not in self.items:
            return False
        del self.items[item]
        return True

    @replicated
    def pop(self) -> T:
        """Remove the oldest member and return it; CallError if there is none."""
        item = next(iter(self.items), _NONE)
        if item is _NONE:
            raise KeyError("the set is empty")
        del self.items[cast("T", item)]
        return cast("T", item)

    @query
    def contains(self, item: T) -> bool:
        """Return whether there is such a member."""
        return item in self.items

    @query
    def all(self) -> list[T]:
        """Return the members, the oldest first."""
        return list(self.items)

    @query
    def size(self) -> int:
        """Return the number of members."""
        return len(self.items)


_NONE: Final = object()


class ReplicatedQueue(Replicated, Generic[T]):
    """A queue: what is put in first is taken first, by one caller.

    Args:
        name: see :class:`Replicated`.
        item: type of the items.
        most: how many it holds; 0 for any number. The same on all members.

    Raises:
        ConfigurationError: a state can't have that type, or `most` is negative.
    """

    items: dict[int, T]
    next_number: int
    most: int

    @overload
    def __init__(self: ReplicatedQueue[Scalar], name: str, *, most: int = 0) -> None: ...
    @overload
    def __init__(self, name: str, item: type[T], *, most: int = 0) -> None: ...
    def __init__(self, name: str, item: Any = Scalar, *, most: int = 0) -> None:
        if isinstance(most, bool) or most < 0:
            raise ConfigurationError(f"most = {most!r}: expected a number of items, 0 for any")
        super().__init__(name, {"T": item})
        self.items = {}
        self.next_number = 0
        self.most = most

    @property
    def local(self) -> Sequence[T]:
        """A copy of the items, the oldest first, as far as this member has applied the log."""
        return tuple(self.items.values())

    @replicated
    def put(self, item: T) -> bool:
        """Put an item at the end; return False, and do nothing, if the queue is full."""
        if self.most and len(self.items) >= self.most:
            return False
        self.items[self.next_number] = item
        self.next_number += 1
        return True

    @replicated
    def take(self) -> tuple[T] | None:
        """Take the first item: a tuple of it alone, or None if the queue is empty."""
        for number in self.items:
            return (self.items.pop(number),)
        return None

    async def get(self) -> T:
        """Take the first item; wait while the queue is empty.

        Raises:
            RequestError: see :class:`.methods.BoundCall`.
        """
        while True:
            while not self.items:
                await self.changed()
            # Another caller may be faster.
            if found := await self.take():
                return found[0]

    @query
    def size(self) -> int:
        """Return the number of items."""
        return len(self.items)
