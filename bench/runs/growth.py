"""How the cost of a SET and a GET grows: with members, sizes of values, keys, clients.

Each point is a new cluster on an empty disk. It is filled, then loaded with SETs and GETs in turns.
After each run, its writes must be in the log of each member. At the end, all members must have all
keys with the same values. Everything that does not vary is as in `cluster.py`: three members, 64
clients that wait for each reply, 256 bytes, 100,000 keys. No regular snapshot is taken. The memory
is that of the leader after the last run.

Growth with the length of the log is in `growth_log.py`.

How it grows with the length of the log: `growth_log.py`.
"""

import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import attrs
from cyclopts import Parameter

from bench.lib.filling import check, fill
from bench.lib.harness import (
    NEVER,
    USUAL,
    Bench,
    Common,
    Options,
    lay_out_members,
    make_app,
    open_bench,
    stop_without,
)
from bench.lib.measuring import Load, Memory, Run, measure, median, memory, rested, settled
from bench.report.results import Row
from quorate.local.cluster import LocalCluster, open_cluster

FILLED_BYTES: Final = 256 << 20
"""Bound on all values together. Larger values have fewer keys, so that all sizes fit the disk."""


@attrs.frozen
class Point:
    """One cluster, and its load."""

    members: int = 3
    clients: int = 64
    value_bytes: int = 256
    keys: int = 100_000

    def load(self, command: str) -> Load:
        """Return a load of these sizes."""
        return Load(command, self.clients, 1, self.value_bytes, self.keys)


def _members(quick: bool) -> Sequence[Point]:  # noqa: FBT001 - one of a table of functions
    return [Point(members=count, keys=10_000 if quick else 100_000) for count in (1, 3, 5, 7)]


def _values(quick: bool) -> Sequence[Point]:  # noqa: FBT001
    room = FILLED_BYTES >> 4 if quick else FILLED_BYTES
    sizes = (16, 256, 1024, 4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20)
    return [
        Point(value_bytes=size, keys=min(room // size, 10_000 if quick else 100_000))
        for size in sizes
    ]


def _keys(quick: bool) -> Sequence[Point]:  # noqa: FBT001
    return [Point(keys=10**power) for power in ((4, 5) if quick else (4, 5, 6, 7))]


def _clients(quick: bool) -> Sequence[Point]:  # noqa: FBT001
    counts = (1, 16, 256, 2000) if quick else (1, 4, 16, 64, 256, 1000, 2000)
    return [Point(clients=count, keys=10_000 if quick else 100_000) for count in counts]


DIMENSIONS: Final[dict[str, Callable[[bool], Sequence[Point]]]] = {
    "members": _members,
    "values": _values,
    "keys": _keys,
    "clients": _clients,
}


def row_of(point: Point, runs: dict[str, list[Run]], held: Memory) -> Row:
    """Return the line of a point: the medians of each command's runs."""
    figures = {
        f"{command}_{name}": value
        for command, taken in runs.items()
        for name, value in attrs.asdict(median(taken)).items()
    }
    every = {command: [*map(attrs.asdict, taken)] for command, taken in runs.items()}
    return {**attrs.asdict(point), **figures, **attrs.asdict(held), "runs": every}


async def leaders_memory(cluster: LocalCluster) -> Memory:
    """Return the leader's memory."""
    leader, _ = await settled(cluster)
    (pid,) = (one.pid for one in cluster.members if one.member_id == leader.member_id)
    assert pid is not None
    return memory(pid)


async def measure_point(bench: Bench, point: Point, runs: int, seconds: float) -> None:
    """Measure one cluster."""
    place = bench.place / "point"
    found: dict[str, list[Run]] = {"set": [], "get": []}
    async with open_cluster(lay_out_members(place, point.members, snapshot=NEVER)) as cluster:
        await fill(cluster, point.load("set"))
        for _ in range(runs):
            for command, taken in found.items():
                await rested(cluster)
                taken.append(await measure(cluster, point.load(command), seconds))
        held = await leaders_memory(cluster)
        await check(cluster, point.load("set"))
    shutil.rmtree(place)
    bench.found(row_of(point, found, held))


async def measure_dimension(name: str, options: Options, runs: int, seconds: float) -> None:
    """Measure all points of a dimension."""
    with open_bench(f"growth-{name}", options, runs=runs, seconds=seconds) as bench:
        for point in DIMENSIONS[name](options.quick):
            await measure_point(bench, point, runs, seconds)


app = make_app()


@app.default
async def main(
    *,
    options: Common = USUAL,
    by: Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative="")] = tuple(
        DIMENSIONS
    ),
    runs: int = 1,
    seconds: float = 2.0,
) -> None:
    """Measure how the cost of SET and GET grows.

    Parameters
    ----------
    by
        The dimension: members, values, keys or clients; all of them if left out.
    runs
        Number of runs of each load; the median is shown.
    seconds
        About how long each run lasts.
    """
    stop_without("redis-benchmark", "redis-tools")
    for name in by:
        await measure_dimension(name, options, runs, 0.5 if options.quick else seconds)


if __name__ == "__main__":
    sys.exit(app())
