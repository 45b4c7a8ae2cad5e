"""What is done once for a turn of the event loop, when the tasks of the turn have run.

A busy member serves many connections in a turn. One task does what is left to do for all of them:
to wake a task for each costs more than what it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

from ...node.protocol.signal import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TurnEnd"]


class TurnEnd:
    """Calls functions at the end of the turn."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []
        self._begun = Signal()

    def add(self, function: Callable[[], None]) -> None:
        """Have a function called once, at the end of this turn; it must not raise."""
        self._waiting.append(function)
        self._begun.notify()

    async def run(self) -> Never:
        """Call what each turn has added, until cancelled."""
        while True:
            # Woken by the first call of `add`, this runs when the tasks of the turn have run.
            while not self._waiting:
                await self._begun.wait()
            waiting, self._waiting = self._waiting, []
            for function in waiting:
                function()
