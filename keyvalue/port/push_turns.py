"""How many pushes are sent before other tasks run.

One write may concern the watches of thousands of clients, and each push is a system call of 20 µs.
Sent in one go, they would hold up requests and heartbeats. So only some are sent in one pass of the
event loop, and the others wait for the next ones, in the order in which they came.
"""

from typing import Final, Never

import trio

from ...node.protocol.signal import Signal

__all__ = ["PUSHES_AT_ONCE", "PushTurns"]

PUSHES_AT_ONCE: Final = 100
"""Two or three milliseconds of work. Fewer, and pushes to many clients take longer; more, and other
tasks wait longer."""


class PushTurns:
    """Gives each push its turn."""

    def __init__(self) -> None:
        self._left = PUSHES_AT_ONCE  # in this pass of the event loop
        self._waiting = trio.lowlevel.ParkingLot()
        self._used = Signal()

    async def enter(self) -> None:
        """Wait until it is our turn to push; usually at once, without a checkpoint."""
        if self._left == PUSHES_AT_ONCE:
            self._used.notify()
        if self._left:
            self._left -= 1
        else:
            await self._waiting.park()

    async def run(self) -> Never:
        """Begin new turns until cancelled."""
        while True:
            await self._used.wait()  # we run in the pass after the one that was used
            while woken := self._waiting.unpark(count=PUSHES_AT_ONCE):
                self._left = PUSHES_AT_ONCE - len(woken)
                await trio.lowlevel.checkpoint()
            self._left = PUSHES_AT_ONCE
