"""The cluster from outside: three members, `redis-benchmark`, durable commits, this machine.

Each line of the table is one kind of load: SET or GET, a number of clients, and the number of
commands that each sends together (pipeline). A run lasts a few seconds; a short run before it
determines its number of requests. The table shows the median of several runs. Runs alternate
between the loads, so that a noisy minute affects all of them alike. Next to the rate are the
latencies from `redis-benchmark`, and the processor time of leader and followers for one operation,
from /proc. The last columns are operations in a batch of the log, and durable commits of the leader
in a second.

All keys exist before the first run, so every GET finds a value. After each run, its writes are
checked in the log of each member. After the last one, all members must have the same keys and
values.

Members and load share this machine's processors and disk: the figures compare versions and settings
on one machine, and say little about another machine.
"""

import sys
from typing import Final

import attrs

from bench.lib.filling import check, fill
from bench.lib.harness import (
    KEPT,
    USUAL,
    Bench,
    Common,
    lay_out_members,
    make_app,
    open_bench,
    stop_without,
)
from bench.lib.measuring import Load, Run, measure, median
from bench.report.results import Row
from quorate.local.cluster import open_cluster

MEMBERS: Final = 3
CLIENTS: Final = (1, 64, 256)
PIPELINES: Final = (1, 16)


def row_of(load: Load, runs: list[Run]) -> Row:
    """Return the line of a load: the medians, the lowest and highest rate, and each run."""
    rates = [run.rate for run in runs]
    return {
        **attrs.asdict(load),
        **attrs.asdict(median(runs)),
        "lowest": min(rates),
        "highest": max(rates),
        "runs": [*map(attrs.asdict, runs)],
    }


async def run_all(bench: Bench, runs: int, seconds: float) -> None:
    """Measure every load, in turns."""
    loads = [Load(c, n, p) for p in PIPELINES for c in ("set", "get") for n in CLIENTS]
    found: dict[Load, list[Run]] = {load: [] for load in loads}
    async with open_cluster(lay_out_members(bench.place, MEMBERS, snapshot=KEPT)) as cluster:
        await fill(cluster, loads[0])
        for turn in range(runs):
            for load in loads:
                run = await measure(cluster, load, seconds)
                found[load].append(run)
                bench.console.print(
                    f"[dim]{turn + 1}/{runs} {load.command} {load.clients} clients, pipeline "
                    f"{load.pipeline}: {run.rate:,.0f}/s[/dim]"
                )
        await check(cluster, loads[0])
    bench.rows += [row_of(load, taken) for load, taken in found.items()]


app = make_app()


@app.default
async def main(*, options: Common = USUAL, runs: int = 3, seconds: float = 3.0) -> None:
    """Measure three members from outside with redis-benchmark.

    Parameters
    ----------
    runs
        Number of runs of each load; the median is shown.
    seconds
        About how long each run lasts.
    """
    stop_without("redis-benchmark", "redis-tools")
    if options.quick:
        runs, seconds = 1, 1.0
    with open_bench("cluster", options, members=MEMBERS, runs=runs, seconds=seconds) as bench:
        await run_all(bench, runs, seconds)


if __name__ == "__main__":
    sys.exit(app())
