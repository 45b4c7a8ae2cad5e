"""Our port for clients of etcd compared with etcd: the same program loads both, in turns.

Three members of each are up, with their usual settings; one of the two clusters is loaded. Four
kinds of load: calls over gRPC, calls over the JSON gateway, watches, and leases under calls. The
program shares the processors with the members, so a table also has what all members of a cluster
spend. After each run of calls, the revision of all members must have grown by the acknowledged
writes; in the end their hashes must be equal.
"""

import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import trio
from rich.console import Console

from bench.lib.competitors import BOTH, Peer
from bench.lib.etcd_api import Api, build_etcd_load, open_etcd_api, open_quorate_api
from bench.lib.harness import USUAL, Common, make_app, open_bench
from bench.lib.measuring import Load, Run
from bench.lib.turns import in_turns
from bench.report.results import Row
from bench.runs.cluster import MEMBERS

KEYS: Final = 10_000
DOORS: Final = {"gRPC": (1, 64, 256), "JSON gateway": (1, 64)}
"""The clients of each kind."""

FANS: Final[Mapping[str, Mapping[str, object]]] = {
    "one prefix": {"rate": 10},
    "a key each": {"rate": 200, "one_each": "true"},
}
"""What the watchers watch, and the puts a second."""

WATCH_TURNS: Final = 3
WATCH_SECONDS: Final = 5.0
STREAMS: Final = 10
LEASES: Final = 10_000
TTL: Final = 10
HELD_SECONDS: Final = 60.0


async def calls(
    ours: Sequence[Peer],
    theirs: Sequence[Peer],
    *,
    runs: int,
    seconds: float,
    console: Console,
) -> list[Row]:
    """Put and get at both doors of both clusters."""
    rows: list[Row] = []
    for (door, crowds), our, their in zip(DOORS.items(), ours, theirs, strict=True):
        loads = [Load(command, clients, keys=KEYS) for command in BOTH for clients in crowds]
        pairs = await in_turns(loads, our, their, runs=runs, seconds=seconds, console=console)
        for pair in pairs:
            call = {"set": "Put", "get": "Range"}[pair.load.command]
            figures = beside([*map(cost, pair.ours)], [*map(cost, pair.theirs)])
            rows.append({"door": door, "call": call, "clients": pair.load.clients, **figures})
    return rows


def cost(run: Run) -> dict[str, float]:
    """Return the figures of a run, with the processor time of all members for an operation."""
    spent = run.leader_us + (MEMBERS - 1) * run.follower_us
    return {"rate": run.rate, "p50_ms": run.p50_ms, "p99_ms": run.p99_ms, "us": spent}


def beside(ours: Sequence[Mapping[str, float]], theirs: Sequence[Mapping[str, float]]) -> Row:
    """Return the medians of both clusters, and of the ratios of ours to theirs by turn."""
    row: dict[str, Any] = {}
    for name in ours[0]:
        pairs = [(our[name], their[name]) for our, their in zip(ours, theirs, strict=True)]
        row[f"ours_{name}"] = statistics.median(our for our, _ in pairs)
        row[f"etcd_{name}"] = statistics.median(their for _, their in pairs)
        if all(their for _, their in pairs):
            row[f"{name}_ratio"] = statistics.median(our / their for our, their in pairs)
    return {**row, "runs": [*zip(ours, theirs, strict=True)]}


async def watches(clusters: Sequence[Api], watchers: int, runs: int, seconds: float) -> list[Row]:
    """Time from a put to its event at each watcher."""
    rows: list[Row] = []
    for watched, options in FANS.items():
        found: list[list[dict[str, float]]] = [[] for _ in clusters]
        for _ in range(runs):
            for cluster, taken in zip(clusters, found, strict=True):
                shape = {**options, "watchers": watchers, "seconds": seconds}
                taken.append(await special(cluster, "watch", shape))
        row = {"watched": watched, "watchers": watchers, "puts": options["rate"]}
        rows.append({**row, **beside(*found)})
    return rows


async def special(cluster: Api, op: str, options: Mapping[str, object]) -> dict[str, float]:
    """Run a load of several streams."""
    pids = ",".join(map(str, cluster.pids))
    return await cluster.load(op=op, connections=STREAMS, pids=pids, **options)


async def held(cluster: Api, leases: int, seconds: float) -> Row:
    """Keep leases alive while 64 clients put; they end by themselves."""
    term = await cluster.term()
    shape = {"leases": leases, "ttl": TTL, "seconds": seconds, "clients": 64, "keys": KEYS}
    found = await special(cluster, "lease", shape)
    elections = await cluster.term() - term
    await trio.sleep(1.5 * TTL)  # What ends its leases must not slow the other cluster's turn.
    return {"cluster": cluster.name, "leases": leases, **found, "elections": elections}


app = make_app()


@app.default
async def main(*, options: Common = USUAL, runs: int = 5, seconds: float = 1.5) -> None:
    """Measure our port for clients of etcd next to etcd.

    Parameters
    ----------
    runs
        Number of runs of each load of calls; the median is shown.
    seconds
        About how long each of them lasts.
    """
    watchers, leases, held_seconds, turns = 1000, LEASES, HELD_SECONDS, WATCH_TURNS
    if options.quick:
        runs, seconds, watchers, leases, held_seconds, turns = 1, 0.5, 100, 500, 5.0, 1
    with open_bench("etcd", options, members=MEMBERS, runs=runs, seconds=seconds) as bench:
        loader = await build_etcd_load(bench.place, bench.console)
        if loader is None:
            sys.exit("etcd: nothing was measured")
        async with (
            open_etcd_api(bench.place / "etcd", loader) as theirs,
            open_quorate_api(bench.place / "quorate", loader) as ours,
        ):
            filling = Load("set", 64, keys=KEYS)
            doors = await ours.begin(filling), await theirs.begin(filling)
            turned = await calls(*doors, runs=runs, seconds=seconds, console=bench.console)
            turned += await watches((ours, theirs), watchers, turns, WATCH_SECONDS)
            for row in turned:
                bench.found(row)
            for cluster in (ours, theirs):
                bench.found(await held(cluster, leases, held_seconds))
                await cluster.compare()


if __name__ == "__main__":
    sys.exit(app())
