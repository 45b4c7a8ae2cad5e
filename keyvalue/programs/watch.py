"""A watch: the committed changes of keys, in order, as an async iterator.

:class:`Watch` is what programs see, on a member and over a connection. :class:`LocalWatch` reads
the changes of the member in this process.
"""

from abc import ABC, abstractmethod
from collections import deque
from types import TracebackType
from typing import Protocol, Self

from ...errors import WatchLostError
from ..state.changes import Change, RecentChanges

__all__ = ["LocalWatch", "LocalWatches", "Watch", "WatchSource"]


class Watch(ABC):
    """The committed changes of the keys that begin with a prefix.

    Usage::

        async with kv.watch("app/") as changes:
            async for change in changes:
                print(change.position, change.kind, change.key, change.value)

    Without ``async with`` it begins with the first change that is asked for.

    Attributes:
        prefix: of the keys.
        position: every change up to here was returned. Before the first one it is where the watch
            began; a later read sees everything up to there.
    """

    def __init__(self, prefix: bytes, position: int) -> None:
        self.prefix = prefix
        self.position = position
        self._next: deque[Change] = deque()
        self._begun = False

    async def __aenter__(self) -> Self:
        await self._ensure_begun()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        """Return the next change; wait for it.

        Raises:
            WatchLostError: it can't go on without a gap.
        """
        await self._ensure_begun()
        while not self._next:
            self._next.extend(await self._fetch())
        change = self._next.popleft()
        if not change.more:
            self.position = change.position
        return change

    async def entries(self) -> list[Change]:
        """Return all changes of the next log entries, as many as there are; wait for the first.

        Raises:
            WatchLostError: it can't go on without a gap.
        """
        await self._ensure_begun()
        while not self._next:
            self._next.extend(await self._fetch())
        changes = [*self._next]
        self._next.clear()
        self.position = changes[-1].position
        return changes

    async def _ensure_begun(self) -> None:
        if not self._begun:
            await self._begin()
            self._begun = True

    @abstractmethod
    async def _begin(self) -> None:
        """Begin after `position`; if that is -1, find where we are and set it."""

    @abstractmethod
    async def _fetch(self) -> list[Change]:
        """Return further changes; wait for them. An empty list: ask again."""

    @abstractmethod
    async def aclose(self) -> None:
        """Give back what it holds. It returns nothing any more."""


class WatchSource(Protocol):
    """Makes watches."""

    def watch(self, prefix: bytes, after: int) -> Watch:
        """Return a watch of the changes after a position; -1 for the present."""
        ...


class LocalWatch(Watch):
    """A watch of the member in this process."""

    def __init__(self, recent: RecentChanges, prefix: bytes, after: int) -> None:
        super().__init__(prefix, after)
        self._recent = recent
        self._fetched = after

    async def _begin(self) -> None:
        if self.position < 0:
            self.position = self._fetched = self._recent.position

    async def _fetch(self) -> list[Change]:
        recent = self._recent
        while True:
            if self._fetched < recent.start:
                raise WatchLostError(
                    f"after = {self._fetched}: the changes after position {recent.start} are kept",
                    after=self._fetched,
                    oldest=recent.start,
                )
            found = recent.after(self._fetched, self.prefix)
            self._fetched = max(self._fetched, recent.position)
            if found:
                return found
            self.position = self._fetched
            await recent.moved.wait()

    async def aclose(self) -> None:
        """Return nothing any more."""
        self._next.clear()


class LocalWatches:
    """Makes watches of the member in this process."""

    def __init__(self, recent: RecentChanges) -> None:
        self._recent = recent

    def watch(self, prefix: bytes, after: int) -> LocalWatch:
        """Return a watch; see `WatchSource`."""
        return LocalWatch(self._recent, prefix, after)
