"""The hunt for a mutant: one seed after the other, until a check fails."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from quorate.simulation import Observer, Plan, run, simulate
from quorate.simulation.ledger import open_ledgers
from quorate.simulation.plan import RAM_DISK
from quorate.simulation.watching.facts import Settled
from tests.simulation.hazards.harm import harm

if TYPE_CHECKING:
    from tests.simulation.mutants.catalogue import Mutant, Schedule

HOURS = 0.02


@attrs.frozen
class Found:
    """Where a mutant was found.

    Args:
        seed: seed of the run; None if its schedule found it.
        violation: the check that failed.
    """

    seed: int | None
    violation: str


def hunt(mutant: Mutant, members: int = 3) -> Found | None:
    """Hunt a mutant; None if it survives.

    Args:
        mutant: the mutant.
        members: number of members.
    """
    with pytest.MonkeyPatch.context() as patch:
        mutant.change(patch)
        if mutant.schedule is not None:
            wrong = play(mutant.schedule, mutant.members)
            return Found(None, wrong[0]) if wrong else None
        for seed in sorted(range(mutant.seeds), key=lambda seed: seed != mutant.first):
            outcome = simulate(Plan(seed, members, HOURS))
            if outcome.violation is not None:
                kind = outcome.violation.partition(":")[0]
                assert kind not in {"TypeError", "AttributeError"}, f"{mutant.name} is broken"
                return Found(seed, outcome.violation)
    return None


def play(schedule: Schedule, members: int = 3) -> list[str]:
    """Play a schedule; return the checks that failed, and the harm."""
    parent = RAM_DISK if RAM_DISK.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="quorate-", dir=parent) as directory:
        return run(_play, schedule, Path(directory), members, seed=0)


async def _play(schedule: Schedule, directory: Path, members: int) -> list[str]:
    observer = Observer([*range(members)], fatal=False)
    async with open_ledgers(directory, members, observer=observer, contain=True) as stage:
        try:
            with trio.CancelScope() as scope:
                # What follows the first violation says nothing more, and may take long.
                stage.after_every_event(lambda _: scope.cancel() if observer.violations else None)
                await schedule(stage)
            if scope.cancelled_caught:
                return observer.violations
            (leader,) = stage.leaders()
            end = stage.hosts[leader].running.status().applied_position
            observer.tell(Settled(leader, end))
        except (AssertionError, trio.TooSlowError) as wrong:
            return [*observer.violations, str(wrong) or "the schedule does not come to its end"]
        return [*observer.violations, *harm(stage)]
