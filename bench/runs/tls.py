"""What TLS costs clients, and what it costs a member when all of them come back at once.

Three members with certificates have a plain port and a TLS port each. `redis-benchmark` sets and
gets at the leader, at one port and at the other in turns, so that a noisy minute affects both
alike. The load program encrypts, too, on the same processors: what the members alone lose is in the
columns of processor time.

Then two thousand clients connect to the leader with TLS, are closed, and connect again at the same
moment (`lib/reconnecting.py`), while a plain client sets a key. The table shows how long it took
until all were served, the longest time that the plain client waited for a reply, and the elections.

After each run its writes are checked in the log of each member.
"""

import json
import sys
import time
from pathlib import Path
from typing import Final

import attrs
import trio

from bench.lib.filling import check, fill
from bench.lib.harness import (
    KEPT,
    USUAL,
    Bench,
    Common,
    make_app,
    open_bench,
    stop_without,
    write,
)
from bench.lib.measuring import Load, Run, address_of, measure, median, rested, settled
from quorate.client.resp import open_resp
from quorate.local.cluster import LocalCluster, free_client_port, open_cluster
from quorate.local.secured import CERTIFICATES, lay_out_secured
from quorate.node.config.config import NodeConfig

MEMBERS: Final = 3
CLIENTS: Final = 64
PORTS: Final = ("plain", "TLS")


def lay_out_certified(place: Path) -> list[NodeConfig]:
    """Configure members with certificates and both kinds of ports."""
    port = free_client_port(MEMBERS)
    laid = lay_out_secured(place, members=MEMBERS, client_port=port, cluster="bench")
    configs = [attrs.evolve(config, snapshot=KEPT) for config in laid]
    for config in configs:
        write(config)
    return configs


async def measure_rates(bench: Bench, cluster: LocalCluster, runs: int, seconds: float) -> None:
    """Measure SET and GET at both ports, in turns."""
    ca = bench.place / CERTIFICATES / "ca.crt"
    loads = [Load(command, CLIENTS) for command in ("set", "get")]
    found: dict[tuple[str, Load], list[Run]] = {(p, x): [] for x in loads for p in PORTS}
    await fill(cluster, loads[0])
    for _ in range(runs):
        for (port, load), taken in found.items():
            taken.append(await measure(cluster, load, seconds, ca=ca if port == "TLS" else None))
    await check(cluster, loads[0])
    for (port, load), taken in found.items():
        rates = [run.rate for run in taken]
        middle = median(taken)
        plain = median(found["plain", load]).rate
        bench.found(
            {
                "port": port,
                **attrs.asdict(load),
                **attrs.asdict(middle),
                "of_plain": middle.rate / plain,
                "lowest": min(rates),
                "highest": max(rates),
                "runs": [*map(attrs.asdict, taken)],
            }
        )


async def longest_wait(host: str, port: int, done: trio.Event) -> float:
    """Set a key repeatedly; return the longest time until a reply, in seconds."""
    longest = 0.0
    async with open_resp(host, port) as client:
        while not done.is_set():
            began = time.perf_counter()
            await client.call("SET", "waits", "x")
            longest = max(longest, time.perf_counter() - began)
    return longest


async def reconnect(bench: Bench, cluster: LocalCluster, clients: int) -> None:
    """Connect many clients at once, twice."""
    await rested(cluster)
    leader, before = await settled(cluster)
    at = address_of(cluster, leader.member_id)
    ca = str(bench.place / CERTIFICATES / "ca.crt")
    done, waits = trio.Event(), list[float]()

    async def wait() -> None:
        waits.append(await longest_wait(at.host, at.client_port, done))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        command = [sys.executable, "-m", "bench.lib.reconnecting"]
        ran = await trio.run_process(
            [*command, str(at.tls_port), str(clients), ca], capture_stdout=True
        )
        done.set()
    _, after = await settled(cluster)
    elections = max(after[one].elections - before[one].elections for one in after)
    told = json.loads(ran.stdout)
    bench.found(
        {
            "reconnecting": clients,
            **told,
            "longest_wait_ms": waits[0] * 1000,
            "elections": elections,
        }
    )


app = make_app()


@app.default
async def main(
    *, options: Common = USUAL, runs: int = 3, seconds: float = 3.0, clients: int = 2000
) -> None:
    """Measure clients with and without TLS, and many that reconnect at once.

    Parameters
    ----------
    runs
        Number of runs of each load, and of storms.
    seconds
        About how long each run lasts.
    clients
        How many reconnect at once.
    """
    stop_without("redis-benchmark", "redis-tools")
    if options.quick:
        runs, seconds, clients = 1, 1.0, 200
    settings = {"members": MEMBERS, "runs": runs, "seconds": seconds}
    with open_bench("tls", options, **settings) as bench:
        async with open_cluster(lay_out_certified(bench.place)) as cluster:
            await measure_rates(bench, cluster, runs, seconds)
            for _ in range(runs):
                await reconnect(bench, cluster, clients)


if __name__ == "__main__":
    sys.exit(app())
