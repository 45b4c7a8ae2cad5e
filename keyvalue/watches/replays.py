"""The replays of a member, for watches whose changes are no longer in memory.

One at a time: each has tables of its own, in memory and on disk, and takes processor time from the
member. It serves all watches that wait when it begins, from the oldest of their positions on.

A watch that does not read what a replay has found must not hold up the others. So it is set aside:
its replay ends, and when it has read what it was given it asks for another one. While nobody else
waits a replay has more patience, since to begin again costs more than to wait.
"""

import logging
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Never, TypeAlias

import trio

from ...errors import PrunedError, SafetyViolationError, StorageError
from ...log_events import log_event
from ...node.protocol.signal import Signal
from ..service import KeyValueService
from ..state.changes import Change, RecentChanges, Row, changes_of
from ..state.ownership import Ownership
from .replay import History, Pages, remove, replay

__all__ = ["REPLAYS", "Page", "Reader", "Replays"]

log = logging.getLogger("quorate.keyvalue")

REPLAYS: Final = "replay"
"""Folder of a member's replay, in the member's directory."""

UNREAD_SECONDS: Final = 1.0
"""How long a page may wait for its watch while others wait, too. Shorter: watches of programs that
are slow for a moment begin again and again. Longer: the others wait longer."""

ALONE_SECONDS: Final = 30.0
"""The same while nobody else waits, and all that one replay waits for slow watches otherwise.
Shorter: replays for slow programs load the snapshot more often. Longer: a replay that nobody reads
takes memory and disk for longer."""

Page: TypeAlias = tuple[list[Change], int]
"""Changes of whole log entries, and the position up to which there are no others."""

_STOPPED: Final = "its member has stopped"


class Reader:
    """A watch's end of a replay; made by `Replays.open`.

    Args:
        after: a log position.
        prefix: of the keys.
        closed: called when the watch wants no more.

    Attributes:
        failure: why it can't go on; empty if it can: in memory, or with another replay.
        ended_at: when the replay came to its end (trio's clock); before that, or if it ended
            early, long ago.
        upto: every change up to here was found.
    """

    def __init__(self, after: int, prefix: bytes, closed: Callable[["Reader"], None]) -> None:
        self.after = self.upto = after
        self.prefix = prefix
        self.failure = ""
        self.ended_at = -math.inf
        self._closed = closed
        # One page waits while the next one is made.
        self._send, self._receive = trio.open_memory_channel[Page](1)

    async def page(self) -> Page | None:
        """Return the next page; None at the end: see `failure` and `upto`, and ask again."""
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            return None

    def close(self) -> None:
        """Want no more; idempotent."""
        self._receive.close()
        self._closed(self)

    # --- the replay's end

    def put(self, page: Page) -> bool:
        """Hand a page to the watch; return False if it has not taken the last one."""
        try:
            if page[0]:
                self._send.send_nowait(page)
        except trio.WouldBlock:
            return False
        self.upto = page[1]
        return True

    async def wait_and_put(self, page: Page) -> None:
        """Hand a page to the watch when it has taken the last one.

        Raises:
            trio.BrokenResourceError: the watch wants no more.
        """
        await self._send.send(page)
        self.upto = page[1]

    def end(self, failure: str = "", at: float = -math.inf) -> None:
        """Say that there are no more pages; see the attributes."""
        self.failure, self.ended_at = failure, at
        self._send.close()


