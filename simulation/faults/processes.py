"""Faults of processes and machines: they die at any moment, stand still, and come back.

All of these the cluster must survive, however many members they befall at a time: nothing that was
acknowledged is lost. It must serve again when a quorum runs and can talk to each other.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import trio

from ...errors import RequestError
from ..machines.disk import Fate

if TYPE_CHECKING:
    from .context import FaultContext

MOST_STEPS = 400


async def kill(n: FaultContext) -> None:
    """Kill a member's process; mostly only while a quorum is left, rarely that of all at once."""
    dead = victims(n)
    await n.world.kill(*dead)
    revive_later(n, dead)


async def cut_power(n: FaultContext) -> None:
    """Cut the power of a member's machine, amidst a write perhaps."""
    dead = victims(n)
    await n.world.cut_power(*dead, fate=fate(n))
    revive_later(n, dead)


def revive_later(n: FaultContext, dead: list[int]) -> None:
    """Start members again after a while, each after its own."""

    async def start(victim: int, seconds: float) -> None:
        await trio.sleep(seconds)
        host = n.world.hosts[victim]
        await host.gone()
        if host.stopped:
            await n.world.start(victim)

    for victim in dead:
        n.spawn(start, victim, n.a_while())


def victims(n: FaultContext) -> list[int]:
    """Choose the members that die: mostly one, rarely all, leaders more often."""
    running = n.world.running()
    if not running or (len(running) <= len(n.ids) // 2 and n.rng.random() >= 0.2):
        return []
    if n.rng.random() < 0.05:
        return running
    leaders = n.world.leaders()
    return [n.rng.choice(leaders if leaders and n.rng.random() < 0.5 else running)]


def fate(n: FaultContext) -> Fate:
    """Choose what a power cut leaves of the write that is under way."""
    return n.rng.choice((Fate.LOST, Fate.WRITTEN, Fate.TORN))


async def crash_at_some_step(n: FaultContext) -> None:
    """Have a member die before one of its next steps, at whatever it waits for there."""
    for victim in victims(n)[:1]:
        crash_soon(n, victim, n.rng.randrange(MOST_STEPS))


def crash_soon(n: FaultContext, victim: int, steps: int) -> None:
    """Kill a member after `steps` steps of its tasks."""
    host, power, left = n.world.hosts[victim], n.rng.random() < 0.5, fate(n)

    def crash() -> None:
        if power:
            n.world.trace.tell("powerless", victim, fate=left.value)
        else:
            n.world.trace.tell("killed", victim)
        if power:
            host.cut_power(left)
        else:
            host.kill()
        revive_later(n, [victim])

    host.crash_after(steps, crash)


async def revive(n: FaultContext) -> None:
    """Start a member that is gone, perhaps all of them: also those that have stopped themselves."""
    gone = [i for i, host in n.world.hosts.items() if host.member is None and n.may_start(i)]
    if gone:
        chosen = gone if n.rng.random() < 0.2 else [n.rng.choice(gone)]
        for one in chosen:
            if n.may_start(one):  # by now another start may have come first
                await n.world.start(one)


async def stop(n: FaultContext) -> None:
    """Stop a member in order."""
    running = [i for i in n.world.running() if not n.world.hosts[i].paused]
    if len(running) > len(n.ids) // 2:
        n.spawn(_stop, n, n.rng.choice(running))


async def _stop(n: FaultContext, victim: int) -> None:
    await n.world.stop(victim)
    revive_later(n, [victim])


async def transfer(n: FaultContext) -> None:
    """Have an operator ask for another leader."""
    running = [i for i in n.world.running() if not n.world.hosts[i].paused]
    if running:
        n.spawn(ask, n, n.rng.choice(running), f"transfer {n.anyone()}")


async def snapshot(n: FaultContext) -> None:
    """Have an operator ask for a snapshot, behind which log may be dropped."""
    running = [i for i in n.world.running() if not n.world.hosts[i].paused]
    if running:
        n.spawn(ask, n, n.rng.choice(running), "snapshot")


async def ask(n: FaultContext, at: int, words: str) -> None:
    """Send an operator's request to a member, and ignore its outcome."""
    # This task may begin behind the death of the member, in the same moment.
    if (member := n.world.hosts[at].member) is None:
        return
    with contextlib.suppress(RequestError), trio.move_on_after(n.unit):
        await member.control(words)


async def pause(n: FaultContext) -> None:
    """Hold a process still, and let it go on after a while, as if nothing had happened."""
    for victim in victims(n)[:1]:
        pause_for_a_while(n, victim)


def pause_for_a_while(n: FaultContext, victim: int) -> None:
    """Pause a process: for less than a heartbeat interval, or for many heartbeat timeouts."""
    seconds = n.unit * n.rng.choice((0.05, 0.5, 1.1, 3.0, 8.0)) * (0.5 + n.rng.random())
    n.world.pause(victim)
    n.later(seconds, lambda: n.world.resume(victim))
