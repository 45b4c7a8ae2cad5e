"""Which watches a change concerns.

The state calls the hub with each revision that it applies, so this runs while a batch is applied.
It looks up the keys, encodes each event once for all watches that want it, and hands the events to
the streams. A stream that can't keep them takes the watch out and reads history later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...node.protocol.signal import Signal
from .ranges import Range, Ranges
from .recent import RecentChanges
from .watch import encode_event

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..keyspace.change import Change
    from ..state.machine import EtcdState
    from .watch import Watch

__all__ = ["WatchHub"]


class WatchHub:
    """The watches that are in step: they have all that is applied.

    Args:
        state: of the keyspace; it is listened to from now on.

    Attributes:
        recent: has the changes of revisions.
        watches: number of watches of all streams, in step or not; the streams count them.
    """

    def __init__(self, state: EtcdState) -> None:
        self.state = state
        # Dictionaries as sets that keep their order.
        self._by_key: dict[bytes, dict[Watch, None]] = {}
        self._by_range: dict[Range, dict[Watch, None]] = {}
        self._ranges = Ranges()
        self._seen = state.revision
        self.watches = 0
        self._loaded = Signal()
        self.recent = RecentChanges(state)
        state.listen(self._applied)

    def add(self, watch: Watch) -> None:
        """Hand a watch the events from now on; it must have the earlier ones."""
        if watch.end == b"":
            self._by_key.setdefault(watch.key, {})[watch] = None
            return
        range_ = watch.key, watch.end
        if range_ not in self._by_range:
            self._by_range[range_] = {}
            self._ranges.add(range_)
        self._by_range[range_][watch] = None

    def remove(self, watch: Watch) -> None:
        """Hand a watch no more events; does nothing if it gets none."""
        if watch.end == b"":
            if watch in (watches := self._by_key.get(watch.key, {})):
                del watches[watch]
                if not watches:
                    del self._by_key[watch.key]
            return
        range_ = watch.key, watch.end
        if watch in (watches := self._by_range.get(range_, {})):
            del watches[watch]
            if not watches:
                del self._by_range[range_]
                self._ranges.remove(range_)

    @property
    def count(self) -> int:
        """Number of watches that are in step."""
        by = (*self._by_key.values(), *self._by_range.values())
        return sum(map(len, by))

    def _applied(self, revision: int, changes: Sequence[Change]) -> None:
        before, self._seen = self._seen, revision
        if not changes:
            # A snapshot was loaded: what is between is in its rows, or compacted.
            for watch in self._all():
                watch.lag(watch, max(watch.next_revision, before + 1))
            self._loaded.notify()
            return
        if not (self._by_key or self._by_range):
            return
        self.recent.add(revision, changes)
        found: dict[Watch, list[bytes]] = {}
        for change in changes:
            events: dict[bool, bytes] = {}  # by whether they have what was before
            for watch in self._watching(change.key):
                if watch.next_revision > revision or not watch.wants(change):
                    continue
                prev = watch.prev_kv
                if prev not in events:
                    events[prev] = self.event(change, prev_kv=prev)
                found.setdefault(watch, []).append(events[prev])
        for watch, taken in found.items():
            watch.take(watch, revision, taken)

    def event(self, change: Change, *, prev_kv: bool) -> bytes:
        """Encode the event for a change, if wanted with what the key was before."""
        return encode_event(change, self.state.previous(change) if prev_kv else None)

    async def readable(self) -> None:
        """Wait until history can be read: not while a snapshot is being loaded."""
        while self.state.halted:
            await self._loaded.wait()

    def _watching(self, key: bytes) -> Iterator[Watch]:
        yield from self._by_key.get(key, ())
        if self._by_range:
            for range_ in self._ranges.containing(key):
                yield from self._by_range[range_]

    def _all(self) -> list[Watch]:
        by = (*self._by_key.values(), *self._by_range.values())
        return [watch for watches in by for watch in watches]
