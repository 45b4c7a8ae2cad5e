"""A watch: the committed changes of keys, in order, as an async iterator.

:class:`Watch` is what programs see, on a member and over a connection. :class:`LocalWatch` reads
the changes of the member in this process.
"""

import logging
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Protocol, Self
from weakref import WeakSet

import trio

from ...errors import RefusedError, WatchLostError
from ...log_events import log_event
from ..protocol import resp
from ..service import KeyValueService
from ..state.changes import Change, RecentChanges, Waiting
from ..watches.replays import Reader, Replays
from ..watches.tenure import Tenure

__all__ = ["BeyondLogError", "LocalWatch", "LocalWatches", "Watch", "WatchSource"]

log = logging.getLogger("quorate.keyvalue")

REST_SECONDS: Final = 60.0
"""A watch that falls behind again so soon after a replay is lost. Shorter: one slow program keeps
its member busy with replays. Longer: programs that are slow now and then lose their watches."""


class Watch(ABC):
    """The committed changes of the keys that begin with a prefix.

    Usage::

        async with kv.watch("app/") as changes:
            async for change in changes:
                print(change.position, change.kind, change.key, change.value)

    Without ``async with`` it begins with the first change that is asked for.

    Attributes:
        prefix: of the keys.
    """

    def __init__(self, prefix: bytes, position: int) -> None:
        self.prefix = prefix
        self._position = position
        self._next: deque[Change] = deque()
        self._begun = False

    @property
    def position(self) -> int:
        """Every change up to here was returned.

        Before the first one it is where the watch began; a later read sees everything up to there.
        """
        return self._position

    @position.setter
    def position(self, value: int) -> None:
        self._position = value

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


class Reads(Protocol):
    """Answers linearizable reads: the member."""

    def query(self, payload: bytes, flags: int = 0) -> Coroutine[Any, Any, bytes]:
        """Answer a query."""
        ...


class BeyondLogError(RefusedError):
    """The log ends before the position that a watch shall begin after: no member has it."""


class LocalWatch(Watch):
    """A watch of the member in this process; made by `LocalWatches`.

    It reads from memory, and sleeps while nothing happens to its keys. If it falls behind what is
    in memory, it goes on with a replay, and then from memory again. If that happens once more
    within `REST_SECONDS`, changes come faster than it is read: then it ends with an error.

    In a partition a watch of one slot ends with a `KeyValueError` behind the last change there, if
    the slot moves to another one. A watch at its `position` goes on there.
    """

    def __init__(self, source: "LocalWatches", prefix: bytes, after: int) -> None:
        super().__init__(prefix, after)
        self._source = source
        self._recent = source.recent
        self._fetched = after
        self._waiting: Waiting | None = None
        self._reader: Reader | None = None
        self._replayed_at: float = -math.inf
        self._again_at = -1  # where the last replay ended that did not come to its end
        self._tenure = source.tenure(prefix)
        self._left_at: int | None = None  # its slot has moved: everything up to here was fetched
        self._closed = False

    @property
    def position(self) -> int:
        """See `Watch`. While the watch waits it goes along with the log."""
        waiting = self._waiting
        if waiting is None:
            return self._position
        return self._shown(self._reached(waiting))

    @position.setter
    def position(self, value: int) -> None:
        self._position = value

    async def _begin(self) -> None:
        """Begin after `position`; see `Watch`.

        Raises:
            BeyondLogError: the log is not that long.
            NoLeaderError: no leader has said in time how long the log is.
            KeyValueError: another partition has the keys.
            WatchLostError: an earlier owner of the keys had the changes.
        """
        recent, after = self._recent, self.position
        if self._tenure is not None:
            self._tenure.check(after)  # before the end of a log that has nothing of it is asked for
        recent.keep()  # first: what is not kept from here on must be replayed
        if not 0 <= after <= recent.position:
            # A follower may be behind what the program has seen before.
            now = await self._source.now()
            if after > now:
                raise BeyondLogError(
                    f"after = {after}: the log ends at {now}; expected a position of this cluster"
                )
            self.position = self._fetched = after = now if after < 0 else after
            while recent.position < after:
                await recent.moved.wait()
        if self._tenure is not None:
            self._enter(self._tenure, after)
        self._source.watches.add(self)

    def _enter(self, tenure: Tenure, after: int) -> None:
        """Begin where a partition has the changes."""
        begin, self._fetched = tenure.begin(after), after
        if begin is None:
            raise self._lost("its keys were in another partition then")
        self._fetched = begin
        self.position = self._shown(begin)

    def _reached(self, waiting: Waiting) -> int:
        """Return up to where nothing has happened to our keys."""
        return self._recent.position if waiting.woken_at is None else waiting.woken_at

    def _shown(self, upto: int) -> int:
        """Return our place where everything up to a position was fetched and returned."""
        return upto if self._tenure is None else self._tenure.shown(upto, self._position)

    def _lost(self, why: str) -> WatchLostError:
        oldest = self._source.oldest
        if self._tenure is not None:
            oldest = self._tenure.oldest(oldest)
        return self._source.lost(self._shown(self._fetched), oldest, why)

    async def _fetch(self) -> list[Change]:
        recent = self._recent
        while True:
            await trio.lowlevel.checkpoint()
            if self._closed:
                raise StopAsyncIteration
            if self._left_at is not None and self._tenure is not None:
                self.position = self._left_at
                raise self._tenure.moved()
            self.position = self._shown(self._fetched)  # all that was fetched was returned
            if self._fetched < recent.start:
                found = await self._replayed()
            else:
                found, self._fetched = recent.page(self._fetched, self.prefix)
            if found and self._tenure is not None:
                found, self._left_at = self._tenure.until_moved(found)
            if found:
                return found
            if self._left_at is None and self._fetched == recent.position:
                await self._wait()

    async def _wait(self) -> None:
        """Wait until one of our keys changes, or perhaps has."""
        recent, prefix = self._recent, self.prefix
        waiting = self._waiting = recent.expect(prefix)
        try:
            await waiting.lot.park()
        finally:
            recent.wake_some()  # it is the next one's turn
            # Cancelled, too: nothing has happened to our keys up to here.
            self._fetched = self._reached(waiting)
            self.position = self._shown(self._fetched)
            self._waiting = None
            recent.dismiss(prefix, waiting)

    async def _replayed(self) -> list[Change]:
        """Return some changes of a replay; an empty list, too, if it has ended.

        Raises:
            WatchLostError: there can be none.
        """
        reader = self._reader
        if reader is None:
            reader = self._reader = self._source.replay(
                self._fetched, self.prefix, self._replayed_at, self._lost
            )
        page = await reader.page()
        if page is not None:
            found, self._fetched = page
            return found
        self._reader, self._replayed_at = None, reader.ended_at
        self._fetched = max(self._fetched, reader.upto)
        if reader.failure:
            raise self._lost(reader.failure)
        if reader.ended_at == -math.inf:
            # Its log was pruned, or others needed the turn: it may ask again if that helps.
            if self._fetched == self._again_at:
                raise self._lost("the log that its replay needs was deleted, again and again")
            self._again_at = self._fetched
        return []

    async def aclose(self) -> None:
        """Return nothing any more."""
        self._closed = True
        self._next.clear()
        self._source.watches.discard(self)
        if self._reader is not None:
            self._reader.close()


