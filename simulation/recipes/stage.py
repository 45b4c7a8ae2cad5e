"""What all programs of a round share: the names they use, and the record of what they did."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final, TypedDict

from ..invariants import ViolationError
from .blocks import Blocks
from .judge import judge

if TYPE_CHECKING:
    from .blocks import Life
    from .tenures import Tenures

TTL_TIMEOUTS: Final = (2.0, 4.0)
"""Lifetimes of leases, in heartbeat timeouts. Shorter: no lease survives an election. Longer: none
expires in a storm."""

WAIT_TIMEOUTS: Final = (None, 0.0, 6.0)
"""How long programs wait for a block."""

PREFIX: Final = b"quorate:"
"""All keys of recipes begin with it."""

FENCED: Final = b"fenced:"
"""All keys that programs write while they hold something begin with it."""


class Terms(TypedDict):
    """The terms of a lease; see the recipes."""

    ttl_s: float
    wait_s: float | None
    name: str
    rng: Random


class Stage:
    """The shared names and records of a round.

    Args:
        tenures: by the committed log.

    Attributes:
        blocks: of all programs.
        patient: programs wait for a block for as long as it takes.
        judged: number of blocks that were judged so far.
    """

    def __init__(self, tenures: Tenures) -> None:
        self.tenures = tenures
        self.blocks = Blocks()
        self.judged = 0
        self.patient = False
        self._fences: dict[bytes, None] = {}

    def terms(self, program: Life) -> Terms:
        """Draw on which terms a program takes a lease."""
        rng, unit = program.rng, program.unit
        waits = None if self.patient else rng.choice(WAIT_TIMEOUTS)
        return {
            "ttl_s": unit * rng.choice(TTL_TIMEOUTS),
            "wait_s": None if waits is None else unit * waits,
            "name": f"program-{program.number}",
            "rng": rng,
        }

    def longest_s(self, program: Life) -> float:
        """Return how long a program stays in a block, at most, in seconds."""
        return 2 * max(TTL_TIMEOUTS) * program.unit

    def fence(self, resource: str) -> bytes:
        """Return the key that only holders of a resource write."""
        key = FENCED + resource.encode()
        self._fences[key] = None
        return key

    def judge(self) -> None:
        """Judge all blocks, and forget them; nobody uses anything any more.

        Raises:
            ViolationError: a promise was broken, or something is left.
        """
        judge(self.blocks, self.tenures, self._fences)
        if left := self.tenures.held(PREFIX):
            raise ViolationError(f"Recipes.Left: nobody uses them any more: {left}")
        self.judged += len(self.blocks)
        self.blocks = Blocks()
