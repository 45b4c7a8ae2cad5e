"""What it costs to be watched: scrapes, viewers, and a viewer that reads nothing.

Three members have a web port each, and three more have no flight recorder, to compare with.
`redis-benchmark` sets at a leader, unwatched and watched in each of several ways, in many short
turns, so that a noisy second affects all alike. The watchers run on the same processors: what the
members alone lose is in the columns of processor time, which are of all turns together. What
watchers cost does not depend on the load, so it is also measured at rest, where nothing scatters.

After the turns the writes are checked in the log of each member.
"""

import statistics
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final, TypeAlias

import attrs
import trio

from bench.lib.filling import check, fill
from bench.lib.harness import KEPT, USUAL, Bench, Common, make_app, open_bench, stop_without, write
from bench.lib.measuring import (
    Load,
    Run,
    address_of,
    benchmark,
    median,
    processor_seconds,
    running_ms,
    settled,
    with_batches,
)
from quorate.local.cluster import LocalCluster, free_client_port, lay_out, open_cluster
from quorate.node.config.config import NodeConfig

MEMBERS: Final = 3
CLIENTS: Final = 64
VIEWERS: Final = 5
SCRAPE_SECONDS: Final = 1.0
BEGIN_SECONDS: Final = 2.5
"""Longer than streams between members linger after the last viewer has left."""

REST_SECONDS: Final = 5.0

Watching: TypeAlias = Callable[[list[NodeConfig]], AbstractAsyncContextManager[None]]
"""Watches a cluster of these members for the length of a block."""


async def ask(config: NodeConfig, path: str) -> trio.SocketStream:
    """Send a request to a member's web port."""
    stream = await trio.open_tcp_stream(config.web.host, config.web.port)
    head = f"GET {path} HTTP/1.1\r\nHost: {config.web.host}\r\nConnection: close\r\n\r\n"
    await stream.send_all(head.encode())
    return stream


async def scrape(config: NodeConfig) -> None:
    """Get the figures of a member once a second, as Prometheus does."""
    while True:
        stream = await ask(config, "/metrics")
        async with stream:
            text = b"".join([data async for data in stream])
        # A scrape that fails costs little, and would make the result look good.
        assert b"quorate_commit_duration_seconds_bucket" in text, text[:300]
        await trio.sleep(SCRAPE_SECONDS)


async def view(config: NodeConfig) -> None:
    """Read the live events of a member."""
    async with await ask(config, "/events") as stream:
        begin = await stream.receive_some(1 << 16)
        assert b" 200 " in begin.partition(b"\r\n")[0], begin[:300]
        async for _ in stream:
            pass
    raise RuntimeError(f"member {config.member_id} has ended the stream of its events")


async def stare(config: NodeConfig) -> None:
    """Ask for the live events of a member, and read none of them."""
    async with await ask(config, "/events"):
        await trio.sleep_forever()


@asynccontextmanager
async def unwatched(_members: list[NodeConfig]) -> AsyncGenerator[None]:
    """Watch nothing."""
    await trio.lowlevel.checkpoint()
    yield


@asynccontextmanager
async def scraped(members: list[NodeConfig]) -> AsyncGenerator[None]:
    """Scrape all members."""
    async with trio.open_nursery() as nursery:
        for config in members:
            nursery.start_soon(scrape, config)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def watched(members: list[NodeConfig]) -> AsyncGenerator[None]:
    """Scrape all members; five viewers look at the first one, and one more does not read."""
    async with scraped(members), trio.open_nursery() as nursery:
        for _ in range(VIEWERS):
            nursery.start_soon(view, members[0])
        nursery.start_soon(stare, members[0])
        yield
        nursery.cancel_scope.cancel()


WAYS: Final[dict[str, Watching]] = {
    "nobody, no flight recorder": unwatched,
    "nobody": unwatched,
    "a scrape each second": scraped,
    "scrapes, five viewers, one that does not read": watched,
}
"""By whom the members are watched. The first one is what the others are compared with."""

UNRECORDED: Final = (sys.executable, "-m", "bench.lib.unrecorded")


def lay_out_watched(place: Path) -> list[NodeConfig]:
    """Configure members with web ports."""
    laid = lay_out(
        place,
        members=MEMBERS,
        client_port=free_client_port(MEMBERS),
        cluster="bench",
        web_port="auto",
    )
    configs = [attrs.evolve(config, snapshot=KEPT) for config in laid]
    for config in configs:
        write(config)
    return configs


@asynccontextmanager
async def open_unrecorded(configs: list[NodeConfig]) -> AsyncGenerator[LocalCluster]:
    """Run members without flight recorders for the length of a block."""
    cluster = LocalCluster(configs)
    for member in cluster.members:
        member.launcher = UNRECORDED
    try:
        await cluster.start()
        yield cluster
        await cluster.stop()
    finally:
        await cluster.kill()