class Replays:
    """The replays of a member.

    Args:
        history: of the member.
        recent: its latest changes; a replay ends where these have what follows.
        directory: where a replay has its tables; removed at the start.
        make: opens a service with empty tables in a directory.
        ownership: of a partition. Its positions here are revisions, see `Ownership.shift`.

    Attributes:
        count: how many were begun.
    """

    def __init__(
        self,
        history: History,
        recent: RecentChanges,
        directory: Path,
        make: Callable[[Path], KeyValueService],
        ownership: Ownership | None = None,
    ) -> None:
        self.count = 0
        self._ownership = ownership
        self._history = history
        self._recent = recent
        self._directory = directory
        self._make = make
        self._queue: list[Reader] = []
        self._asked = Signal()
        self._ended = False
        self._readers: list[Reader] = []  # of the replay under way
        self._scope = trio.CancelScope()  # of it
        self._waits: list[trio.CancelScope] = []  # of the readers that have a page to take
        self._patience = 0.0  # how long it may still wait for these in all

    @property
    def oldest(self) -> int:
        """The oldest position from which a watch can begin."""
        return min(self._oldest_kept, self._recent.start)

    @property
    def _shift(self) -> int:
        """How far positions here may be above those of the log; further back it was less."""
        return 0 if self._ownership is None else self._ownership.shift

    @property
    def _oldest_kept(self) -> int:
        oldest = self._history.oldest
        return oldest and oldest + self._shift  # from the beginning, whatever the shift

    @property
    def waiting(self) -> int:
        """Watches whose replay has not ended, the one under way included."""
        return len(self._queue) + len(self._readers)

    def open(self, after: int, prefix: bytes) -> Reader:
        """Ask for a replay of the changes after a position."""
        reader = Reader(after, prefix, self._remove)
        if self._ended:
            reader.end(_STOPPED)
            return reader
        self._queue.append(reader)
        self._asked.notify()
        for scope in self._waits:
            scope.deadline = min(scope.deadline, trio.current_time() + UNREAD_SECONDS)
        return reader

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Replay for the watches that ask, until cancelled."""
        # What a crash has left.
        await self._history.read(partial(remove, self._directory))
        task_status.started()
        try:
            while True:
                while not self._queue:
                    await self._asked.wait()
                with trio.CancelScope() as self._scope:
                    await self._serve()
        finally:
            self._ended = True
            for reader in [*self._readers, *self._queue]:
                reader.end(_STOPPED)
            self._readers, self._queue = [], []

    async def _serve(self) -> None:
        """Replay once, for all that wait."""
        oldest = self._oldest_kept
        self._readers, self._queue = self._queue, []
        for reader in [one for one in self._readers if one.after < oldest]:
            self._set_aside(reader)  # pruned while it waited: it is told when it asks again
        await trio.lowlevel.checkpoint()
        self.count += 1
        self._patience = ALONE_SECONDS
        began, after = trio.current_time(), min(reader.after for reader in self._readers)
        pages = Pages(after, self._hand_out, self._covers)
        failure, level, at, bug = "", logging.DEBUG, -math.inf, False
        try:
            await replay(self._history, self._make, self._directory, pages, shift=self._shift)
            at = trio.current_time()
        except PrunedError:
            pass  # the watches ask again: a newer snapshot may do by now
        except StorageError as error:
            failure, level = f"it can't be replayed: {error}", logging.WARNING
        except SafetyViolationError:
            raise
        except Exception:  # noqa: BLE001 - a bug in here must not end the member
            failure, level = "internal error in a replay, see the member's log", logging.ERROR
            bug = True
        for reader in self._readers:
            reader.end(failure, at)
        self._readers = []
        log_event(
            log,
            level,
            "watch_replayed",
            "changes from %(position)d to %(end)d were replayed for watches, in %(took).1f s",
            exc_info=bug,
            position=after,
            end=pages.position,
            took=trio.current_time() - began,
            why=failure,
        )

    def _covers(self, position: int) -> bool:
        """Say whether memory has the changes behind a position, and for some while to come."""
        # Not as soon as it has them: the oldest ones go next, and the watch has pages to read yet.
        recent = self._recent
        return position >= (recent.start + recent.position) // 2

    # --- its watches

    async def _hand_out(self, rows: list[Row], position: int) -> None:
        """Give each watch its changes; set aside those that do not take them."""
        slow: list[tuple[Reader, Page]] = []
        for reader in [*self._readers]:
            page = changes_of(rows, reader.after, reader.prefix), position
            if reader in self._readers and not reader.put(page):
                slow.append((reader, page))
            await trio.lowlevel.checkpoint()
        if slow:
            began, alone = trio.current_time(), self._is_alone
            async with trio.open_nursery() as nursery:
                for reader, page in slow:
                    nursery.start_soon(self._wait_for, reader, page)
            if not alone:
                self._patience -= trio.current_time() - began

    async def _wait_for(self, reader: Reader, page: Page) -> None:
        longest = ALONE_SECONDS if self._is_alone else min(UNREAD_SECONDS, self._patience)
        with trio.move_on_after(max(longest, 0)) as scope:
            self._waits.append(scope)
            try:
                await reader.wait_and_put(page)
            except trio.BrokenResourceError:
                return
            finally:
                self._waits.remove(scope)
        if scope.cancelled_caught:
            self._set_aside(reader)

    @property
    def _is_alone(self) -> bool:
        return len(self._readers) == 1 and not self._queue

    def _set_aside(self, reader: Reader) -> None:
        reader.end()
        self._remove(reader)

    def _remove(self, reader: Reader) -> None:
        """Serve a watch no more; without any others the replay ends."""
        if reader in self._queue:
            self._queue.remove(reader)
        elif reader in self._readers:
            self._readers.remove(reader)
            if not self._readers:
                self._scope.cancel()
