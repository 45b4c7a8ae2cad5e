"""How the cost of a restart, of a verification and of pruning grows with the length of the log.

A single member, which takes no snapshots, is loaded with SETs of 4 KiB over ten thousand keys until
its log has the wanted length. Then it is killed and started again. The measured time ends when it
answers a linearizable GET, after an election and the replay of its log. The log must then have all
acknowledged writes, and the member's state must agree with it. Then the member stops, and `quorate
log verify` reads everything; half a second of that is the start of the program. At the end the
whole log is dropped, step by step, as after a snapshot.
"""

import random
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated, Final

import attrs
import trio
from cyclopts import Parameter

from bench.lib.checking import LostError, Stretch
from bench.lib.harness import (
    NEVER,
    USUAL,
    Bench,
    Common,
    lay_out_members,
    make_app,
    open_bench,
    stop_without,
)
from bench.lib.measuring import Load, benchmark, check_load, memory, settled
from bench.report.results import Row
from quorate.client.resp import RespError, open_resp
from quorate.local.cluster import LocalCluster, MemberProcess, open_cluster
from quorate.node.config.config import NodeConfig
from quorate.storage import Store

LOAD: Final = Load("set", 16, 16, value_bytes=4096, keys=10_000)
MB: Final = 1_000_000


async def write_log(cluster: LocalCluster, megabytes: int) -> tuple[float, int]:
    """Let the member write a log of some MB; return MB a second, and the number of writes."""
    await settled(cluster)  # otherwise redis-benchmark waits for ever
    began, length, writes = time.perf_counter(), 0, 0
    port = cluster.members[0].address.client_port
    while (left := megabytes * MB - length) > 0:
        requests = max(LOAD.trial(), LOAD.whole(left // (LOAD.value_bytes + 128)))
        await benchmark(LOAD, port, requests)
        writes += requests
        leader, _ = await settled(cluster)
        length = leader.append_position
    return length / MB / (time.perf_counter() - began), writes


async def serves(member: MemberProcess) -> float:
    """Start a member; return the seconds until it answers a linearizable GET."""
    began = time.perf_counter()
    await member.start()
    with trio.fail_after(300):
        while True:
            try:
                async with open_resp(member.address.host, member.address.client_port) as client:
                    await client.call("GET", "key:000000000000")
                    return time.perf_counter() - began
            except (OSError, RespError):
                await trio.sleep(0.01)


async def verify(config: NodeConfig) -> float:
    """Verify the whole log with the command line; return the seconds.

    Raises:
        LostError: the log is damaged.
    """
    began = time.perf_counter()
    command = [sys.executable, "-m", "quorate", "log", "verify", str(config.directory)]
    done = await trio.run_process(command, capture_stdout=True, check=False)
    if done.returncode:
        raise LostError(done.stdout.decode())
    return time.perf_counter() - began


async def prune(config: NodeConfig) -> float:
    """Drop the whole log; return the seconds."""
    store = Store.open(
        config.directory / "log",
        cluster=config.cluster,
        member_id=config.member_id,
        rng=random.Random(0),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        began = time.perf_counter()
        await store.drop_prefix(store.append_position)
        took = time.perf_counter() - began
        assert store.start_position == store.append_position
        nursery.cancel_scope.cancel()
    store.close()
    return took


async def measure(place: Path, megabytes: int) -> Row:
    """Measure a log of some MB."""
    (config,) = lay_out_members(place, 1, snapshot=NEVER)
    async with open_cluster([config]) as cluster:
        (member,) = cluster.members
        rate, writes = await write_log(cluster, megabytes)
        leader, _ = await settled(cluster)
        await member.kill()
        restart = await serves(member)
        assert member.pid is not None
        held = memory(member.pid)
        after, _ = await settled(cluster)
        assert after.append_position >= leader.append_position
        await check_load([member], LOAD, Stretch(0, leader.append_position), writes)
    verified = await verify(config)
    return {
        "log_mb": megabytes,
        "written_mb_per_s": rate,
        "restart_s": restart,
        "verify_s": verified,
        "verify_mb_per_s": megabytes / verified,
        "prune_s": await prune(config),
        **attrs.asdict(held),
    }


async def measure_all(bench: Bench, sizes: tuple[int, ...]) -> None:
    """Measure each length on an empty disk."""
    for megabytes in sizes:
        place = bench.place / "point"
        bench.found(await measure(place, megabytes))
        shutil.rmtree(place)


app = make_app()


@app.default
async def main(
    *,
    options: Common = USUAL,
    megabytes: Annotated[tuple[int, ...], Parameter(consume_multiple=True, negative="")] = (
        10,
        100,
        1000,
        10_000,
    ),
) -> None:
    """Measure how restart, verification and pruning grow with the log.

    Parameters
    ----------
    megabytes
        Lengths of the log, in MB (10^6 bytes).
    """
    stop_without("redis-benchmark", "redis-tools")
    if options.quick:
        megabytes = (10, 100)
    with open_bench("growth-log", options) as bench:
        await measure_all(bench, megabytes)


if __name__ == "__main__":
    sys.exit(app())
