"""Runs all benches one after the other, then makes the tables of NOTEBOOK.md and the plots.

Each bench is its own process, so that a failure does not end the others. Failed benches are named
at the end. Some benches are run by hand only: those that need other products (`peers.py`,
`etcd.py`, `spark.py`), one that takes hours (`steady.py`), and `failover.py`, which
docs/election.md also quotes.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Final

from cyclopts import App, Parameter

from bench.lib.harness import USUAL, Common

ROOT: Final = Path(__file__).parents[1]
LONGEST_SECONDS: Final = 1800.0
"""A bench that takes longer is regarded as hung, and ended."""

BENCHES: Final[tuple[tuple[str, ...], ...]] = (
    ("runs.cluster",),
    ("runs.anatomy",),
    ("runs.lone_set",),
    ("runs.growth", "--by", "members", "values", "clients"),
    ("runs.growth_log",),
    ("runs.overload",),
    ("runs.embedded",),
    ("runs.catchup",),
    ("runs.restart",),
    ("runs.snapshot",),
    ("runs.members",),
    ("runs.storage",),
    ("runs.transport",),
    ("runs.tls",),
    ("runs.client",),
    ("runs.metrics",),
    ("runs.partitions",),
    ("runs.growth", "--by", "keys"),
)

app = App(help_format="markdown", result_action="return_value")


@app.default
def main(
    *,
    options: Common = USUAL,
    only: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")] = (),
) -> int:
    """Run all benches, write their results, and make the tables and plots from them.

    Parameters
    ----------
    only
        Names of benches; all if left out.
    """
    given = ["--quick"] * options.quick + ["--figures", str(options.figures)]
    given += ["--dir", str(options.directory)] * (options.directory is not None)
    failed: list[str] = []
    began = time.perf_counter()
    for script, *arguments in BENCHES:
        if only and script.rpartition(".")[2] not in only:
            continue
        print(f"\n=== {script} {' '.join(arguments)}", flush=True)
        if not _run(script, *arguments, *given):
            failed.append(script)
    if options.figures == USUAL.figures:
        failed += [script for script in ("report.tables", "report.plots") if not _run(script)]
    minutes = (time.perf_counter() - began) / 60
    print(f"\n{minutes:.1f} minutes; failed: {', '.join(failed) or 'none'}")
    return int(bool(failed))


def _run(script: str, *arguments: str) -> bool:
    """Run a module of this package; return whether it succeeded in time."""
    command = [sys.executable, "-m", f"bench.{script}", *arguments]
    try:
        return (
            subprocess.run(command, cwd=ROOT, check=False, timeout=LONGEST_SECONDS).returncode == 0
        )
    except subprocess.TimeoutExpired:
        return False


if __name__ == "__main__":
    sys.exit(app())
