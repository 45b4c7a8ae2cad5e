"""Whether clients are served here: a read is made, and its outcome is shared for a second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from ..errors import QuorateError
from .answers import Answer, text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ..node import NodeStatus

SHARED_SECONDS: Final = 1.0
"""How long an outcome is good for. Shorter: probes cost the leader more reads. Longer: a balancer
learns later."""

READ_SECONDS: Final = 1.0
"""How long the read may take. Shorter: a busy cluster counts as not ready. Longer: a probe waits
for as long, and usually has a short time limit of its own."""


class Readiness:
    """Finds out whether a linearizable read would succeed here.

    Args:
        read: makes one, or raises why it can't.
        status: describes the member now.
    """

    def __init__(
        self, read: Callable[[], Awaitable[object]], status: Callable[[], NodeStatus]
    ) -> None:
        self._read = read
        self._status = status
        self._asking = trio.Lock()
        self._good_until = float("-inf")
        self._trouble = ""

    async def answer(self) -> Answer:
        """Return 200 if it would succeed, else 503 and why."""
        async with self._asking:
            if trio.current_time() >= self._good_until:
                self._trouble = await self._find_trouble()
                self._good_until = trio.current_time() + SHARED_SECONDS
        return text(503, self._trouble) if self._trouble else text(200, "ready")

    async def _find_trouble(self) -> str:
        status = self._status()
        if status.damage:
            return status.damage
        words = f"no answer to a read within {READ_SECONDS:g} s"
        with trio.move_on_after(READ_SECONDS):
            try:
                await self._read()
            except QuorateError as error:
                words = str(error)
            else:
                words = ""
        if words and status.leader_id is None:
            words += ": no leader is known"
        elif words and status.leader_id == status.member_id:
            words += ": this member led last, and reaches no quorum"
        elif words:
            words += f": the last known leader is member {status.leader_id}"
        return f"{words}; the election is in {status.state}" if words else ""
