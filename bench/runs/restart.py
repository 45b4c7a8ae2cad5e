"""The memory of members, and how soon they serve again after a restart.

Three members are filled. Their memory is read from /proc, first with a tenth of the keys, then with
all keys. Then members are started again, and the time is measured from the start of the process. A
follower is started after kill -9, and after an orderly stop, until it has applied everything
committed. All three are started after kill -9, until a SET is acknowledged.

A cluster with a quorum serves during a restart, so only the last case is an outage. At the end all
members must have all keys with their values.
"""

import statistics
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import trio

from bench.lib.filling import check, fill
from bench.lib.harness import USUAL, Bench, Common, lay_out_members, make_app, open_bench
from bench.lib.measuring import Load, Memory, memory, processor_seconds, quiet, settled
from bench.report.results import Row
from bench.runs.snapshot import back
from quorate.client.resp import RespError, open_resp
from quorate.local.cluster import LocalCluster, open_cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MEMBERS: Final = 3


async def held(cluster: LocalCluster, keys: int) -> Row:
    """Return the memory of the leader and of a follower."""
    leader, _ = await settled(cluster)
    await quiet(cluster.addresses)
    await trio.sleep(2)  # until flushes end
    found = {one.member_id: memory(one.pid) for one in cluster.members if one.pid is not None}
    own = found.pop(leader.member_id)
    others = Memory(*map(statistics.mean, zip(*map(attrs.astuple, found.values()), strict=True)))
    sides = {"leader": own, "follower": others}
    return {"keys": keys} | {
        f"{side}_{name}": value
        for side, one in sides.items()
        for name, value in attrs.asdict(one).items()
    }


async def follower_back(cluster: LocalCluster, *, orderly: bool) -> tuple[float, float]:
    """Start a follower again; return the seconds, and the processor time."""
    leader, _ = await settled(cluster)
    follower = next(one for one in cluster.members if one.member_id != leader.member_id)
    await (follower.stop() if orderly else follower.kill())
    seconds = await back(follower)
    assert follower.pid is not None
    return seconds, processor_seconds(follower.pid)


async def all_back(cluster: LocalCluster) -> tuple[float, float]:
    """Start all members; return the seconds to the first acknowledged SET, and processor time."""
    await settled(cluster)
    await cluster.kill()
    began = time.perf_counter()
    await cluster.start()
    with trio.fail_after(300):
        while True:
            for address in cluster.addresses:
                try:
                    async with open_resp(address.host, address.client_port) as client:
                        await client.call("SET", "key:000000000000", b"x" * 256)
                        pids = (one.pid for one in cluster.members if one.pid is not None)
                        return time.perf_counter() - began, sum(map(processor_seconds, pids))
                except (OSError, RespError):
                    await trio.sleep(0.01)


async def measure_all(bench: Bench, keys: int, runs: int) -> None:
    """Fill the members, read their memory, and start them again."""
    async with open_cluster(lay_out_members(bench.place, MEMBERS)) as cluster:
        await fill(cluster, Load("set", 1, keys=keys // 10))
        bench.found(await held(cluster, keys // 10))
        whole = Load("set", 1, keys=keys)
        await fill(cluster, whole)
        bench.found(await held(cluster, keys))
        ways: dict[str, Callable[[], Awaitable[tuple[float, float]]]] = {
            "a follower, after kill -9": partial(follower_back, cluster, orderly=False),
            "a follower, after an orderly stop": partial(follower_back, cluster, orderly=True),
            "all three, after kill -9, until a SET": partial(all_back, cluster),
        }
        for what, start in ways.items():
            taken = [await start() for _ in range(runs)]
            seconds, used = zip(*taken, strict=True)
            row = {"what": what, "median_s": statistics.median(seconds), "longest_s": max(seconds)}
            bench.found({**row, "cpu_s": statistics.median(used), "runs": taken})
        await check(cluster, whole, b"x")


app = make_app()


@app.default
async def main(*, options: Common = USUAL, keys: int = 1_000_000, runs: int = 5) -> None:
    """Measure memory, and how soon members serve again after a restart.

    Parameters
    ----------
    keys
        Number of keys, with values of 256 bytes.
    runs
        How often each start is repeated; the median is shown.
    """
    if options.quick:
        keys, runs = 100_000, 1
    with open_bench("restart", options, members=MEMBERS, keys=keys, runs=runs) as bench:
        await measure_all(bench, keys, runs)


if __name__ == "__main__":
    sys.exit(app())
