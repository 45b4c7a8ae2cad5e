"""Programs that use recipes while members are tortured, and the judgement of what they did.

They are the programs of the simulation (:mod:`..simulation.recipes`) over `quorate.connect`, and
the same judge looks at them. All processes share the clock of this machine, so the log's time is
that of the programs, or a little behind. It never jumps ahead of theirs, which is the one reason
for which docs/recipes.md lets two blocks overlap: here an overlap is always a fault.
"""

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

import attrs
import trio

from ..client.connect import connect
from ..errors import LeaseLostError, RequestError
from ..keyvalue.programs.client import KeyValue
from ..node.requests.status import MemberAddress
from ..simulation.recipes.stage import TTL_TIMEOUTS, Stage
from ..simulation.recipes.tools import drain
from ..simulation.recipes.uses import USES
from .recordings import Follower

__all__ = ["RecipeClients"]

PROGRAMS: Final = 4
TASKS: Final = 2
ONCE: Final = 0.7
"""Part of the programs that write exactly once."""
UNIT_S: Final = 1.0
"""In place of a heartbeat timeout: leases live for two or four of them. Shorter, and a busy machine
ends them. Longer, and none expires between two faults."""
LIFE_S: Final = 20.0
"""Longest life of a program. Shorter, and hardly a program meets two leaders."""
PATIENCE_S: Final = 20.0
FINISH_S: Final = 60.0
FOLLOW_S: Final = 2.0
"""Pause between two looks at the recordings. Longer, and members have dropped what was not read."""
MOST: Final = 20
"""How many violations are reported: one mistake often makes many."""
SLACK_S: Final = 30.0
"""How long a batch may take to be committed after it got its time."""
PREFIXES: Final = (b"quorate:", b"fenced:", b"copied:", b"sum:")


Main: TypeAlias = "Callable[[_Program, KeyValue], Awaitable[None]]"


@attrs.define
class _Program:
    """One life of a client, on connections of its own; see `Life`."""

    number: int
    rng: random.Random
    unit: float = UNIT_S

    def awake(self) -> float:
        """Return the time: nothing makes this process stand still."""
        return time.time()


class RecipeClients:
    """All programs that use recipes.

    Args:
        addresses: returns those of the members.
        seed: of what programs choose.
        directory: for the replay of the log; it must not exist.
        directories: returns where the members' recordings are.

    Attributes:
        violations: what did not hold.
    """

    def __init__(
        self,
        addresses: Callable[[], Sequence[MemberAddress]],
        seed: int,
        directory: Path,
        directories: Callable[[], Sequence[Path]],
    ) -> None:
        self.violations: list[str] = []
        self._addresses, self._seed = addresses, seed
        self._directories = directories
        self._follower = Follower(directory, PREFIXES)
        self._stage = Stage(self._follower.replay.tenures, SLACK_S)
        self._lives = 0
        self._end = -1

    @property
    def judged(self) -> int:
        """Number of blocks that were judged."""
        return self._stage.judged

    async def run(self) -> None:
        """Work until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow)
            for number in range(PROGRAMS):
                rng = random.Random(f"{self._seed}/recipes/{number}")  # noqa: S311 - no secret
                nursery.start_soon(self._live, rng)

    async def _follow(self) -> None:
        while True:
            self._follower.follow(self._directories())
            await trio.sleep(FOLLOW_S)

    async def _live(self, rng: random.Random) -> None:
        """Live one life after the other."""
        while True:
            with suppress(RequestError), trio.move_on_after(LIFE_S * rng.random()):
                await self._connected(rng, self._work)
            await trio.sleep(0.1)

    async def _connected(self, rng: random.Random, main: Main) -> None:
        self._lives += 1
        program = _Program(self._lives, rng)
        addresses = [(each.host, each.client_port) for each in self._addresses()]
        async with connect(
            addresses, exactly_once=rng.random() < ONCE, patience_s=PATIENCE_S
        ) as kv:
            await main(program, kv)

    async def _work(self, program: _Program, kv: KeyValue) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(TASKS):
                nursery.start_soon(self._task, program, kv)

    async def _task(self, program: _Program, kv: KeyValue) -> None:
        while True:
            (use,) = program.rng.choices(list(USES), list(USES.values()))
            try:
                await use(self._stage, program, kv)
            except (LeaseLostError, RequestError, TimeoutError):
                await trio.sleep(program.unit * program.rng.random())

    async def finish(self) -> None:
        """Empty the queue and wait for all leases to end; then delete all keys of the programs.

        Nothing fails any more.
        """
        self._stage.patient = True
        rng = random.Random(f"{self._seed}/recipes/end")  # noqa: S311 - no secret
        with trio.move_on_after(FINISH_S) as waiting:
            await trio.sleep((max(TTL_TIMEOUTS) + 1) * UNIT_S)
            await self._connected(rng, self._clean)
        if waiting.cancelled_caught:
            self.violations.append(f"the recipes were not at rest within {FINISH_S:g} s")

    async def _clean(self, program: _Program, kv: KeyValue) -> None:
        while True:
            with suppress(LeaseLostError, RequestError):
                await drain(self._stage, program, kv)
                break
            await trio.sleep(UNIT_S)
        position = await kv.execute("QUORATE.POSITION")
        assert isinstance(position, int)
        self._end = position
        for prefix in PREFIXES:
            if keys := [key async for key in kv.scan(prefix + b"*")]:
                await kv.delete(*keys)

    def judge(self) -> None:
        """Judge what the programs did; the members have ended."""
        if self._end < 0:
            return
        self._follower.follow(self._directories(), self._end)
        position = self._follower.replay.position
        if position < self._end:
            words = f"no recording has the log from {position} to {self._end}: not judged"
            self.violations.append(f"recipes: {words}")
            return
        self.violations += self._stage.violations()[:MOST]

    def close(self) -> None:
        """Close the replay."""
        self._follower.replay.close()
