"""What partitions cost: processor time for each operation, moves under load, and idle groups.

**Each operation.** Two clusters of three machines run side by side, one with one partition, one
with four. `redis-benchmark` sets and gets at a partition's leader, with keys of a slot that it
owns, from 64 clients. The processor time is that of the partition's members, from /proc. Two
processors cannot run twelve members at once, so four partitions are loaded in two ways: one at a
time, in turns, while the other groups idle, which shows whether a partition costs more because
there are others; and all four at once, so that the members wait for processors, too.

With `--before`, the tree of an earlier version, a cluster without partitions is compared with one
of that. Turns alternate in everything, so that a noisy second affects all alike. Figures are means
of the groups that were loaded, and medians of the turns.

**Moves.** A quarter of the slots, with 100,000 keys, moves between two partitions, there and back,
under 64 cluster clients with their usual retries. They pause between commands, so that clients do
not fill the processors. What counts is the longest time that a command of each client took, next to
the same for a time without a move; and the errors that came out of a client.

**Idle.** The processor time and the memory of all machines' processes without a load.
"""

import json
import math
import re
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import attrs
import trio

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
from bench.lib.machines import Machines, leader_of, open_machines, set_keys, tag_of
from bench.lib.measuring import (
    Latencies,
    Load,
    benchmark,
    memory,
    running_ms,
    settled,
)
from bench.lib.moving_clients import Report
from bench.report.results import Row
from quorate.keyvalue.slots.cluster_map import META
from quorate.keyvalue.slots.hashing import key_slot
from quorate.keyvalue.slots.ranges import parse_slots_untrusted
from quorate.local.cluster import LocalCluster

CLIENTS: Final = 64
PARTITIONS: Final = 4
LOADS: Final = (Load("set", CLIENTS, keys=20_000), Load("get", CLIENTS, keys=20_000))
MOVING_KEYS: Final = 400_000
"""A quarter of them moves."""

PROCESSES: Final = 2
QUARTER: Final = "0-4095"
REST_SECONDS: Final = 10.0
BEGIN_SECONDS: Final = 5.0


@attrs.frozen
class Target:
    """Who is loaded: the leader's port, the processes of the group, and a word of its slots."""

    port: int
    leader: int
    followers: Sequence[int]
    tag: str


@attrs.frozen
class Turn(Latencies):
    """One turn of one load; processor time in microseconds per operation."""

    leader_us: float
    follower_us: float


async def targets_of(machines: Machines) -> list[Target]:
    """Return the partitions of a cluster, for loads."""
    found: list[Target] = []
    for seen in (await machines.groups())[1:]:
        leads = leader_of(seen)
        pids = machines.pids_of(seen.partition)
        leader, port = pids.pop(leads), machines.port(leads, seen.partition)
        found.append(Target(port, leader, [*pids.values()], tag_of(seen)))
    return found


async def plain_target(cluster: LocalCluster) -> Target:
    """Return a cluster without partitions, for loads."""
    leader, _ = await settled(cluster)
    pids = {each.member_id: each.pid or 0 for each in cluster.members}
    port = next(e.address.client_port for e in cluster.members if e.member_id == leader.member_id)
    return Target(port, pids.pop(leader.member_id), [*pids.values()], "t")


async def fill(target: Target, load: Load) -> None:
    """Set all keys that a load may get."""
    names = (f"{{{target.tag}}}:{n:012d}" for n in range(load.keys))
    await set_keys(target.port, names, load.value_bytes)


async def turn(targets: Sequence[Target], load: Load, requests: int) -> list[Turn]:
    """Load some groups at the same time, once."""
    pids = [pid for each in targets for pid in (each.leader, *each.followers)]
    before = {pid: running_ms(pid) for pid in pids}
    seen: dict[int, Latencies] = {}

    async def run(target: Target) -> None:
        words = [load.command.upper(), f"{{{target.tag}}}:__rand_int__"]
        words += ["v" * load.value_bytes] * (load.command == "set")
        seen[target.port] = await benchmark(load, target.port, requests, words=words)

    async with trio.open_nursery() as nursery:
        for each in targets:
            nursery.start_soon(run, each)
    each_us = {pid: (running_ms(pid) - before[pid]) / requests * 1000 for pid in pids}
    return [
        Turn(
            **attrs.asdict(seen[one.port]),
            leader_us=each_us[one.leader],
            follower_us=statistics.mean(each_us[pid] for pid in one.followers),
        )
        for one in targets
    ]


