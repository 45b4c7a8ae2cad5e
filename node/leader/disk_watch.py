"""A leader whose own disk stands still does not stay: it commits nothing, whoever has the log.

It can still talk, and its followers have what it sent them. So after one and a half heartbeat
timeouts without progress it stops taking requests and hands over, to a follower that has all of its
log; that costs little more than the time which the disk has cost already. Without such a follower,
as when all disks are slow, it waits; after two heartbeat timeouts it steps down.

Every write to the recording counts: batches, and also the row of a new term that a winner makes
durable before it takes requests. A write that is under way when the member steps down may still
become durable. That is safe: INIT waits until all that was submitted is durable, or has failed, and
only then looks at where the log ends. A term's row that comes so late is an empty term at the end
of the log, as after a crash between that row and the first batch; nobody else can have won that
term, and this member never stands in it again.

The tables may lie on another disk. While they hang in front of a snapshot's cut, nothing is applied
and nothing is proposed. So a leader whose applier waits for too long steps down, too, and does not
stand again before it goes on (`Applier.stalled`).
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import trio

from ..protocol.role import SLOWEST_DISK, Signal, sleep_until
from ..requests.request import Request, RequestKind
from .operator import DISK_STALLED

if TYPE_CHECKING:
    from ...errors import RequestError
    from ...storage import Store
    from .leadership import Leadership

log = logging.getLogger("quorate.node")


class Progress:
    """Notes when a store last went on with what waits to be written.

    Args:
        store: it watches.

    Attributes:
        moved_at: when that was, as of the last look; then, if nothing waited.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._recorded = store.recorded
        self._now = trio.lowlevel.current_clock().current_time  # each batch asks
        self.moved_at = self._now()

    def look(self) -> None:
        """Look whether it has moved, or has nothing to do."""
        recorded = self._store.recorded
        if recorded is not self._recorded or recorded is self._store.submitted:
            self._recorded = recorded
            self.moved_at = self._now()


class DiskWatch:
    """Watches the disk of a leader.

    Args:
        leadership: that ends when it stalls.
    """

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._state = leadership.state
        self._store = leadership.store
        self._applier = leadership.applier
        self._progress = Progress(leadership.store)
        self._asked = False
        self._begun = Signal()

    def look(self) -> None:
        """Look before something is submitted, and when something has become durable."""
        self._progress.look()
        self._begun.notify()

    @property
    def _rests(self) -> bool:
        """Whether there is nothing to watch: all that was proposed is durable and applied.

        Not in an election or a handover, where the recording writes more than batches.
        """
        store, applier = self._store, self._applier
        return (
            self._leadership.accepting
            and store.recorded is store.submitted
            and applier.applied_position >= self._leadership.publication_position
            and applier.waits_since == math.inf
        )

    async def run(self) -> None:
        """Watch; until cancelled, or the leadership has ended."""
        leadership, timeouts = self._leadership, self._state.timeouts
        timeout = timeouts.leader_heartbeat_timeout
        while leadership.ended is None:
            self.look()
            now = trio.current_time()
            unwritten = leadership.publication_position - self._store.append_position
            end = self._progress.moved_at + 2 * timeout + unwritten / SLOWEST_DISK
            due = end - timeout / 2
            if end <= now:
                leadership.end("our disk has stalled")
            elif self._applier.stalled(timeout):
                leadership.end("nothing is applied for too long, as at a snapshot's cut")
            elif due <= now:
                self._hand_over()
            if self._rests:
                await self._begun.wait()
                now = self._progress.moved_at = trio.current_time()
            again = now + timeouts.leader_heartbeat_interval
            await sleep_until(again)
            # While the whole process was held up it is not the disk that stood still.
            self._progress.moved_at += trio.current_time() - again

    def _hand_over(self) -> None:
        """Ask a follower that has all of our log to take over, if there is one."""
        leadership = self._leadership
        end = leadership.publication_position
        priorities = {each.member_id: each.priority for each in self._state.config.members}
        level = [
            follower.member_id
            for follower in leadership.followers.values()
            if follower.may_take_over and follower.match == end
        ]
        if self._asked or not level or not leadership.accepting:
            return
        self._asked = True
        target = max(level, key=lambda each: (priorities[each], -each))
        log.warning(
            "member %d: our disk stands still; %d takes over", self._state.member_id, target
        )
        words = f"transfer {target} {DISK_STALLED}".encode()
        leadership.submit(Request(RequestKind.CONTROL, words, 0, self._answered))

    def _answered(self, _result: bytes | RequestError) -> None:
        self._asked = False
