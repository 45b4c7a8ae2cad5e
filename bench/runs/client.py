"""Our own client beside coredis and redis-py, in one run.

Three members run as processes, and a program of one process sets and gets keys at the leader:
with 1, 64 and 256 tasks, each of which awaits one command after another
(`bench/lib/client_load.py`). Our client and coredis run on trio, redis-py on asyncio. The clients
take turns within each round, so that a noisy minute affects all alike; the table has the median
round. `of_faster` is our rate as a part of that of the faster one of the other two.

Our client sends each write exactly once, and a row shows it without. The others repeat nothing.
At the end the keys of all members are checked.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from typing import Final

import attrs
import trio

from bench.lib.filling import check, fill
from bench.lib.harness import KEPT, USUAL, Common, lay_out_members, make_app, open_bench
from bench.lib.measuring import Latencies, Load, settled
from quorate.local.cluster import open_cluster

MEMBERS: Final = 3
CLIENTS: Final = ("quorate", "quorate plain", "coredis", "redis-py")
OTHERS: Final = ("coredis", "redis-py")


async def run_client(client: str, load: Load, seconds: float, ports: Sequence[int]) -> Latencies:
    """Run one client in a process of its own."""
    command = [sys.executable, "-m", "bench.lib.client_load", client, load.command]
    command += [str(load.clients), str(seconds), *map(str, ports)]
    done = await trio.run_process(command, capture_stdout=True)
    return Latencies(**json.loads(done.stdout))


def middle(runs: Sequence[Latencies]) -> Latencies:
    """Return the median of each figure, taken separately."""
    columns = zip(*map(attrs.astuple, runs), strict=True)
    return Latencies(*(statistics.median(column) for column in columns))


app = make_app()


@app.default
async def main(
    *,
    options: Common = USUAL,
    rounds: int = 5,
    seconds: float = 2.0,
    tasks: tuple[int, ...] = (1, 64, 256),
) -> None:
    """Measure clients side by side.

    Parameters
    ----------
    rounds
        Runs of each client.
    seconds
        About how long each run lasts.
    tasks
        Numbers of tasks.
    """
    if options.quick:
        rounds, seconds, tasks = 1, 0.5, (1, 16)
    settings = {"members": MEMBERS, "rounds": rounds, "seconds": seconds}
    with open_bench("client", options, **settings) as bench:
        configs = lay_out_members(bench.place, MEMBERS, snapshot=KEPT)
        async with open_cluster(configs) as cluster:
            await fill(cluster, Load("set", 1))
            leader, _ = await settled(cluster)
            members = sorted(cluster.members, key=lambda one: one.member_id != leader.member_id)
            ports = [member.address.client_port for member in members]
            for load in (Load(command, count) for count in tasks for command in ("set", "get")):
                taken: dict[str, list[Latencies]] = {client: [] for client in CLIENTS}
                for _ in range(rounds):
                    for client, runs in taken.items():
                        runs.append(await run_client(client, load, seconds, ports))
                found = {client: middle(runs) for client, runs in taken.items()}
                faster = max(found[client].rate for client in OTHERS)
                for client, figures in found.items():
                    rates = [run.rate for run in taken[client]]
                    bench.found(
                        {
                            "client": client,
                            "command": load.command,
                            "tasks": load.clients,
                            **attrs.asdict(figures),
                            "of_faster": figures.rate / faster,
                            "lowest": min(rates),
                            "highest": max(rates),
                        }
                    )
            await check(cluster, Load("set", 1))


if __name__ == "__main__":
    sys.exit(app())
