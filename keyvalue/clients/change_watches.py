"""QUORATE.WATCH: the watches of one connection, whose changes are pushed to its client.

Not the keys of WATCH, which are for EXEC (:mod:`.watching`). The pushes themselves are made in
:mod:`..port.watch_pushes`.
"""

from typing import Protocol

__all__ = ["ClientWatches", "RunningWatch"]


class RunningWatch(Protocol):
    """A watch, as its connection sees it."""

    def end(self) -> None:
        """End it: nothing more is pushed."""
        ...

    def resume(self) -> None:
        """Go on: its client has read what was sent."""
        ...

    def check_again(self) -> None:
        """End it if its user may not watch any more."""
        ...


class ClientWatches:
    """The watches of one connection, by their ids. An id is never used twice."""

    __slots__ = ("_last", "_running")

    def __init__(self) -> None:
        self._running: dict[int, RunningWatch] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._running)

    def next_id(self) -> int:
        """Return a new id."""
        self._last += 1
        return self._last

    def add(self, watch_id: int, watch: RunningWatch) -> None:
        """Add a watch."""
        self._running[watch_id] = watch

    def remove(self, watch_id: int) -> None:
        """Remove a watch that has ended, if it is still here."""
        self._running.pop(watch_id, None)

    def end(self, watch_id: int) -> bool:
        """End a watch; return whether there was one with this id."""
        watch = self._running.pop(watch_id, None)
        if watch is not None:
            watch.end()
        return watch is not None

    def end_all(self) -> None:
        """End all: the connection closes, or begins anew."""
        for watch_id in [*self._running]:
            self.end(watch_id)

    def resume(self) -> None:
        """See `RunningWatch`."""
        for watch in self._running.values():
            watch.resume()

    def check_again(self) -> None:
        """See `RunningWatch`."""
        for watch in self._running.values():
            watch.check_again()
