"""Waiting: for something to change, and for the moment at which somebody's silence is judged."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable


class Signal:
    """Wakes all tasks that wait.

    It has no memory: look at the condition first, and again after waking up.
    """

    def __init__(self) -> None:
        self._lot = trio.lowlevel.ParkingLot()
        self._waited = False  # by some task, since the last notification

    def notify(self) -> None:
        """Wake all that wait."""
        # Nobody waits most of the time, and then this costs next to nothing.
        if self._waited:
            self._waited = False
            self._lot.unpark_all()

    async def wait(self, until: float = math.inf) -> bool:
        """Wait for the next notification, at most until a time; False when that time has come."""
        self._waited = True
        if until == math.inf:
            # The usual case, without the cost of a cancel scope.
            await self._lot.park()
            return True
        with trio.move_on_at(until) as scope:
            await self._lot.park()
        return not scope.cancelled_caught


async def sleep_until(deadline: float) -> None:
    """Sleep until a time at which somebody's silence will be judged."""
    await trio.sleep_until(deadline)
    # If our whole process was held up until now, messages lie unread in the sockets. They are read
    # in the turn of the event loop in which this task wakes up, or in the next one.
    for _ in range(2):
        await trio.lowlevel.checkpoint()


async def overdue(due: Callable[[], float], look_seconds: float) -> None:
    """Wait until the time has come at which somebody's silence is judged.

    Args:
        due: returns that time, which moves on whenever something is heard.
        look_seconds: it is asked again at least this often.
    """
    while True:
        await trio.sleep_until(min(due(), trio.current_time() + look_seconds))
        if due() <= trio.current_time():
            # As `sleep_until`, only where it matters: this loop comes round often.
            await sleep_until(trio.current_time())
            if due() <= trio.current_time():
                return


async def sleep_to_shared_tick(seconds: float) -> None:
    """Sleep at most this long, until a moment that is the same for all that sleep this long.

    A turn of the event loop costs more than a look does, so all looks of an idle member share one.
    """
    now = trio.current_time()
    turn = (now // seconds + 1) * seconds
    # Floating point: 1.0 // 0.1 is 9, so the next turn would be now, for ever in virtual time.
    await trio.sleep_until(turn if turn > now else turn + seconds)
