"""What a member is at a moment, as seen from its links and its disk.

Exactly one role hears the member's messages: the election's inbox while a leader is being
found, :class:`~.following.Following` from the moment a leader is adopted, and
:class:`~.leadership.Leadership` from the moment a ballot is won. A role ends once, with a reason,
and the election begins anew.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs
import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...transport import Message, TimeoutNow


# Bytes a second that a disk may need for what waits to be written before it counts as stalled.
SLOWEST_DISK = 8 << 20


class Signal:
    """Wakes whoever waits; waiting has no memory, so the condition is looked at first."""

    def __init__(self) -> None:
        self._lot = trio.lowlevel.ParkingLot()
        self._waited = False  # since the last notification, by somebody

    def notify(self) -> None:
        """Wake all that wait; mostly nobody does, and then it costs next to nothing."""
        if self._waited:
            self._waited = False
            self._lot.unpark_all()

    async def wait(self, until: float = math.inf) -> bool:
        """Wait for the next notification, at most until a time; False when that has come."""
        self._waited = True
        if until == math.inf:  # as mostly, for half of the cost
            await self._lot.park()
            return True
        with trio.move_on_at(until) as scope:
            await self._lot.park()
        return not scope.cancelled_caught


async def sleep_until(deadline: float) -> None:
    """Sleep until a time at which somebody's silence will be judged.

    If the whole process was held up meanwhile, what was said lies unread in the sockets, and is
    read in the very turn of the event loop in which this task wakes, or in the next: so it waits
    for two turns more.
    """
    await trio.sleep_until(deadline)
    for _ in range(2):
        await trio.lowlevel.checkpoint()


async def overdue(due: Callable[[], float], look_seconds: float) -> None:
    """Wait until a time has come at which somebody's silence is judged.

    Args:
        due: tells that time, which is put off whenever something is heard.
        look_seconds: it is asked again at least so often.
    """
    while True:
        await trio.sleep_until(min(due(), trio.current_time() + look_seconds))
        if due() <= trio.current_time():  # as `sleep_until`, which most of the time is not needed
            await sleep_until(trio.current_time())
            if due() <= trio.current_time():
                return


async def look_again(seconds: float) -> None:
    """Sleep for so long at most, until a moment that all have who sleep for so long.

    A turn of the loop costs more than a look does, so those of an idle member are in one turn.
    """
    now = trio.current_time()
    turn = (now // seconds + 1) * seconds
    # Rounded, 1.0 // 0.1 is 9, and the next turn would be now: for ever, where time is virtual.
    await trio.sleep_until(turn if turn > now else turn + seconds)


@attrs.frozen
class Ended:
    """Why a role ended.

    Args:
        reason: in words, for the log.
        message: a message with its sender that the next election should see first.
        gone: a member that closed in order, which nobody needs to wait for.
        in_order: the leader knows that it leads no more, and answers what it was asked.
        mandate: by which the leader has asked us to take over from it.
    """

    reason: str
    message: tuple[int, Message] | None = None
    gone: int | None = None
    in_order: bool = False
    mandate: TimeoutNow | None = None


class Role:
    """Base of the roles."""

    def __init__(self) -> None:
        self.ended: Ended | None = None
        self.changed = Signal()
        self._end = trio.Event()

    def end(self, reason: str, *, message: tuple[int, Message] | None = None) -> None:
        """End the role; only the first call counts."""
        self._finish(Ended(reason, message))

    def _finish(self, ended: Ended) -> None:
        if self.ended is None:
            self.ended = ended
            self._end.set()
            self.changed.notify()

    async def wait_ended(self) -> Ended:
        """Wait until the role has ended, and say why."""
        await self._end.wait()
        assert self.ended is not None
        return self.ended

    def on_message(self, sender: int, message: Message) -> None:
        """Hear a message; in the order of the sender's stream."""

    def on_receiving(self, member: int) -> None:
        """A part of a message has come from a member, which may take long to come whole."""

    def on_durable(self, position: int) -> None:
        """The recording is durable up to `position`."""

    def on_link_up(self, member: int) -> None:
        """Our link to a member is ready."""

    def on_link_lost(self, member: int) -> None:
        """A member's link to us ended: what it sent on it is over."""
