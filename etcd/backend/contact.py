"""Whether this member is in touch with a leader.

A member that is cut off goes on serving its watches from what it has applied, and nothing happens
there any more: to its clients it looks alive. So each member asks its leader from time to time
whether it leads, which a leader only says after it has heard a quorum. When there was no answer for
`LOST_S`, streams end with an error, and their clients go to another member.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Never

import trio

from ...errors import RequestError
from ...node.protocol.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["LOOK_S", "LOST_S", "LeaderContact"]

LOST_S: Final = 5.0
"""Seconds without an answer after which the leader counts as lost. If smaller, ordinary elections
end all watches. If larger, clients of a member that is cut off notice later."""

LOOK_S: Final = 1.0
"""Seconds from an answer to the next question. If smaller, idle members do more work. If larger, a
loss is noticed later by as much."""


class LeaderContact:
    """Asks for the leader until cancelled.

    Args:
        confirm: returns once the leader has confirmed that it leads; may raise `RequestError`.

    Attributes:
        lost: there was no answer for `LOST_S`.
    """

    def __init__(self, confirm: Callable[[], Awaitable[object]]) -> None:
        self._confirm = confirm
        self._changed = Signal()
        self.lost = False

    async def run(self) -> Never:
        """Ask and note the answers, until cancelled."""
        heard_at = trio.current_time()
        while True:
            # If this process was held up for long, the leader gets the time for one answer.
            patience = max(heard_at + LOST_S - trio.current_time(), LOOK_S)
            with trio.move_on_after(patience):
                try:
                    await self._confirm()
                    heard_at = trio.current_time()
                except RequestError:
                    pass
            self.lost = trio.current_time() >= heard_at + LOST_S
            self._changed.notify()
            await trio.sleep(LOOK_S)

    async def wait_lost(self) -> None:
        """Wait until the leader counts as lost."""
        while not self.lost:
            await self._changed.wait()

    async def wait_found(self) -> None:
        """Wait until the leader does not count as lost."""
        while self.lost:
            await self._changed.wait()
