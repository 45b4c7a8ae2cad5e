"""The embedded store, compared with the same store over RESP.

The leader is a member within this process; the two other members are processes of their own. In
turns, 256 tasks in this process await `kv.set()` repeatedly, and `redis-benchmark` with 256 clients
sets the same keys at this member's port. The leader's processor time is that of this process,
including the tasks; it excludes that of `redis-benchmark`. After each run, the leader must have
applied its whole log, and the followers' logs must have all acknowledged SETs. At the end, all
members must have the same logs, keys and values.
"""

import gc
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import attrs
import trio

from bench.lib.checking import LostError, Stretch, check_logs
from bench.lib.crowd import percentiles
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
from bench.lib.measuring import (
    Latencies,
    Load,
    Run,
    benchmark,
    check_load,
    median,
    processor_seconds,
    settled,
    with_batches,
)
from quorate import Node, open_node
from quorate.cli.app import GARBAGE_THRESHOLD
from quorate.local.cluster import LocalCluster

TASKS: Final = 256
LOAD: Final = Load("set", TASKS)
VALUE: Final = b"x" * LOAD.value_bytes


async def embedded(node: Node, seconds: float) -> tuple[Latencies, int]:
    """Let all tasks set keys for `seconds`; return latencies and the number acknowledged.

    The tasks run on the leader's processor. To cost little, they use keys made in advance, and
    read the clock once for each key.
    """
    count = LOAD.keys
    keys = [b"key:%012d" % (number * 7919 % count) for number in range(count)]
    taken: list[float] = []
    ends = time.perf_counter() + seconds

    async def write(number: int) -> None:
        kv, asked = node.kv, time.perf_counter()
        while asked < ends:
            await kv.set(keys[number % count], VALUE)
            now = time.perf_counter()
            taken.append(now - asked)
            asked = now
            number += 1

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for number in range(TASKS):
            nursery.start_soon(write, number * 389)
    rate = len(taken) / (time.perf_counter() - began)
    found = percentiles(taken)
    return Latencies(rate, found["p50_ms"], found["p99_ms"], found["p999_ms"]), len(taken)


async def resp(port: int, requests: int) -> tuple[Latencies, int]:
    """Let redis-benchmark set keys."""
    return await benchmark(LOAD, port, requests), requests


async def lead(node: Node) -> None:
    """Make this process's member the leader."""
    while not node.topology.is_leader:
        if node.topology.leader_id is not None:
            await node.transfer(node.status().member_id)
        await trio.sleep(0.1)


async def watched(
    node: Node, cluster: LocalCluster, work: Callable[[], Awaitable[tuple[Latencies, int]]]
) -> Run:
    """Run one load, check its writes, and return its cost.

    Raises:
        LostError: an acknowledged write is missing.
    """
    await settled(cluster)
    pids = [os.getpid(), *(one.pid for one in cluster.members if one.pid is not None)]
    used, before = [*map(processor_seconds, pids)], node.status()
    seen, count = await work()
    after = node.status()
    own, *others = (
        (processor_seconds(pid) - spent) / count * 1e6
        for pid, spent in zip(pids, used, strict=True)
    )
    await settled(cluster)
    if (applied := node.status().applied_position) < (end := after.append_position):
        raise LostError(f"the leader has applied its log up to {applied}, not up to {end}")
    stretch = Stretch(before.append_position, after.append_position)
    await check_load(cluster.members[1:], LOAD, stretch, count)
    run = Run(**attrs.asdict(seen), leader_us=own, follower_us=statistics.mean(others))
    return with_batches(run, count, before, after)


async def in_turns(
    bench: Bench, node: Node, cluster: LocalCluster, runs: int, seconds: float
) -> None:
    """Measure both ways in turns."""
    assert node.client_address is not None
    port = node.client_address[1]
    ours, theirs = list[Run](), list[Run]()
    for _ in range(runs):
        ours.append(await watched(node, cluster, partial(embedded, node, seconds)))
        guess = await benchmark(LOAD, port, LOAD.trial())
        requests = LOAD.whole(int(guess.rate * seconds))
        theirs.append(await watched(node, cluster, partial(resp, port, requests)))
    ratio = statistics.median(a.rate / b.rate for a, b in zip(ours, theirs, strict=True))
    for way, taken, to_resp in (("await kv.set()", ours, ratio), ("RESP", theirs, 1.0)):
        row = {"way": way, "clients": TASKS, **attrs.asdict(median(taken)), "to_resp": to_resp}
        bench.found({**row, "runs": [*map(attrs.asdict, taken)]})


async def measure_all(bench: Bench, runs: int, seconds: float) -> None:
    """Start a cluster that includes this process, and measure."""
    config, *others = lay_out_members(bench.place, 3, snapshot=KEPT)
    cluster = LocalCluster([config, *others])
    try:
        for member in cluster.members[1:]:
            await member.start()
        async with open_node(config) as node:
            await settled(cluster)
            await lead(node)
            await fill(cluster, LOAD)
            gc.collect()  # as in `quorate run`; programs with a member should do it, too
            gc.freeze()
            gc.set_threshold(GARBAGE_THRESHOLD, 20, 50)
            await in_turns(bench, node, cluster, runs, seconds)
            await check(cluster, LOAD)
            end = (await settled(cluster))[0].append_position
        await check_logs(cluster.members, end)  # only now has this process closed its own log
    finally:
        await cluster.kill()


app = make_app()


@app.default
async def main(*, options: Common = USUAL, runs: int = 5, seconds: float = 3.0) -> None:
    """Measure the embedded store, and the same store over RESP.

    Parameters
    ----------
    runs
        Number of runs of each; the median is shown.
    seconds
        About how long each lasts.
    """
    stop_without("redis-benchmark", "redis-tools")
    if options.quick:
        runs, seconds = 2, 1.0
    with open_bench("embedded", options, tasks=TASKS, runs=runs, seconds=seconds) as bench:
        await measure_all(bench, runs, seconds)


if __name__ == "__main__":
    sys.exit(app())
