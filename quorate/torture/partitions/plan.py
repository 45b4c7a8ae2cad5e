"""Runs a cluster with partitions under faults while slots move, and checks what must hold.

Machines with their members run as processes. Clients work on keys of all slots. Members, metadata
members and whole machines are killed and stand still; slots move, moves are aborted, leaders are
transferred, and in the middle all partitions are split. When all that is over:

- no move is under way, nothing is stale, and the map says who owns what;
- the history, with a last read of every key, is linearizable for each key;
- each acknowledged number is there once, in order, and keys that never changed are unchanged;
- each member's own state equals the last read of its slots, and holds no other key;
- the logs of each group are equal and sound;
- the logs of all partitions together: each slot has one owner at each epoch, who took it over
  where the one before had frozen it;
- no process ended by itself, and every client was answered after each fault.
"""

from __future__ import annotations

import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import attrs
import trio

from ...errors import QuorateError, leaves
from ...histories.history import HistoryWriter
from ...local.cluster import free_client_port
from ...local.survey import StuckError
from ...machine.partition_survey import survey_groups
from ...machine.reach import open_groups
from ..plan import check_history
from .checks import calm, check_members, owners
from .clients import OURS, THEIRS, Load, opened
from .faults import Nemesis, StandstillError
from .logs import check_logs
from .machines import Machines
from .moves import Movers
from .numbers import BALLAST, COUNTING, Numbers, ballast, fill

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from ...machine.reach import RemoteGroups

__all__ = ["Outcome", "Plan", "torture_partitions"]

FOUND_SECONDS: Final = 180.0
END_SECONDS: Final = 120.0
"""How long clients and orders may take to their end."""
_MACHINE_PORTS: Final = 9


@attrs.frozen
class Plan:
    """The plan of a run.

    Args:
        directory: for the machines.
        history: the file for the history.
        seconds: how long there are faults.
        partitions: how many there are in the beginning; twice as many after the split.
        seed: of the faults, the orders, and the clients' choices.
    """

    directory: Path
    history: Path
    seconds: float
    partitions: int
    seed: int


@attrs.frozen
class Outcome:
    """The outcome of a run. It passed if there are no violations.

    Args:
        faults: number of processes or machines that each fault has hit.
        moves: what was ordered, and how moves ended.
        operations: number of operations by outcome.
        numbers: how many numbers were acknowledged.
        longest_pause: the longest time without an answer for one client, in seconds.
        keys: how many keys the history has.
        committed: bytes of all logs.
        steps: steps of moves in the logs.
        violations: descriptions of all violations.
    """

    faults: dict[str, int]
    moves: dict[str, int]
    operations: dict[str, int]
    numbers: int
    longest_pause: float
    keys: int
    committed: int
    steps: int
    violations: tuple[str, ...]


async def torture_partitions(plan: Plan, tell: Callable[[str], None]) -> Outcome:
    """Run a plan.

    Args:
        plan: the plan.
        tell: called with a line about each fault, order, and part of the check.

    Raises:
        OSError: the history cannot be written.
    """
    with plan.history.open("wb") as file:
        async with _open_machines(plan) as (machines, groups):
            load = Load(machines.client_ports(), HistoryWriter(file), plan.seed, tell)
            numbers = Numbers(load)
            movers = Movers(groups, _rng(plan, "moves"), tell)
            clients = OURS + THEIRS + COUNTING
            nemesis = Nemesis(machines, load, clients, _rng(plan, "nemesis"), tell)
            violations = await _make_trouble(plan, nemesis, movers, numbers, groups)
    violations += [*load.violations, *machines.found, *machines.ends()]
    tell("checking the logs of all groups")
    committed, steps, found = check_logs(machines)
    tell(f"checking the history of {load.outcomes.total():,} operations")
    report = check_history(plan.history)
    violations += [*found, *map(str, report.trouble)]
    return Outcome(
        faults={str(fault): count for fault, count in nemesis.counts.items()},
        moves=dict(movers.counts),
        operations={status: load.outcomes[status] for status in ("ok", "fail", "unknown")},
        numbers=numbers.acknowledged,
        longest_pause=load.longest_pause,
        keys=len(report.keys),
        committed=committed,
        steps=steps,
        violations=tuple(violations),
    )


def _rng(plan: Plan, name: str) -> random.Random:
    return random.Random(f"{plan.seed}/{name}")  # noqa: S311 - no secret


@asynccontextmanager
async def _open_machines(plan: Plan) -> AsyncGenerator[tuple[Machines, RemoteGroups]]:
    """Run all machines, until the end of the block stops them in order."""
    machines = Machines(plan.directory, plan.partitions, free_client_port(_MACHINE_PORTS))
    try:
        await machines.start()
        async with open_groups(lambda: machines.map) as groups:
            yield machines, groups
        await machines.stop()
    finally:
        await machines.kill()


async def _make_trouble(
    plan: Plan, nemesis: Nemesis, movers: Movers, numbers: Numbers, groups: RemoteGroups
) -> list[str]:
    """Run clients, faults and orders, then check the cluster; return the violations."""
    load, tell = nemesis.load, nemesis.tell
    found: list[str] = []
    try:
        await _founded(nemesis.machines)
        tell("founded; writing keys that never change")
        await fill(load)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load.run)
            nursery.start_soon(numbers.run)
            nursery.start_soon(movers.run)
            await nemesis.progress()
            await nemesis.run(plan.seconds / 2)
            movers.split_due = True
            await nemesis.run(plan.seconds / 2)
            tell("the faults are over")
            movers.ends.set()
            load.ends.set()
            nursery.cancel_scope.deadline = trio.current_time() + END_SECONDS
        found += await _check(nemesis, movers, numbers, groups)
    except* (StandstillError, QuorateError, OSError) as group:
        found += [f"{type(each).__name__}: {each}" for each in leaves(group)]
    return found


async def _founded(machines: Machines) -> None:
    """Wait until all partitions have a leader and their first slots.

    Raises:
        StuckError: that takes too long.
    """
    with trio.move_on_after(FOUND_SECONDS):
        while True:
            seen = await survey_groups(machines.map, figures=False)
            if all(each.is_ready for each in seen):
                return
            await trio.sleep(0.5)
    raise StuckError(f"not all partitions were founded after {FOUND_SECONDS:g} s")


async def _check(
    nemesis: Nemesis, movers: Movers, numbers: Numbers, groups: RemoteGroups
) -> list[str]:
    """Check the cluster while it runs, with no faults and no load.

    Raises:
        RequestError: a group does not answer.
    """
    load, machines, tell = nemesis.load, nemesis.machines, nemesis.tell
    tell("waiting until no move is under way, and nothing is stale")
    found = await calm(movers, groups)
    tell("reading every key, then at every member")
    async with opened(load.ports) as kv:
        values = await load.read_all(kv)
        others = [*numbers.keys, *(ballast(number)[0] for number in range(BALLAST))]
        values |= await kv.get_many(others)
    found += numbers.check(values)
    owned = await owners(await movers.newest(), groups)
    return found + await check_members(machines, owned, values)
