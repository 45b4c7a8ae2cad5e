"""Ranges of keys: which of them contain a key?

**The naive way** compares the key with each range. A cluster has a thousand watches of prefixes,
and each put would pay for all of them.

**What we do.** The ends of all ranges cut the keys into segments, and each segment has the ranges
that contain it. A key is looked up by bisection. Adding a range touches the segments inside it:
few, since watched prefixes are mostly apart from each other.

**What it costs.** Ranges that overlap each other without end would take memory by the square of
their number. So a range that finds a segment with `MAX_DEPTH` ranges goes to a list, in which each
key is compared with all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MAX_DEPTH", "Range", "Ranges"]

MAX_DEPTH: Final = 64
"""Ranges in one segment. If smaller, nested prefixes are looked up one by one; if larger, a client
can take more memory by overlapping ranges."""

Range: TypeAlias = tuple[bytes, bytes | None]
"""The first key, and the end, which is not in it; None for no end."""


class Ranges:
    """A set of ranges."""

    def __init__(self) -> None:
        # Dictionaries as sets that keep their order. Each segment reaches up to the next border.
        self._borders: list[bytes] = []
        self._segments: dict[bytes, dict[Range, None]] = {}
        self._ends: dict[bytes, int] = {}  # how many ranges begin or end there
        self._deep: dict[Range, None] = {}

    def add(self, added: Range) -> None:
        """Add a range that is not in the set; it must not be empty."""
        begin, end = added
        inside = [self._segment_at(begin), *self._between(begin, end)]
        if any(len(segment) >= MAX_DEPTH for segment in inside):
            self._deep[added] = None
            return
        for border in _borders(added):
            self._ends[border] = self._ends.get(border, 0) + 1
            if border not in self._segments:
                self._segments[border] = dict(self._segment_at(border))
                insort(self._borders, border)
        for segment in self._between(begin, end):
            segment[added] = None

    def remove(self, removed: Range) -> None:
        """Remove a range of the set."""
        if removed in self._deep:
            del self._deep[removed]
            return
        for segment in self._between(*removed):
            del segment[removed]
        for border in _borders(removed):
            self._ends[border] -= 1
            if not self._ends[border]:
                # Nothing begins or ends there, so the segment before has the same ranges.
                del self._ends[border], self._segments[border]
                del self._borders[bisect_left(self._borders, border)]

    def containing(self, key: bytes) -> Iterator[Range]:
        """Yield the ranges that contain a key."""
        yield from self._segment_at(key)
        for each in self._deep:
            if each[0] <= key and (each[1] is None or key < each[1]):
                yield each

    def _segment_at(self, key: bytes) -> dict[Range, None]:
        at = bisect_right(self._borders, key)
        return self._segments[self._borders[at - 1]] if at else {}

    def _between(self, begin: bytes, end: bytes | None) -> list[dict[Range, None]]:
        first = bisect_left(self._borders, begin)
        last = None if end is None else bisect_left(self._borders, end)
        return [self._segments[border] for border in self._borders[first:last]]


def _borders(each: Range) -> tuple[bytes, ...]:
    begin, end = each
    return (begin,) if end is None else (begin, end)
