"""The replays of a member, for watches whose changes are no longer in memory.

One at a time: each has tables of its own, in memory and on disk, and takes processor time from the
member. Other watches wait for their turn. A watch that does not read what its replay has found
holds the turn up, so that its replay ends after a while, with an error that says where to resume.
"""

import contextlib
import logging
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, Never

import trio

from ...errors import PrunedError, StorageError
from ...log_events import log_event
from ..service import KeyValueService
from ..state.changes import RecentChanges
from .replay import History, Page, Pages, remove, replay

__all__ = ["REPLAYS", "Reader", "Replays"]

log = logging.getLogger("quorate.keyvalue")

REPLAYS: Final = "replay"
"""Folder of a member's replay, in the member's directory."""

UNREAD_SECONDS: Final = 30.0
"""How long a page may wait for its watch. Shorter: programs that pause lose their place. Longer: a
watch that nobody reads holds up those that wait for a replay."""


class Reader:
    """A watch's end of a replay; made by `Replays.open`.

    Args:
        after: a log position.
        prefix: of the keys.

    Attributes:
        failure: why it can't go on; empty if it can, also in memory.
        ended_at: when it ended (trio's clock).
    """

    def __init__(self, after: int, prefix: bytes) -> None:
        self.after = after
        self.prefix = prefix
        self.scope = trio.CancelScope()
        self.failure = "its member has stopped"  # unless it comes to another end
        self.ended_at = math.inf
        # One page waits while the next one is made.
        self.send, self._receive = trio.open_memory_channel[Page](1)

    async def page(self) -> Page | None:
        """Return the next page; None at the end: see `failure`, and look into memory again."""
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            return None

    def close(self) -> None:
        """End it; idempotent."""
        self.scope.cancel()
        self._receive.close()


class Replays:
    """The replays of a member.

    Args:
        history: of the member.
        recent: its latest changes; a replay ends where these have what follows.
        directory: where a replay has its tables; removed at the start.
        make: opens a service with empty tables in a directory.

    Attributes:
        count: how many were begun.
        waiting: watches whose replay has not ended, the one under way included.
    """

    def __init__(
        self,
        history: History,
        recent: RecentChanges,
        directory: Path,
        make: Callable[[Path], KeyValueService],
    ) -> None:
        self.count = self.waiting = 0
        self._history = history
        self._recent = recent
        self._directory = directory
        self._make = make
        self._queue, self._next = trio.open_memory_channel[Reader](math.inf)

    @property
    def oldest(self) -> int:
        """The oldest position from which a watch can begin."""
        return min(self._history.oldest, self._recent.start)

    def open(self, after: int, prefix: bytes) -> Reader:
        """Ask for a replay of the changes after a position."""
        reader = Reader(after, prefix)
        try:
            self._queue.send_nowait(reader)
            self.waiting += 1
        except trio.BrokenResourceError:
            reader.send.close()  # with the failure that it has from the start
        return reader

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Replay for one watch after the other, until cancelled."""
        # What a crash has left.
        await self._history.read(partial(remove, self._directory))
        task_status.started()
        try:
            while True:
                reader = await self._next.receive()
                with reader.scope, reader.send, contextlib.suppress(trio.BrokenResourceError):
                    await self._serve(reader)  # until its end, or until the watch is closed
                self.waiting -= 1
                reader.ended_at = trio.current_time()
        finally:
            while self._next.statistics().current_buffer_used:
                self._next.receive_nowait().send.close()
            self._next.close()

    async def _serve(self, reader: Reader) -> None:
        await trio.lowlevel.checkpoint()  # for a watch that was closed while it waited
        self.count += 1
        began = trio.current_time()
        pages = Pages(reader.after, reader.prefix, partial(_deliver, reader), self._covers)
        try:
            await replay(self._history, self._make, self._directory, pages)
            reader.failure = ""
        except trio.TooSlowError:
            reader.failure = f"for {UNREAD_SECONDS:g} s nobody has read what its replay has found"
        except PrunedError:
            reader.failure = ""  # the watch asks again: a newer snapshot may do by now
        except StorageError as error:
            reader.failure = f"it can't be replayed: {error}"
        log_event(
            log,
            logging.WARNING if reader.failure else logging.DEBUG,
            "watch_replayed",
            "changes from %(position)d to %(end)d were replayed for a watch, in %(took).1f s",
            position=reader.after,
            end=pages.position,
            took=trio.current_time() - began,
            why=reader.failure,
        )

    def _covers(self, position: int) -> bool:
        """Say whether memory has the changes behind a position, and for some while to come."""
        # Not as soon as it has them: the oldest ones go next, and the watch has pages to read yet.
        recent = self._recent
        return position >= (recent.start + recent.position) // 2


async def _deliver(reader: Reader, page: Page) -> None:
    """Hand a page to the watch.

    Raises:
        trio.TooSlowError: it does not read.
        trio.BrokenResourceError: it was closed.
    """
    with trio.fail_after(UNREAD_SECONDS):
        await reader.send.send(page)
