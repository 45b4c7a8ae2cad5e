"""Programs that use recipes, one life after another, while they are paused, cut off and killed.

Each client of the storm lives the lives of one program after another. A program has a few tasks,
which use a few names, so that they are nearly always in each other's way. All leases are short.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

import trio

from ...errors import LeaseLostError, RequestError
from ..invariants import ViolationError
from ..recipes.programs import Program
from ..recipes.stage import TTL_TIMEOUTS, Stage
from ..recipes.tools import drain, take_job
from ..recipes.uses import USES
from .base import Workload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from ...keyvalue.programs.client import KeyValue
    from ..door import Door
    from ..recipes.holding import Use
    from ..recipes.replay import Replay

TASKS: Final = 3
ONCE: Final = 0.7
"""Part of the programs that write exactly once."""
LIFE_TIMEOUTS: Final = 20.0
"""Longest life of a program, in heartbeat timeouts."""
TROUBLE_TIMEOUTS: Final = 6.0
"""Longest time between two troubles of a program."""
TROUBLE: Final = {"pause": 3, "cut": 2, "die": 1}
SETTLE_TIMEOUTS: Final = 4.0
PROGRAMS_IN_CALM: Final = 3
CALM_TIMEOUTS: Final = 80.0
"""So long may they take, one after the other, in heartbeat timeouts."""


class Connect(Protocol):
    """Connects a program to the cluster, with exactly-once writes or without."""

    def __call__(self, program: Program, /, *, once: bool) -> AbstractAsyncContextManager[KeyValue]:
        """Return the store for the length of a block."""
        ...


class Programs(Workload):
    """Programs with recipes, and their judgement.

    Args:
        replay: of the committed log.
        connect: connects a program to the cluster.
    """

    def __init__(self, replay: Replay, connect: Connect = Program.connect) -> None:
        super().__init__()
        self._connect = connect
        self._numbers = itertools.count(1)
        self.stage = Stage(replay.tenures)

    async def act(self, door: Door) -> None:
        """Live one life of a program."""
        async with trio.open_nursery() as nursery:
            program = Program(next(self._numbers), door, door.world.pauses, nursery)

            async def live() -> None:
                await program.run(self._main)
                nursery.cancel_scope.cancel()

            nursery.start_soon(live)
            await self._trouble(program)

    async def _trouble(self, program: Program) -> None:
        rng, unit = program.rng, program.unit
        longest = 3 * max(TTL_TIMEOUTS) * unit
        try:
            while True:
                await trio.sleep(TROUBLE_TIMEOUTS * unit * rng.random())
                (trouble,) = rng.choices(list(TROUBLE), list(TROUBLE.values()))
                if trouble == "die":
                    program.die()
                    await trio.sleep_forever()
                elif trouble == "cut":
                    program.cut()
                    await trio.sleep(longest * rng.random())
                    program.mend()
                else:
                    program.pause()
                    await trio.sleep(longest * rng.random())
                    program.resume()
        finally:
            program.mend()
            program.resume()

    async def _main(self, program: Program) -> None:
        rng, unit = program.rng, program.unit
        with suppress(RequestError), trio.move_on_after(LIFE_TIMEOUTS * unit * rng.random()):
            once = rng.random() < ONCE
            async with self._connect(program, once=once) as kv, trio.open_nursery() as nursery:
                for _ in range(rng.randint(1, TASKS)):
                    nursery.start_soon(self._task, program, kv)

    async def _task(self, program: Program, kv: KeyValue) -> None:
        while True:
            (use,) = program.rng.choices(list(USES), list(USES.values()))
            try:
                await use(self.stage, program, kv)
            except (LeaseLostError, RequestError, TimeoutError):
                await trio.sleep(program.unit * program.rng.random())

    async def finish(self, door: Door) -> None:
        """See that programs go on when there is no trouble; then judge all blocks."""
        unit = door.world.setting.timeouts.leader_heartbeat_timeout
        self.stage.patient = True
        usual = [use for use in USES if use is not take_job for _ in range(PROGRAMS_IN_CALM)]
        await self._go_on(door, usual, CALM_TIMEOUTS * unit)
        # Leases of the dead have ended then.
        await self._go_on(door, [drain], CALM_TIMEOUTS * unit)
        await trio.sleep((max(TTL_TIMEOUTS) + SETTLE_TIMEOUTS) * unit)
        self.stage.patient = False
        self.stage.judge()

    async def _go_on(self, door: Door, uses: Sequence[Use], seconds: float) -> None:
        """Have some programs use recipes, each once."""
        left = [use.__name__ for use in uses]
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                for use in uses:
                    nursery.start_soon(self._use_once, door, use, left)
        if left:
            raise ViolationError(f"Recipes.Live: nobody gets a turn although nothing fails: {left}")

    async def _use_once(self, door: Door, use: Use, left: list[str]) -> None:
        async def main(program: Program) -> None:
            async with self._connect(program, once=True) as kv:
                while True:
                    # Clients are impatient at times, and a lease is short: some are lost even so.
                    with suppress(LeaseLostError, RequestError):
                        await use(self.stage, program, kv)
                        left.remove(use.__name__)
                        return

        async with trio.open_nursery() as nursery:
            await Program(next(self._numbers), door, door.world.pauses, nursery).run(main)
            nursery.cancel_scope.cancel()
