"""A simulated run from its seed to its verdict."""

from __future__ import annotations

import random
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import attrs
import trio

from . import scheduler
from .ledger import Ledger
from .storm import Storm
from .trace import Trace
from .world import Setting, open_world

if TYPE_CHECKING:
    from collections.abc import Mapping
    from io import TextIOBase

    from .world import World

RAM_DISK: Final = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
SECONDS_PER_HOUR: Final = 3600.0


@attrs.frozen
class Plan:
    """What is run: the same plan is always the same run.

    Args:
        seed: of everything that is left to chance.
        members: how many.
        hours: virtual hours.
    """

    seed: int
    members: int = 3
    hours: float = 0.02

    @property
    def command(self) -> str:
        """The command line that repeats it."""
        return (
            f"quorate simulate --seed {self.seed} --members {self.members} --hours {self.hours:g}"
        )


@attrs.frozen
class Outcome:
    """What came of it.

    Args:
        plan: what was run.
        digest: of everything that happened; the same in every run of this plan.
        virtual_seconds: how long it lasted in there.
        events: how many things happened.
        elections: how many canvasses were begun.
        terms: how many terms there were.
        operations: how many operations of clients were checked.
        acknowledged: how many writes were acknowledged.
        faults: how often each fault was done.
        violation: what did not hold, None if all held.
        story: the last transitions of each member, and where the violation was found.
    """

    plan: Plan
    digest: str
    virtual_seconds: float
    events: int
    elections: int
    terms: int
    operations: int
    acknowledged: int
    faults: Mapping[str, int]
    violation: str | None = None
    story: str = ""


def simulate(plan: Plan, trace_file: TextIOBase | None = None) -> Outcome:
    """Run a plan; a violation is part of the outcome, not an error.

    Args:
        plan: what to run.
        trace_file: where every event is written, see :mod:`.trace`.
    """
    parent = RAM_DISK if RAM_DISK.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="quorate-", dir=parent) as directory:
        return scheduler.run(_run, plan, Path(directory), trace_file, seed=plan.seed)


async def _run(plan: Plan, directory: Path, trace_file: TextIOBase | None) -> Outcome:
    rng = random.Random(f"{plan.seed}/setting")
    setting = Setting(
        members=plan.members,
        seed=plan.seed,
        latency=rng.choice((0.0005, 0.005, 0.02)),
        fsync=rng.choice((0.001, 0.01)),
    )
    trace = Trace(trace_file, attrs.asdict(plan))
    violation, where = None, ""
    storms: list[Storm] = []
    try:
        async with open_world(directory, Ledger, setting, trace) as world:
            storms.append(Storm(world, plan.seed))
            await storms[0].run(plan.hours * SECONDS_PER_HOUR)
    except Exception as failure:  # noqa: BLE001 - whatever it was, it is the finding
        leaf = _first_leaf(failure)
        violation, where = (
            f"{type(leaf).__name__}: {leaf}",
            "".join(traceback.format_exception(leaf)),
        )
    (storm,) = storms
    return _outcome(plan, storm, trace, violation, where)


def _outcome(plan: Plan, storm: Storm, trace: Trace, violation: str | None, where: str) -> Outcome:
    world = storm.world
    return Outcome(
        plan=plan,
        digest=trace.digest,
        virtual_seconds=trio.current_time(),
        events=trace.count,
        elections=sum(each.after.name == "CANVASS" for each in world.transitions),
        terms=max((each.term for each in world.transitions), default=-1) + 1,
        operations=len(world.acked) + storm.clients.reads,
        acknowledged=len(world.acked),
        faults=dict(sorted(storm.nemesis.counts.items())),
        violation=violation,
        story="" if violation is None else _story(world) + where,
    )


def _story(world: World[Ledger]) -> str:
    """Tell the last transitions of each member."""
    lines: list[str] = []
    for i in world.hosts:
        lines.append(f"member {i}:")
        lines += [
            f"  {each.at:12.6f} {each.before.name} -> {each.after.name}: {each.reason} "
            f"(term {each.term}, log {each.log_end.term}/{each.log_end.position}, "
            f"commit {each.commit_position})"
            for each in [t for t in world.transitions if t.member_id == i][-8:]
        ]
    return "\n".join(lines) + "\n"


def _first_leaf(failure: BaseException) -> BaseException:
    while isinstance(failure, BaseExceptionGroup):
        failure = cast("BaseExceptionGroup[BaseException]", failure).exceptions[0]
    return failure
