"""Faults of the network: cuts of all shapes, slowness, broken and half-broken connections.

All of these the cluster must survive in any combination: nothing that was acknowledged is lost. It
must serve again when a quorum can talk to each other both ways.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ...transport.testing.direction import Pace
from .processes import ask

if TYPE_CHECKING:
    from collections.abc import Callable

    from .context import FaultContext


async def cut(n: FaultContext) -> None:
    """Cut the way from one member to another, one way or both."""
    one, other = n.pair()
    cut_for_a_while(n, one, other)
    if n.rng.random() < 0.5:
        cut_for_a_while(n, other, one)


def cut_for_a_while(n: FaultContext, one: int, other: int, seconds: float | None = None) -> None:
    """Cut one way, and heal it after so long, or after a while of its own."""
    route = n.world.name(one), n.world.name(other)
    n.world.network.cut(*route, both=False)
    lasts = n.a_while() if seconds is None else seconds
    n.later(lasts, lambda: n.heal(*route))


async def isolate(n: FaultContext) -> None:
    """Cut a member off from all others; leaders more often, and perhaps one way only."""
    leaders = n.world.leaders()
    victim = n.rng.choice(leaders) if leaders and n.rng.random() < 0.5 else n.anyone()
    isolate_it(n, victim)


def isolate_it(n: FaultContext, victim: int) -> None:
    """Cut that member off; the ways heal together, or one by one."""
    way = n.rng.choice(("both", "both", "deaf", "mute"))
    together = n.a_while() if n.rng.random() < 0.5 else None
    for other in n.world.others(victim):
        if way != "mute":
            cut_for_a_while(n, other, victim, together)
        if way != "deaf":
            cut_for_a_while(n, victim, other, together)


async def strand(n: FaultContext) -> None:
    """Cut a leader off until the other members may have pruned the log that it is missing.

    It still appends something, which nobody else has.
    """
    leaders = n.world.leaders()
    if not leaders or n.stranded:
        return
    victim, seconds = n.rng.choice(leaders), n.unit * n.rng.uniform(8.0, 16.0)
    n.stranded.append(victim)
    n.world.isolate(victim)

    def let_go() -> None:
        n.stranded.clear()
        for other in n.world.others(victim):
            n.world.network.heal(n.world.name(victim), n.world.name(other))

    n.later(seconds, let_go)
    n.spawn(ask, n, victim, "snapshot")
    n.spawn(_have_the_others_prune, n, victim, seconds)


async def _have_the_others_prune(n: FaultContext, victim: int, seconds: float) -> None:
    for _ in range(3):
        await trio.sleep(0.3 * seconds)
        others = [i for i in n.world.running() if i != victim and not n.world.hosts[i].paused]
        if others:
            await ask(n, n.rng.choice(others), "snapshot")


async def partition(n: FaultContext) -> None:
    """Split the members into two groups."""
    one = n.rng.sample(n.ids, n.rng.randint(1, len(n.ids) // 2))
    seconds = n.a_while()
    for member in one:
        for other in n.world.others(*one):
            cut_for_a_while(n, member, other, seconds)
            cut_for_a_while(n, other, member, seconds)


async def mend(n: FaultContext) -> None:
    """Undo the cuts between two members, or all; what stalled arrives then."""
    if n.rng.random() < 0.5:
        n.world.mend()
        for victim in n.stranded:
            n.world.isolate(victim)
    else:
        one, other = n.pair()
        n.heal(n.world.name(one), n.world.name(other))
        n.heal(n.world.name(other), n.world.name(one))


async def clog(n: FaultContext) -> None:
    """Hold up all that goes one way for a short while: it arrives late, and all at once."""
    one, other = n.pair()
    cut_for_a_while(n, one, other, n.unit * n.rng.choice((0.02, 0.2, 0.9)) * n.rng.random())


async def swizzle(n: FaultContext) -> None:
    """Clog some members one after the other, and let them go in another order (FoundationDB)."""
    some = n.rng.sample(n.ids, n.rng.randint(1, len(n.ids)))
    for place, member in enumerate(some):
        begin = n.unit * 0.2 * place
        length = n.unit * (0.5 + 2.0 * n.rng.random())
        n.later(begin, _clog_all(n, member, length))


def _clog_all(n: FaultContext, member: int, seconds: float) -> Callable[[], None]:
    def clog_all() -> None:
        for other in n.world.others(member):
            cut_for_a_while(n, member, other, seconds)
            cut_for_a_while(n, other, member, seconds)

    return clog_all


async def slow_link(n: FaultContext) -> None:
    """Make the way between two members slow: late, irregular, or narrow."""
    one, other = n.pair()
    usual = n.world.setting.latency
    pace = n.rng.choice(
        (
            Pace(n.unit * 0.3 * n.rng.random(), usual),
            Pace(usual, n.unit * n.rng.random()),
            Pace(usual, usual, n.rng.choice((2e3, 2e4, 2e5)) / n.unit),
        )
    )
    network, both = n.world.network, n.rng.random() < 0.5
    route = n.world.name(one), n.world.name(other)
    network.set_pace(*route, pace, both=both)
    n.later(n.a_while(), lambda: network.set_pace(*route, None, both=both))


async def reset(n: FaultContext) -> None:
    """Break all connections between two members; what is under way is lost."""
    one, other = n.pair()
    n.world.network.break_links(n.world.name(one), n.world.name(other))


def reset_it(n: FaultContext, victim: int) -> None:
    """Break all connections of a member."""
    for other in n.world.others(victim):
        n.world.network.break_links(n.world.name(victim), n.world.name(other))


async def half_break(n: FaultContext) -> None:
    """Break connections at one end only: that dials anew, while what it had sent still arrives."""
    one, other = n.pair()
    n.world.network.half_break(n.world.name(one), n.world.name(other))


async def refuse(n: FaultContext) -> None:
    """Have a machine refuse new connections for a while, as if its member were gone."""
    one = n.anyone()
    n.world.network.refuse(n.world.name(one))
    seconds = n.unit * n.rng.random() * 3
    n.later(seconds, lambda: n.world.network.refuse(n.world.name(one), refused=False))


async def disconnect(n: FaultContext) -> None:
    """Have a member close its link to another, which is dialled anew: a duplicate for a moment."""
    one, other = n.pair()
    host = n.world.hosts[one]
    if host.member is not None and not host.paused:
        host.member.links.disconnect(other)
