"""A state machine of one's own, and what its clients may send, for the simulation.

``quorate simulate --service examples.turnstile:Turnstile`` runs clusters of it through storms of
faults. A turnstile lets somebody in or out, as long as there is room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from quorate.simulation import Sample

if TYPE_CHECKING:
    from random import Random

    from quorate import Command

ROOM = 5


class Turnstile:
    """How many are inside; every method runs on every member alike."""

    position = 0  # volatile: after a start all of the log is applied again

    def __init__(self) -> None:
        self.inside = 0

    def apply(self, command: Command) -> bytes:
        """Let somebody in or out, if that can be."""
        change = 1 if command.payload == b"in" else -1
        if not 0 <= self.inside + change <= ROOM:
            return b"no"
        self.inside += change
        return b"%d inside" % self.inside

    def query(self, payload: bytes, flags: int) -> bytes:
        """Say how many are inside."""
        del payload, flags
        return b"%d" % self.inside

    def advance(self, position: int, timestamp_ms: int) -> None:
        """Time plays no part here."""

    def next_deadline_ms(self) -> int | None:
        """Say that time plays no part here."""
        return None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Do nothing in the background."""
        task_status.started()
        await trio.sleep_forever()

    @staticmethod
    def sample(rng: Random) -> Sample:
        """Draw something that a client may send."""
        if rng.randrange(3) == 0:
            return Sample(b"", query=True)
        return Sample(rng.choice((b"in", b"out")))
