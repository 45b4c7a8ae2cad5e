"""The nemesis: injects faults into a cluster, one after another, by a seeded choice.

Most faults come at random times. Some come at the moment when a member enters a state, more often a
leader's state: a fault between a decision and its consequences does the most harm. :mod:`.faults`
lists the faults, and says which of them the cluster must survive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from ..errors import leaves
from ..node.protocol.states import LEADER_STATES
from .faults import BETWEEN_MEMBERS, FAULTS, STRIKES
from .faults.context import FaultContext
from .faults.disks import expected

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from ..node import Service
    from .observer import Observer
    from .world import World

PAUSES: Final = (0.02, 0.2, 1.0, 3.0)
"""Maximum pauses between two faults, in heartbeat timeouts; one of them is chosen each time."""

AT_A_LEADERS_STATE: Final = 0.15
AT_ANY_STATE: Final = 0.02
AT_A_CHANGE: Final = 0.1
"""Probability of a fault at the moment when a member's configuration is another one, more of them
at a leader. Larger: few changes come to their end."""


class Nemesis:
    """Injects faults into a world.

    Args:
        world: the cluster.
        observer: records what happens in it.
        rng: chooses the faults, their times and their victims.
        weights: relative probability of each fault, by name.

    Attributes:
        context: the cluster as the faults see it.
    """

    def __init__(
        self,
        world: World[Service],
        observer: Observer,
        rng: random.Random,
        weights: Mapping[str, float],
    ) -> None:
        self.context = FaultContext(world, observer, rng)
        self.world = world
        self.rng = rng
        self._names = [name for name in FAULTS if weights.get(name)]
        self._weights = [weights[name] for name in self._names]
        self._strikes = [name for name in STRIKES if weights.get(f"{name} at a transition")]
        self._seen = 0
        self._versions: dict[int, int] = {}
        self._marked: list[int] = []
        self._mark = trio.Event()
        world.after_every_event(self._watch)

    async def run(self, seconds: float) -> None:
        """Inject faults for `seconds`, then undo all faults that can be undone.

        Raises:
            BaseException: a member failed for a reason other than its faults.
        """
        end = trio.current_time() + seconds
        async with trio.open_nursery() as self.context.nursery:
            try:
                await self._rage(end)
            finally:  # a trap that springs later would use a closed nursery
                self._disarm()
            self.context.nursery.cancel_scope.cancel()
        self.context.nursery = None
        self.calm()

    async def _rage(self, end: float) -> None:
        """Inject one fault after the other until `end`."""
        while self._names and trio.current_time() < end:
            with trio.move_on_after(
                self.rng.choice(PAUSES) * self.context.unit * self.rng.random()
            ):
                await self._mark.wait()
            await self._strike()
            self.check_failures()
        await trio.sleep_until(end)

    def _disarm(self) -> None:
        for host in self.world.hosts.values():
            host.disarm()

    def calm(self) -> None:
        """Undo every fault except dead members and damaged recordings."""
        self._marked.clear()
        self.context.stranded.clear()
        self._disarm()
        for i, host in self.world.hosts.items():
            self.world.resume(i)
            host.disk.mend()
            host.clock.come_back()
            host.disk.latency = self.world.setting.fsync
            self.world.network.refuse(host.name, refused=False)
            for other in self.world.others(i):
                self.world.network.set_pace(host.name, self.world.name(other), None)
        self.world.mend()

    def check_failures(self) -> None:
        """Check why members have failed.

        Raises:
            BaseException: a member failed that must not.
        """
        for member, failure in list(self.world.failures.items()):
            del self.world.failures[member]
            if not any(expected(self.context, member, each) for each in leaves_and_causes(failure)):
                raise failure
            self.context.counts["stopped itself"] += 1

    def _watch_change(self, member: int) -> None:
        """Choose a member for a fault at the moment when its configuration changes."""
        now = self.context.observer.known.in_force.get(member)
        version = now.version if now is not None else 0
        before = self._versions.get(member, 0)
        if version == before:
            return
        self._versions[member] = version
        leads = member in self.context.observer.known.leads
        likely = AT_A_CHANGE * (2 if leads else 1)
        if self.context.nursery is not None and self._strikes and self.rng.random() < likely:
            self._marked.append(member)
            self._mark.set()

    def _watch(self, member: int) -> None:
        """Choose some members for a fault at the moment when they enter a state."""
        self._watch_change(member)
        for transition in self.world.transitions[self._seen :]:
            leads = transition.after in LEADER_STATES
            likely = AT_A_LEADERS_STATE if leads else AT_ANY_STATE
            if self.context.nursery is not None and self._strikes and self.rng.random() < likely:
                self._marked.append(transition.member_id)
                self._mark.set()
        self._seen = len(self.world.transitions)

    async def _strike(self) -> None:
        self._mark = trio.Event()
        if self._marked:
            marked, self._marked = self._marked[-1], []
            name = self.rng.choice(self._strikes)
            self._count(f"{name} at a transition", marked)
            STRIKES[name](self.context, marked)
        else:
            name = self.rng.choices(self._names, self._weights)[0]
            if name in BETWEEN_MEMBERS and len(self.context.ids) == 1:
                return
            self._count(name)
            await FAULTS[name](self.context)

    def _count(self, name: str, *targets: int) -> None:
        self.context.count(name)
        self.world.trace.tell("fault", what=name, targets=list(targets))


def leaves_and_causes(failure: BaseException) -> list[BaseException]:
    """Yield the errors in a tree of groups, and their causes."""
    found = [*leaves(failure)]
    for error in found:
        if error.__cause__ is not None:
            found += (each for each in leaves(error.__cause__) if each not in found)
    return found
