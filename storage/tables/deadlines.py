"""Which keys expire, and when. All deadlines are in memory; a flush writes those that have changed.

A dictionary has the truth, a heap finds the next deadline. A heap entry is stale once its key has
another deadline, and is then skipped. When most of the heap is stale, a new heap is begun. Entries
that are not stale move there, a few with every change: a million at once would take half a second.
Until all have moved, the next deadline may be in either heap. For the same reason `first` skips no
more than a thousand stale entries at once, and each change removes some of the first ones.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SMALL_HEAP: Final = 64  # below this a heap of stale entries does no harm
_DISPOSE_KEYS: Final = 512
_MOVED_ENTRIES: Final = 4  # per change; with 1 the old heap could outlast the next one
_DROPPED_ENTRIES: Final = 2  # stale first ones per change; each change makes one stale at most
_STALE_AT_ONCE: Final = 1000

_Entry: TypeAlias = tuple[int, bytes]


class Deadlines:
    """Deadlines in log time, milliseconds.

    Args:
        by_key: the first ones.
        tracked: `take_changes` will be called now and then; else changes are not kept.

    Attributes:
        by_key: the deadline of every key that has one.
    """

    def __init__(self, by_key: dict[bytes, int], *, tracked: bool = True) -> None:
        self.by_key = by_key
        self._heap = [(deadline, key) for key, deadline in by_key.items()]
        heapq.heapify(self._heap)
        self._old_heap: list[_Entry] = []
        self._tracked = tracked
        self._changes: dict[bytes, int] = {}
        self._parked: list[_Entry] = []  # due, and held back
        self._counted_for: int = -1
        self._due = 0

    def set(self, key: bytes, deadline: int) -> None:
        """Give a key a deadline; 0 removes it."""
        old = self.by_key.get(key, 0)
        if old == deadline:
            return
        # Keep the last count right, so that `count_due` need not count again for the same time.
        self._due += (0 < deadline <= self._counted_for) - (0 < old <= self._counted_for)
        if self._tracked:
            self._changes[key] = deadline
        if deadline:
            self.by_key[key] = deadline
            heapq.heappush(self._heap, (deadline, key))
        else:
            del self.by_key[key]
        if self._old_heap:
            self._move()
        elif len(self._heap) > 2 * len(self.by_key) + _SMALL_HEAP:
            self._old_heap, self._heap = self._heap, []
        # Keys that are renewed again and again leave their stale entries at the front. Here a few
        # go at a time; else all of them would be skipped at once by `due`.
        self._skip(_DROPPED_ENTRIES)

    def _move(self) -> None:
        """Move some entries of the old heap; what is left of it is a heap still."""
        for _ in range(min(_MOVED_ENTRIES, len(self._old_heap))):
            entry = self._old_heap.pop()
            if self.by_key.get(entry[1]) == entry[0]:
                heapq.heappush(self._heap, entry)

    def dispose(self) -> Iterator[None]:
        """Free the memory step by step: all at once would stop the event loop."""
        for held in (self._changes, self.by_key):
            while held:
                for _ in range(min(_DISPOSE_KEYS, len(held))):
                    held.popitem()
                yield
        for heap in (self._heap, self._old_heap, self._parked):
            while heap:
                del heap[-_DISPOSE_KEYS:]
                yield

    def first(self) -> int | None:
        """Return the next deadline, None without any; behind many stale entries an earlier time."""
        if not self.by_key:
            return None
        self._skip(_STALE_AT_ONCE)
        heap = self._first_heap()
        return heap[0][0] if heap else None

    def _skip(self, limit: int) -> None:
        """Remove up to `limit` stale entries from the front."""
        for _ in range(limit):
            heap = self._first_heap()
            if not heap or self.by_key.get(heap[0][1]) == heap[0][0]:
                return
            heapq.heappop(heap)

    def _first_heap(self) -> list[_Entry]:
        """Return the heap that has the first entry."""
        new, old = self._heap, self._old_heap
        return old if old and (not new or old[0] < new[0]) else new

    def due(
        self, now: int, limit: int, holds: Callable[[bytes], bool] | None = None
    ) -> list[bytes]:
        """Return up to `limit` keys whose deadline is `now` or earlier, the earliest first.

        Keys of one deadline are in the order of their bytes. A key is returned once per deadline,
        so delete it.

        Args:
            now: log time.
            limit: most keys to return.
            holds: whether a key must stay; such keys do not count, and wait for `unpark`.
        """
        keys: dict[bytes, None] = {}  # the heap may hold a key twice
        # Stale entries do not count. A member that has restarted has none of them, and still has to
        # return the same keys.
        while len(keys) < limit:
            heap = self._first_heap()
            if not heap or heap[0][0] > now:
                break
            deadline, key = heapq.heappop(heap)
            if self.by_key.get(key) == deadline:
                # Not counted: a member that has restarted finds them all again, and still has to
                # return the same others.
                if holds is not None and holds(key):
                    self._parked.append((deadline, key))
                else:
                    keys[key] = None
        return list(keys)

    def unpark(self) -> None:
        """Let the keys that were held back be due again."""
        parked, self._parked = self._parked, []
        for entry in parked:
            if self.by_key.get(entry[1]) == entry[0]:
                heapq.heappush(self._heap, entry)

    def count_due(self, now: int) -> int:
        """Return how many keys have a deadline of `now` or earlier; computed once per `now`."""
        deadline = self.first()
        if not self._parked and (deadline is None or deadline > now):
            return 0
        if now != self._counted_for:
            self._due = sum(deadline <= now for deadline in self.by_key.values())
            self._counted_for = now
        return self._due

    def take_changes(self) -> dict[bytes, int]:
        """Return the deadlines that have changed since the last call; 0 for removed ones."""
        changes, self._changes = self._changes, {}
        return changes
