"""`make crash`: the long crash test."""

import shutil
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
    directory = Path(tempfile.mkdtemp(prefix="quorate-crash-"))
    report = await crash_test(
        directory, kills=kills, seconds=seconds, seed=seed, members=members, tell=console.print
    )
    console.print(str(report))
    if not report.violations:
        shutil.rmtree(directory)
        return 0
    for violation in report.violations:
        console.print("VIOLATION:", violation)
    arguments = f"--kills {kills} --seconds {seconds:g} --seed {seed} --members {members}"
    console.print(f'stores and logs: {directory}; again: make crash ARGS="{arguments}"')
    return 1


app = cyclopts.App(help_format="markdown", backend="trio", result_action="return_value")
app.default(main)
sys.exit(app())