async def take_turns(
    bench: Bench, ways: Mapping[str, Sequence[Sequence[Target]]], runs: int, seconds: float
) -> None:
    """Measure each load in each way, in turns.

    Args:
        bench: takes the results.
        ways: for each way the groups that are loaded at once, one such list after the other.
        runs: number of turns.
        seconds: about how long a turn lasts.
    """
    every = {target.port: target for rounds in ways.values() for each in rounds for target in each}
    for target in every.values():
        await fill(target, LOADS[0])
    for load in LOADS:
        found: dict[str, list[list[Turn]]] = {way: [] for way in ways}
        (guess,) = await turn([next(iter(every.values()))], load, load.trial())
        requests = load.whole(int(guess.rate * seconds))
        for _ in range(runs):
            for way, rounds in ways.items():
                share = load.whole(requests // max(len(rounds), *map(len, rounds)))
                found[way].append([one for each in rounds for one in await turn(each, load, share)])
        first = next(iter(ways))
        for way, taken in found.items():
            bench.found(row_of(way, load, taken, found[first]))


def row_of(way: str, load: Load, taken: list[list[Turn]], base: list[list[Turn]]) -> Row:
    """Return the line of a way: means of the groups, medians of the turns."""
    figures = {name: middle(taken, name) for name in ("rate", "p50_ms", "p99_ms")}
    costs = {name: middle(taken, name) for name in ("leader_us", "follower_us")}
    ratios = {f"{name}_ratio": costs[name] / middle(base, name) for name in costs}
    alike = [statistics.mean(one.leader_us for one in each) for each in taken]
    spread = {"lowest_us": min(alike), "highest_us": max(alike)}
    return {"way": way, **attrs.asdict(load), **figures, **costs, **ratios, **spread}


def middle(taken: list[list[Turn]], name: str) -> float:
    """Return the median over turns of the mean over groups of a figure."""
    means = [statistics.mean(attrs.asdict(one)[name] for one in each) for each in taken]
    return float(statistics.median(means))


async def measure_operations(bench: Bench, runs: int, seconds: float) -> None:
    """Compare four partitions with one, and see what idle groups take."""
    async with (
        open_machines(bench.place / "one", 1) as one,
        open_machines(bench.place / "four", PARTITIONS) as four,
    ):
        await idle(bench, one, "1 + 1 groups")
        await idle(bench, four, f"1 + {PARTITIONS} groups")
        apart = await targets_of(four)
        ways = {
            "1 partition": [await targets_of(one)],
            f"{PARTITIONS} partitions, one loaded at a time": [[each] for each in apart],
            f"{PARTITIONS} partitions, all loaded": [apart],
        }
        await take_turns(bench, ways, runs, seconds)


async def idle(bench: Bench, machines: Machines, name: str) -> None:
    """See what the processes of all machines take without a load."""
    await machines.groups()
    await trio.sleep(BEGIN_SECONDS)
    partitions = range(sum(each.partition != META for each in await machines.groups()))
    kinds = {
        "supervisors": [*machines.pids],
        "metadata members": [*machines.pids_of(META).values()],
        "members of partitions": [p for k in partitions for p in machines.pids_of(k).values()],
    }
    before = {pid: running_ms(pid) for pids in kinds.values() for pid in pids}
    began = trio.current_time()
    await trio.sleep(REST_SECONDS)
    took = trio.current_time() - began
    for kind, pids in kinds.items():
        ms = [(running_ms(pid) - before[pid]) / took for pid in pids]
        own = statistics.mean(memory(pid).own_mb for pid in pids)
        each = {"each_ms": statistics.mean(ms), "all_ms": sum(ms), "own_mb": own}
        bench.found({"resting": name, "kind": kind, "processes": len(pids), **each})


async def compare_before(bench: Bench, before: Path, runs: int, seconds: float) -> None:
    """Compare a plain cluster with one of an earlier version."""
    async with AsyncExitStack() as stack:
        ways: dict[str, list[list[Target]]] = {}
        versions = {"before partitions": before, "this version": Path(__file__).parents[2]}
        for name, tree in versions.items():
            place = bench.place / name.replace(" ", "-")
            cluster = LocalCluster(lay_out_members(place, 3, snapshot=KEPT))
            for member in cluster.members:
                member.environment = {
                    "PYTHONPATH": str(await trio.Path(tree).absolute()),
                    "PYTHONSAFEPATH": "1",
                }
            stack.push_async_callback(cluster.stop)
            await cluster.start()
            ways[f"no partitions, {name}"] = [[await plain_target(cluster)]]
        await take_turns(bench, ways, runs, seconds)


# Moves --------------------------------------------------------------------------------------------


async def measure_moves(bench: Bench, keys: int, seconds: float) -> None:
    """Move a quarter of the slots under cluster clients, of each of two kinds."""
    async with open_machines(bench.place / "moves", 2) as machines:
        for seen in (await machines.groups())[1:]:
            port = machines.port(leader_of(seen), seen.partition)
            owned = parse_slots_untrusted(seen.slots)
            every = (f"key:{n}" for n in range(keys))
            await set_keys(port, (k for k in every if owned >> key_slot(k.encode()) & 1), 256)
        for client in ("redis-py", "quorate"):
            for to in (None, 1, 0):
                watched = await watch(
                    machines, (client, str(CLIENTS // PROCESSES), keys), to, seconds
                )
                bench.found({"client": client, "clients": CLIENTS, **watched})


async def watch(
    machines: Machines, clients: tuple[str, str, int], to: int | None, seconds: float
) -> Row:
    """Run clients, and move the quarter to a partition, or nowhere; return what they saw."""
    words = [*map(str, clients), str(machines.port(0, 0))]
    reports: list[Report] = []
    end = trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(PROCESSES):
            await nursery.start(run_clients, words, reports, end)
        await trio.sleep(1)
        moved = await move(machines, to) if to is not None else {}
        await trio.sleep(seconds)
        end.set()
    longest = sorted(ms for report in reports for ms in report.longest_ms)
    errors = sum((Counter(report.errors) for report in reports), Counter[str]())
    return {
        "while": "nothing moves" if to is None else f"the quarter moves to {to}",
        "calls": sum(report.calls for report in reports),
        **moved,
        "errors": errors.total(),
        "error": "; ".join(errors),
        "middle_ms": statistics.median(longest),
        "p95_ms": longest[math.ceil(0.95 * len(longest)) - 1],
        "longest_ms": longest[-1],
    }


async def run_clients(
    words: Sequence[str],
    reports: list[Report],
    end: trio.Event,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    """Run a process of clients, from when all are connected to the event; take its report."""
    command = [sys.executable, "-m", "bench.lib.moving_clients", *words]
    pipe = subprocess.PIPE
    process = await trio.lowlevel.open_process(command, stdin=pipe, stdout=pipe)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        ready = await process.stdout.receive_some()
        if not ready:
            raise RuntimeError("the clients have failed")
        task_status.started()
        await end.wait()
        await process.stdin.aclose()
        text = b"".join([data async for data in process.stdout])
        reports.append(Report(**json.loads(text)))
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()


_MOVED: Final = re.compile(r"slots_moved: .* (\d+) keys, after ([0-9.]+) s")


async def move(machines: Machines, to: int) -> dict[str, float]:
    """Move the quarter to a partition; return the keys, and how long which part of it took."""
    began = trio.current_time()
    words = ["partition", "move", QUARTER, "--to", str(to)]
    words += ["--connect", f"127.0.0.1:{machines.port(0, 0)}"]
    known = len(moves_of(machines))
    await trio.run_process([sys.executable, "-m", "quorate", *words], capture_stdout=True)
    took = trio.current_time() - began
    keys, frozen = moves_of(machines)[known]
    return {"keys": int(keys), "move_s": took, "frozen_ms": float(frozen) * 1000}


def moves_of(machines: Machines) -> list[tuple[str, str]]:
    """Return the keys and the seconds of all moves so far, of the logs of all directors."""
    logs = [config.directory / "machine.log" for config in machines.configs]
    lines = sorted(line for log in logs for line in log.read_text().splitlines())
    return [(found[1], found[2]) for line in lines if (found := _MOVED.search(line))]


app = make_app()


@app.default
async def main(
    *,
    options: Common = USUAL,
    runs: int = 5,
    seconds: float = 4.0,
    before: Path | None = None,
) -> None:
    """Measure what partitions cost, and moves of slots under load.

    Parameters
    ----------
    runs
        Number of turns of each load.
    seconds
        About how long each turn lasts.
    before
        A tree of an earlier version, with compiled parts, to compare a cluster without partitions.
    """
    stop_without("redis-benchmark", "redis-tools")
    keys = MOVING_KEYS
    if options.quick:
        runs, seconds, keys = 1, 1.0, 4000
    settings = {"clients": CLIENTS, "runs": runs, "seconds": seconds, "moving_keys": keys // 4}
    with open_bench("partitions", options, **settings) as bench:
        await measure_moves(bench, keys, seconds)
        await measure_operations(bench, runs, seconds)
        if before is not None:
            await compare_before(bench, before, runs, seconds)


if __name__ == "__main__":
    sys.exit(app())
