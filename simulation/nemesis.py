"""The nemesis: does faults to a cluster, one after the other, by a seeded choice.

Most come at random times. Some come at the very moment when a member enters a state, leaders'
states more often: between a decision and its consequences a fault does the most.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import trio

from ..node.states import LEADER_STATES

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable
    from typing import TypeAlias

    from ..node import Service
    from .world import World

    Fault: TypeAlias = Callable[["Nemesis"], Awaitable[None]]

SLOW_DISKS: Final = (0.001, 0.001, 0.001, 0.02, 0.1, 0.3, 0.7)
PAUSES: Final = (0.01, 0.1, 0.5, 1.5)
"""Longest pauses between two faults, in seconds; one of them is chosen each time."""


class Nemesis:
    """Does faults to a world.

    Args:
        world: to whom.
        rng: which, when and to whom.

    Attributes:
        counts: how often each fault was done.
    """

    def __init__(self, world: World[Service], rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self.counts: Counter[str] = Counter()
        self._idle = True
        self._seen = 0
        self._marked: list[int] = []
        self._mark = trio.Event()
        world.after_every_event(self._watch)

    async def run(self, seconds: float) -> None:
        """Do faults for that long."""
        self._idle = False
        end = trio.current_time() + seconds
        while trio.current_time() < end:
            with trio.move_on_after(self.rng.choice(PAUSES) * self.rng.random()):
                await self._mark.wait()
            await self._strike()
        self._idle = True

    def _watch(self, _member: int) -> None:
        """Mark some members for a fault at the very moment when they enter a state."""
        for transition in self.world.transitions[self._seen :]:
            likely = 0.15 if transition.after in LEADER_STATES else 0.02
            if not self._idle and self.rng.random() < likely:
                self._marked.append(transition.member_id)
                self._mark.set()
        self._seen = len(self.world.transitions)

    async def _strike(self) -> None:
        if self._marked:
            self._mark = trio.Event()
            marked, self._marked = self._marked[-1], []
            name, fault = self.rng.choice(tuple(AT_A_MEMBER.items()))
            self._count(name, marked)
            await fault(self, marked)
        else:
            names = tuple(FAULTS)
            name = self.rng.choices(names, [FAULTS[each][0] for each in names])[0]
            self._count(name)
            await FAULTS[name][1](self)

    def _count(self, name: str, *details: int) -> None:
        self.counts[name] += 1
        self.world.trace.tell("fault", -1, name, *details)

    @property
    def ids(self) -> tuple[int, ...]:
        """All members."""
        return tuple(self.world.hosts)

    def anyone(self) -> int:
        """Choose a member."""
        return self.rng.choice(self.ids)

    def pair(self) -> tuple[int, int]:
        """Choose two members."""
        one, other = self.rng.sample(self.ids, 2)
        return one, other


# --- processes ------------------------------------------------------------------------------------


async def kill(n: Nemesis) -> None:
    """Cut a member's power; mostly only while a quorum is left, rarely that of all at once."""
    running = n.world.running()
    if len(running) > len(n.ids) // 2 or n.rng.random() < 0.2:
        victims = running if n.rng.random() < 0.05 else running[:0]
        leaders = n.world.leaders()
        if not victims and running:
            biased = leaders and n.rng.random() < 0.5
            victims = [n.rng.choice(leaders if biased else running)]
        await n.world.kill(*victims)


async def revive(n: Nemesis) -> None:
    """Start a member that is gone."""
    gone = [i for i, host in n.world.hosts.items() if host.member is None]
    if gone:
        await n.world.start(n.rng.choice(gone))


async def stop(n: Nemesis) -> None:
    """Stop a member in order."""
    running = n.world.running()
    if len(running) > len(n.ids) // 2:
        victim = n.rng.choice(running)
        await n.world.hosts[victim].running.close()
        await n.world.kill(victim)


# --- the network ----------------------------------------------------------------------------------


async def cut(n: Nemesis) -> None:
    """Cut the way from one member to another, or both ways, or to all others."""
    if n.rng.random() < 0.3:
        n.world.isolate(n.anyone())
        return
    one, other = n.pair()
    n.world.network.cut(f"h{one}", f"h{other}", both=n.rng.random() < 0.5)


async def mend(n: Nemesis) -> None:
    """Undo the cuts between two members, or all."""
    if n.rng.random() < 0.5:
        n.world.mend()
    else:
        one, other = n.pair()
        n.world.network.heal(f"h{one}", f"h{other}")


async def reset(n: Nemesis) -> None:
    """Break all connections between two members."""
    one, other = n.pair()
    n.world.network.break_links(f"h{one}", f"h{other}")


async def disconnect(n: Nemesis) -> None:
    """Have a member close its link to another."""
    one, other = n.pair()
    host = n.world.hosts[one]
    if host.member is not None:
        host.member.core.links.disconnect(other)


# --- disks ----------------------------------------------------------------------------------------


async def slow_disk(n: Nemesis) -> None:
    """Make a disk slow, or fast again."""
    disk = n.world.hosts[n.anyone()].disk
    if disk is not None:
        disk.latency = n.rng.choice(SLOW_DISKS)


# --- at a moment ----------------------------------------------------------------------------------


async def kill_it(n: Nemesis, member: int) -> None:
    """Cut that member's power."""
    if n.world.hosts[member].member is not None:
        await n.world.kill(member)


async def isolate_it(n: Nemesis, member: int) -> None:
    """Cut that member off."""
    n.world.isolate(member)


async def reset_it(n: Nemesis, member: int) -> None:
    """Break all connections of that member."""
    for other in n.world.others(member):
        n.world.network.break_links(f"h{member}", f"h{other}")


FAULTS: Final[dict[str, tuple[int, Fault]]] = {
    "kill": (4, kill),
    "revive": (6, revive),
    "cut": (3, cut),
    "mend": (4, mend),
    "reset": (3, reset),
    "disconnect": (2, disconnect),
    "slow disk": (3, slow_disk),
    "stop": (1, stop),
}
"""What may be done at any time, with how likely it is."""

AT_A_MEMBER: Final[dict[str, Callable[[Nemesis, int], Awaitable[None]]]] = {
    "kill at a transition": kill_it,
    "isolate at a transition": isolate_it,
    "reset at a transition": reset_it,
}
"""What may be done to a member at the moment when it enters a state."""