async def rest(cluster: LocalCluster) -> dict[str, float]:
    """Return how many milliseconds of processor the members take in a second without a load."""
    leader, _ = await settled(cluster)
    await trio.sleep(BEGIN_SECONDS)
    pids = {member.member_id: member.pid for member in cluster.members if member.pid is not None}
    before, began = {one: running_ms(pid) for one, pid in pids.items()}, trio.current_time()
    await trio.sleep(REST_SECONDS)
    took = trio.current_time() - began
    used = {one: (running_ms(pid) - before[one]) / took for one, pid in pids.items()}
    own = used.pop(leader.member_id)
    return {"leader_rest_ms": own, "follower_rest_ms": statistics.mean(used.values())}


async def turn(cluster: LocalCluster, load: Load, requests: int) -> Run:
    """Set for a moment at the leader's port; what was written is checked at the end of all."""
    leader, _ = await settled(cluster)
    pids = {member.member_id: member.pid for member in cluster.members if member.pid is not None}
    used = {one: processor_seconds(pid) for one, pid in pids.items()}
    seen = await benchmark(load, address_of(cluster, leader.member_id).client_port, requests)
    spent = {one: processor_seconds(pid) - used[one] for one, pid in pids.items()}
    own = spent.pop(leader.member_id)
    others = statistics.mean(spent.values())
    each_us = 1e6 / requests
    run = Run(**attrs.asdict(seen), leader_us=own * each_us, follower_us=others * each_us)
    after, _ = await settled(cluster)
    return with_batches(run, requests, leader, after)


def together(taken: list[Run]) -> Run:
    """Return the medians of turns with equally many requests, and their mean processor time."""
    # The kernel counts it in hundredths of a second, which is coarse for one turn.
    return attrs.evolve(
        median(taken),
        leader_us=statistics.mean(run.leader_us for run in taken),
        follower_us=statistics.mean(run.follower_us for run in taken),
    )


async def measure_ways(
    bench: Bench,
    recorded: LocalCluster,
    unrecorded: LocalCluster,
    configs: list[NodeConfig],
    *,
    runs: int,
    seconds: float,
) -> None:
    """Measure SET while the members are watched in each of the ways, in turns."""
    load = Load("set", CLIENTS)
    found: dict[str, list[Run]] = {way: [] for way in WAYS}
    clusters = dict.fromkeys(WAYS, recorded) | {next(iter(WAYS)): unrecorded}
    leader, _ = await settled(recorded)
    # The leader comes first: the viewers look at its page, which costs the clients most.
    configs = sorted(configs, key=lambda each: each.member_id != leader.member_id)
    resting: dict[str, dict[str, float]] = {}
    # Before there are keys: half a minute after they were set, each member flushes its tables.
    for way, watching in WAYS.items():
        async with watching(configs):
            resting[way] = await rest(clusters[way])
    for cluster in (recorded, unrecorded):
        await fill(cluster, load)
    guess = await turn(recorded, load, load.trial())
    requests = load.whole(int(guess.rate * seconds))
    for _ in range(runs):
        for way, watching in WAYS.items():
            async with watching(configs):
                found[way].append(await turn(clusters[way], load, requests))
    for cluster in (recorded, unrecorded):
        await check(cluster, load)
    alone = together(found[next(iter(WAYS))])
    for way, taken in found.items():
        rates = [run.rate for run in taken]
        middle = together(taken)
        bench.found(
            {
                "watched_by": way,
                **attrs.asdict(load),
                **attrs.asdict(middle),
                **resting[way],
                "of_unwatched": middle.rate / alone.rate,
                "lowest": min(rates),
                "highest": max(rates),
                "runs": [*map(attrs.asdict, taken)],
            }
        )


app = make_app()


@app.default
async def main(*, options: Common = USUAL, runs: int = 20, seconds: float = 1.0) -> None:
    """Measure SET at 64 clients while nobody, a monitor, or also browsers watch.

    Parameters
    ----------
    runs
        Number of turns of each way.
    seconds
        About how long each turn lasts.
    """
    stop_without("redis-benchmark", "redis-tools")
    if options.quick:
        runs, seconds = 1, 1.0
    settings = {"members": MEMBERS, "runs": runs, "seconds": seconds, "viewers": VIEWERS}
    with open_bench("metrics", options, **settings) as bench:
        configs = lay_out_watched(bench.place / "recorded")
        others = lay_out_watched(bench.place / "unrecorded")
        async with (
            open_cluster(configs) as recorded,
            open_unrecorded(others) as unrecorded,
        ):
            await measure_ways(bench, recorded, unrecorded, configs, runs=runs, seconds=seconds)


if __name__ == "__main__":
    sys.exit(app())