class LocalWatches:
    """Makes watches of the member in this process.

    Args:
        recent: the latest changes of its service.
        replays: for watches of older ones; without, they are lost.
        member: says where the log ends; without, the service's own position is taken for it.
        service: whose keys are watched; needed in a partition.

    Attributes:
        watches: those that have begun, and were not closed.
        lost_count: how many have ended with a `WatchLostError`.
    """

    def __init__(
        self,
        recent: RecentChanges,
        replays: Replays | None = None,
        member: Reads | None = None,
        *,
        service: KeyValueService | None = None,
    ) -> None:
        self.recent = recent
        self.replays = replays
        self.watches = WeakSet[LocalWatch]()
        self.lost_count = 0
        self._member, self._service = member, service

    @property
    def oldest(self) -> int:
        """The oldest position from which a watch can begin."""
        return self.recent.start if self.replays is None else self.replays.oldest

    def tenure(self, prefix: bytes) -> Tenure | None:
        """Return what a watch may return; None without partitions: everything."""
        service = self._service
        if service is None or service.ownership is None:
            return None
        return Tenure(service.ownership, service.moved, prefix)

    def watch(self, prefix: bytes, after: int) -> LocalWatch:
        """Return a watch; see `WatchSource`."""
        return LocalWatch(self, prefix, after)

    async def now(self) -> int:
        """Return a position that has all that was acknowledged before the call."""
        if self._member is None:
            return self.recent.position
        reply = await self._member.query(resp.encode_command((b"QUORATE.POSITION",)))
        (position,) = resp.parse_replies_untrusted(reply)
        assert isinstance(position, int), f"expected a position, got {position!r}"
        return position

    def replay(
        self,
        after: int,
        prefix: bytes,
        replayed_at: float,
        lost: Callable[[str], WatchLostError],
    ) -> Reader:
        """Begin a replay for a watch whose last one ended at a time.

        Args:
            after: the position behind which it goes on.
            prefix: of the keys.
            replayed_at: when its last replay ended (trio's clock).
            lost: makes its error, with the reason.

        Raises:
            WatchLostError: there can be none.
        """
        if self.replays is None:
            raise lost(f"the changes after position {self.recent.start} are kept")
        if trio.current_time() < replayed_at + REST_SECONDS:
            why = f"changes come faster than it is read: behind twice within {REST_SECONDS:g} s"
            raise lost(why)
        if after < self.replays.oldest:
            raise lost(f"the changes after position {self.replays.oldest} are kept")
        return self.replays.open(after, prefix)

    def lost(self, after: int, oldest: int, why: str) -> WatchLostError:
        """Return the error of a watch that can't go on behind a position, and count it."""
        self.lost_count += 1
        words = "%(why)s"
        log_event(log, logging.INFO, "watch_lost", words, after=after, oldest=oldest, why=why)
        return WatchLostError(f"after = {after}: {why}", after=after, oldest=oldest)
