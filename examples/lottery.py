"""The state machine of docs/simulation.md: draw a lot for whoever asks.

``quorate simulate --service examples.lottery:Lottery`` runs clusters of it through storms.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import trio

from quorate.simulation import Sample

if TYPE_CHECKING:
    from quorate import Command


class Lottery:
    """The lots that were drawn; every method runs on every member alike."""

    position = 0  # volatile: after a start all of the log is applied again

    def __init__(self) -> None:
        self.drawn: list[int] = []

    def apply(self, command: Command) -> bytes:
        """Draw a lot: chance comes from the log, so all members draw the same."""
        chance = Random(command.position + command.index)  # noqa: S311 - no secret
        self.drawn.append(chance.randrange(100))
        return b"%d" % self.drawn[-1]

    def query(self, payload: bytes, flags: int) -> bytes:
        """Say how many were drawn."""
        del payload, flags
        return b"%d" % len(self.drawn)

    def advance(self, position: int, timestamp_ms: int) -> None:
        """Time plays no part here."""

    def next_deadline_ms(self) -> int | None:
        """Say that time plays no part here."""
        return None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Do nothing in the background."""
        task_status.started()
        await trio.sleep_forever()

    def state(self) -> bytes:
        """Stand for all that it holds; the simulation compares members by this."""
        return repr(self.drawn).encode()

    @staticmethod
    def sample(rng: Random) -> Sample:
        """Draw what a client may send."""
        return Sample(b"", query=rng.randrange(3) == 0)
