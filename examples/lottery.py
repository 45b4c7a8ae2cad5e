"""The state machine of docs/simulation.md: it draws a lot for each command.

``quorate simulate --service examples.lottery:Lottery`` runs clusters of it through storms.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import quorate
from quorate.simulation import Sample

if TYPE_CHECKING:
    from quorate import Command


class Lottery(quorate.StateMachine):
    """The lots that were drawn; all members draw the same."""

    def __init__(self) -> None:
        self.drawn: list[int] = []

    def apply(self, command: Command) -> bytes:
        """Draw a lot: chance comes from the log, so all members draw the same."""
        chance = Random(command.position + command.index)  # noqa: S311 - no secret
        self.drawn.append(chance.randrange(100))
        return b"%d" % self.drawn[-1]

    def query(self, payload: bytes, flags: int) -> bytes:
        """Return how many were drawn."""
        del payload, flags
        return b"%d" % len(self.drawn)

    def state(self) -> bytes:
        """Return the whole state; the simulation compares members by this."""
        return repr(self.drawn).encode()

    @staticmethod
    def sample(rng: Random) -> Sample:
        """Return what a client may send."""
        return Sample(b"", query=rng.randrange(3) == 0)
