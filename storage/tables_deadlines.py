"""Which keys expire, and when: all of them in memory, for a flush writes only what has changed.

A dictionary is the truth; a heap finds the next one. An entry of the heap whose key has another
deadline by now is passed over, and the heap is made anew when most of it is such waste.
"""

from __future__ import annotations

import heapq
from typing import Final

_SMALL_HEAP: Final = 64


class Deadlines:
    """Deadlines in cluster time, milliseconds.

    Attributes:
        by_key: the deadline of every key that has one.
    """

    def __init__(self, by_key: dict[bytes, int]) -> None:
        self.by_key = by_key
        self._heap = [(deadline, key) for key, deadline in by_key.items()]
        heapq.heapify(self._heap)
        self._changes: dict[bytes, int] = {}

    def set(self, key: bytes, deadline: int) -> None:
        """Give a key a deadline; 0 takes it away."""
        if self.by_key.get(key, 0) == deadline:
            return
        self._changes[key] = deadline
        if not deadline:
            del self.by_key[key]
            return
        self.by_key[key] = deadline
        heapq.heappush(self._heap, (deadline, key))
        if len(self._heap) > 2 * len(self.by_key) + _SMALL_HEAP:
            self._heap = [(deadline, key) for key, deadline in self.by_key.items()]
            heapq.heapify(self._heap)

    def clear(self) -> None:
        """Forget all; the keys are gone."""
        self.by_key.clear()
        self._heap.clear()
        self._changes.clear()

    def first(self) -> int | None:
        """Return the next deadline, None without any."""
        heap = self._heap
        while heap and self.by_key.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: int, limit: int) -> list[bytes]:
        """Return up to `limit` keys whose deadline is `now` or earlier, the earliest first.

        They are not returned again, unless they get another deadline: delete them.
        """
        found: dict[bytes, None] = {}  # the heap may hold a key twice
        while len(found) < limit and (deadline := self.first()) is not None and deadline <= now:
            found[heapq.heappop(self._heap)[1]] = None
        return list(found)

    def count_due(self, now: int) -> int:
        """Count the keys whose deadline is `now` or earlier."""
        deadline = self.first()
        if deadline is None or deadline > now:
            return 0
        return sum(deadline <= now for deadline in self.by_key.values())

    def take_changes(self) -> dict[bytes, int]:
        """Return the deadlines that have changed since the last call, 0 for those taken away."""
        changes, self._changes = self._changes, {}
        return changes
