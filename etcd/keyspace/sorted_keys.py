"""A dictionary in the order of its keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from sortedcontainers import SortedDict  # pyright: ignore[reportMissingTypeStubs]

if TYPE_CHECKING:
    from collections.abc import Iterator, KeysView

__all__ = ["SortedKeys", "sorted_keys"]

V = TypeVar("V")


class SortedKeys(Protocol[V]):
    """The part of `SortedDict` that is used here, with types."""

    def __len__(self) -> int: ...
    def __contains__(self, key: bytes, /) -> bool: ...
    def __getitem__(self, key: bytes, /) -> V: ...
    def __setitem__(self, key: bytes, value: V, /) -> None: ...
    def __delitem__(self, key: bytes, /) -> None: ...
    def get(self, key: bytes, /) -> V | None:
        """Return the value of a key, or None."""
        ...

    def pop(self, key: bytes, default: None, /) -> V | None:
        """Remove a key, and return its value; None if it is not there."""
        ...

    def keys(self) -> KeysView[bytes]:
        """Return all keys in order."""
        ...

    def irange(
        self, minimum: bytes, maximum: bytes | None, inclusive: tuple[bool, bool]
    ) -> Iterator[bytes]:
        """Yield the keys between two; nothing may change during that."""
        ...

    def bisect_left(self, key: bytes, /) -> int:
        """Return how many keys are less than `key`."""
        ...


def sorted_keys(values: dict[bytes, V]) -> SortedKeys[V]:
    """Return a dictionary in the order of its keys."""
    return cast("SortedKeys[V]", SortedDict(values))
