"""A leader whose own disk stands still does not stay: it commits nothing, whoever has the log.

It can still talk, and its followers have what it sent them. So after one and a half heartbeat
timeouts without progress it stops taking requests and hands over, to a follower that has all of its
log; that costs little more than the time which the disk has cost already. Without such a follower,
as when all disks are slow, it waits; after two heartbeat timeouts it steps down.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from .control import DISK_STALLED
from .gateway import Request, RequestKind
from .roles import SLOWEST_DISK, sleep_until

if TYPE_CHECKING:
    from ..errors import RequestError
    from .leadership import Leadership

log = logging.getLogger("quorate.node")


class DiskWatch:
    """Watches the disk of a leader.

    Args:
        leadership: that ends when it stalls.
    """

    def __init__(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._core = leadership.core
        self._now = trio.lowlevel.current_clock().current_time  # each batch asks
        self._moved_at = self._now()
        self._asked = False

    def moved(self) -> None:
        """Something has become durable."""
        if self._waits():
            self._moved_at = self._now()

    def appends(self) -> None:
        """Something is about to be submitted."""
        if not self._waits():
            self._moved_at = self._now()

    @property
    def moved_at(self) -> float:
        """When the recording last went on; now, if nothing waits."""
        return self._moved_at if self._waits() else self._now()

    def _waits(self) -> bool:
        """Whether something that was submitted is not durable yet."""
        durable = self._core.store.recorded.append_position
        return durable < self._leadership.publication_position

    async def run(self) -> None:
        """Watch; until cancelled, or the leadership has ended."""
        leadership, timeouts = self._leadership, self._core.timeouts
        timeout = timeouts.leader_heartbeat_timeout
        while leadership.ended is None:
            now = trio.current_time()
            unwritten = leadership.publication_position - self._core.store.append_position
            end = self.moved_at + 2 * timeout + unwritten / SLOWEST_DISK
            due = end - timeout / 2
            if end <= now:
                leadership.end("our disk has stalled")
            elif due <= now:
                self._hand_over()
            again = now + timeouts.leader_heartbeat_interval
            await sleep_until(again)
            # While the whole process was held up it is not the disk that stood still.
            self._moved_at += trio.current_time() - again

    def _hand_over(self) -> None:
        """Ask a follower that has all of our log to take over, if there is one."""
        leadership = self._leadership
        end = leadership.publication_position
        priorities = {each.member_id: each.priority for each in self._core.config.members}
        level = [
            follower.member_id
            for follower in leadership.followers.values()
            if follower.may_take_over and follower.match == end
        ]
        if self._asked or not level or not leadership.accepting:
            return
        self._asked = True
        target = max(level, key=lambda each: (priorities[each], -each))
        log.warning("member %d: our disk stands still; %d takes over", self._core.member_id, target)
        words = f"transfer {target} {DISK_STALLED}".encode()
        leadership.submit(Request(RequestKind.CONTROL, words, 0, self._answered))

    def _answered(self, _result: bytes | RequestError) -> None:
        self._asked = False
