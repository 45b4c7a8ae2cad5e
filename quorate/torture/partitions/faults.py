"""Faults: processes of the cluster are killed, and stand still, by a seeded choice.

They come in episodes, one or two at a time, while slots move. An episode begins only when every
client was answered after the one before: so liveness is checked after each, in all partitions.
"""

from __future__ import annotations

import signal
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

import attrs
import trio

from ...keyvalue.slots.cluster_map import META
from .machines import MACHINES

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncGenerator, Callable, Iterable

    from .clients import Load
    from .machines import Machines

__all__ = ["FAULTS", "Fault", "Nemesis", "StandstillError"]

Fault: TypeAlias = Literal["kill", "machine", "pause", "still machine"]
FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)

_WEIGHTS: Final[dict[Fault, int]] = {"kill": 6, "machine": 2, "pause": 3, "still machine": 1}
_VICTIMS: Final = {"leader": 5, "follower": 2, "majority": 1, "all": 1}
_LENGTHS: Final = (0.2, 0.5, 1.5, 4.0, 8.0)
SECOND_FAULT: Final = 0.3
CALM_SECONDS: Final = (0.5, 4.0)
"""Between two episodes: the shorter ones hit members that have just begun, the longer ones moves
that could end."""
PROGRESS_SECONDS: Final = 120.0
"""How long a client may be without an answer after the faults have ended. An election, a restart of
a supervisor and its members on a busy machine, and the longest pauses of clients take some
seconds each."""
_LOOK_SECONDS: Final = 0.1


class StandstillError(Exception):
    """All processes run, but some client gets no answer."""


@attrs.define(eq=False)
class Nemesis:
    """Injects the faults.

    Args:
        machines: of the cluster.
        load: the clients; they show progress.
        clients: how many there are.
        rng: chooses.
        tell: called with a line about each fault.

    Attributes:
        counts: how many processes, or machines, each fault has hit.
    """

    machines: Machines
    load: Load
    clients: int
    rng: random.Random
    tell: Callable[[str], None]
    counts: Counter[Fault] = attrs.field(factory=Counter["Fault"])

    async def run(self, seconds: float) -> None:
        """Inject faults for some seconds.

        Raises:
            StandstillError: a client got no answer after an episode.
            OSError: a machine can't be started again.
        """
        until = trio.current_time() + seconds
        while trio.current_time() < until:
            await self._episode()
            await self.progress()
            await trio.sleep(self.rng.uniform(*CALM_SECONDS))

    async def progress(self) -> None:
        """Wait until every client was answered from now on.

        Raises:
            StandstillError: that takes too long.
        """
        begin = trio.current_time()
        with trio.move_on_after(PROGRESS_SECONDS):
            while True:
                if not self._waiting(begin):
                    return
                await trio.sleep(_LOOK_SECONDS)
        raise StandstillError(
            f"clients {self._waiting(begin)} had no answer for {PROGRESS_SECONDS:g} s after the "
            "last fault"
        )

    def _waiting(self, begin: float) -> list[int]:
        answered = [number for number, at in self.load.last_ok.items() if at > begin]
        missing = [number for number in self.load.last_ok if number not in answered]
        return missing or ([-1] if len(answered) < self.clients else [])

    async def _episode(self) -> None:
        kinds: list[Fault] = [self._kind()]
        if self.rng.random() < SECOND_FAULT:
            kinds.append(self._kind())
        async with trio.open_nursery() as nursery:
            for kind in kinds:
                nursery.start_soon(self._one, kind, self.rng.choice(_LENGTHS))

    def _kind(self) -> Fault:
        (kind,) = self.rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        return kind

    async def _one(self, kind: Fault, seconds: float) -> None:
        """One fault, from its beginning to its end."""
        if kind in ("machine", "still machine"):
            machine = self.rng.randrange(MACHINES)
            self.tell(f"{kind}: machine {machine} for {seconds:g} s")
            self.counts[kind] += 1
            async with self._down(machine) if kind == "machine" else self._still(machine):
                await trio.sleep(seconds)
            return
        partition = self.rng.choice(self.machines.groups)
        victims = await self._victims(partition)
        name = "metadata" if partition == META else f"partition {partition}"
        self.tell(
            f"{kind}: {name} on machines {victims}" + f" for {seconds:g} s" * (kind != "kill")
        )
        if kind == "kill":
            for machine in victims:
                hit = self.machines.signal_member(machine, partition, signal.SIGKILL)
                self.counts[kind] += hit
            return
        self._signal(victims, partition, signal.SIGSTOP)
        try:
            await trio.sleep(seconds)
        finally:
            self._signal(victims, partition, signal.SIGCONT)

    def _signal(self, victims: Iterable[int], partition: int, number: signal.Signals) -> None:
        for machine in victims:
            hit = self.machines.signal_member(machine, partition, number)
            self.counts["pause"] += hit and number is signal.SIGSTOP

    @asynccontextmanager
    async def _down(self, machine: int) -> AsyncGenerator[None]:
        if self.machines.is_down(machine):
            yield
            return
        self.machines.kill_machine(machine)
        try:
            yield
        finally:
            with trio.CancelScope(shield=True):
                await self.machines.revive_machine(machine)

    @asynccontextmanager
    async def _still(self, machine: int) -> AsyncGenerator[None]:
        self.machines.signal_machine(machine, signal.SIGSTOP)
        try:
            yield
        finally:
            self.machines.signal_machine(machine, signal.SIGCONT)

    async def _victims(self, partition: int) -> list[int]:
        (whom,) = self.rng.choices(list(_VICTIMS), list(_VICTIMS.values()))
        leader = await self.machines.leader(partition)
        everyone = list(range(MACHINES))
        self.rng.shuffle(everyone)
        match whom:
            case "leader":
                return everyone[:1] if leader is None else [leader]
            case "follower":
                return [each for each in everyone if each != leader][:1]
            case "majority":
                return everyone[: MACHINES // 2 + 1]
            case _:
                return everyone
