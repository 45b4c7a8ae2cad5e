"""A state machine of your own, and what its clients may send, for the simulation.

``quorate simulate --service examples.turnstile:Turnstile`` runs clusters of it through storms of
faults. A turnstile lets people in and out, as long as there is room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import quorate
from quorate.simulation import Sample

if TYPE_CHECKING:
    from random import Random

    from quorate import Command

ROOM = 5


class Turnstile(quorate.StateMachine):
    """The number of people inside."""

    inside = 0

    def apply(self, command: Command) -> bytes:
        """Let one person in or out, if there is room, or anyone inside."""
        change = 1 if command.payload == b"in" else -1
        if not 0 <= self.inside + change <= ROOM:
            return b"no"
        self.inside += change
        return b"%d inside" % self.inside

    def query(self, payload: bytes, flags: int) -> bytes:
        """Return how many are inside."""
        del payload, flags
        return b"%d" % self.inside

    @staticmethod
    def sample(rng: Random) -> Sample:
        """Return what a client may send."""
        if rng.randrange(3) == 0:
            return Sample(b"", query=True)
        return Sample(rng.choice((b"in", b"out")))
