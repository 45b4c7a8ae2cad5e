"""What all programs of a round share: the names they use, and the record of what they did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypedDict

from ..invariants import ViolationError
from .blocks import Blocks
from .copies import Copies
from .gates import THROUGH, Gates
from .jobs import Jobs
from .judge import judge
from .sums import Sums

if TYPE_CHECKING:
    from random import Random

    from .blocks import Life
    from .tenures import Tenures

TTL_TIMEOUTS: Final = (2.0, 4.0)
"""Lifetimes of leases, in heartbeat timeouts. Shorter: no lease survives an election. Longer: none
expires in a storm."""

WAIT_TIMEOUTS: Final = (None, 0.0, 6.0)
"""How long programs wait for a block."""

PREFIX: Final = b"quorate:"
"""All keys of recipes begin with it."""

LASTING: Final = (b":head", b":tail", b":value")
"""Keys of recipes that stay for ever end with one of these."""

QUEUE: Final = PREFIX + b"queue:{jobs}:"
COUNTED: Final = b"counted"
"""Items of the queue that begin with this are removed together with an addition to a number."""

NUMBER: Final = b"fenced:counted"

FENCED: Final = b"fenced:"
"""All keys that programs write while they hold something begin with it."""


class Terms(TypedDict):
    """The terms of a lease; see the recipes."""

    ttl_s: float
    name: str
    rng: Random


class Stage:
    """The shared names and records of a round.

    Args:
        tenures: by the committed log.
        slack_s: how far their times may be behind those of the programs.

    Attributes:
        blocks: of all programs.
        jobs: items of the queue.
        sums: additions.
        copies: copies of keys.
        gates: parties and barriers.
        patient: programs wait for a block for as long as it takes.
        judged: number of blocks that were judged so far.
    """

    def __init__(self, tenures: Tenures, slack_s: float = 0.0) -> None:
        self.tenures = tenures
        self.blocks = Blocks()
        self.judged = 0
        self.patient = False
        self.jobs = Jobs()
        self.sums = Sums()
        self.copies = Copies()
        self.gates = Gates(slack_s)
        self._slack_s = slack_s
        self._fences: dict[bytes, None] = {}

    def terms(self, program: Life) -> Terms:
        """Draw on which terms a program takes a lease."""
        rng = program.rng
        return {
            "ttl_s": program.unit * rng.choice(TTL_TIMEOUTS),
            "name": f"program-{program.number}",
            "rng": rng,
        }

    def wait_s(self, program: Life) -> float | None:
        """Draw how long a program waits for a block, in seconds."""
        waits = None if self.patient else program.rng.choice(WAIT_TIMEOUTS)
        return None if waits is None else program.unit * waits

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
        if found := self.violations():
            raise ViolationError(found[0])

    def violations(self) -> list[str]:
        """Judge all blocks, and forget them; return each broken promise, and what is left."""
        tenures = self.tenures
        found = [
            *judge(self.blocks, tenures, self._fences),
            *self.jobs.judge(tenures, QUEUE, COUNTED, NUMBER),
            *self.sums.judge(tenures),
            *self.copies.judge(tenures),
            *self.gates.judge(tenures),
        ]
        lasting = (key for key in tenures.held(PREFIX) if not key.startswith(THROUGH))
        if left := [key for key in lasting if not key.endswith(LASTING)]:
            found.append(f"Recipes.Left: nobody uses them any more: {left}")
        self.judged += len(self.blocks)
        self.blocks = Blocks()
        self.copies = Copies()
        self.gates = Gates(self._slack_s)
        return found
