"""`make crash`: the long crash test."""

import sys
import tempfile
from pathlib import Path

import cyclopts
from rich.console import Console

from .harness import crash_test


async def main(*, kills: int = 30, seconds: float = 90.0, seed: int = 1, members: int = 3) -> int:
    """Kill and pause members of a cluster under load, and check that nothing is lost.

    Parameters
    ----------
    kills
        How many kills at least.
    seconds
        How long the trouble lasts at least.
    seed
        Of the schedule of faults.
    members
        How many members.
    """
    console = Console(highlight=False, markup=False, soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="quorate-crash-") as directory:
        report = await crash_test(
            Path(directory),
            kills=kills,
            seconds=seconds,
            seed=seed,
            members=members,
            tell=console.print,
        )
    console.print(str(report))
    for violation in report.violations:
        console.print("VIOLATION:", violation)
    if report.violations:
        arguments = f"--kills {kills} --seconds {seconds:g} --seed {seed} --members {members}"
        console.print(f'again: make crash ARGS="{arguments}"')
    return 1 if report.violations else 0


app = cyclopts.App(help_format="markdown", backend="trio", result_action="return_value")
app.default(main)
sys.exit(app())
