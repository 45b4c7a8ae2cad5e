"""What snapshots cost and save: three members, real disks, and clients on the same machine.

Keys are loaded, with values that compress to about a half. A follower is killed and started again,
and replays its whole log. Then 64 clients set the keys: first alone, then while snapshots are taken
one after the other, then alone again. Disk usage is measured before and after, since every snapshot
drops the log before it.

At the end a follower comes back after a kill in four ways: unchanged, without its tables, so far
behind that it must fetch the snapshot, and with an empty disk (`quorate recover`). Each time runs
from the start of the process until the member follows and has applied everything.

Whenever a follower is back, its keys, values and log are compared with those of the other members.
Snapshots of one position must be equal on all members. One follower keeps its whole log, to check
the writes made during snapshots; it is never restarted.

Members and clients share the machine, so two processors and one disk write all three snapshots.
"""

import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Final

import attrs
import trio

from bench.lib.checking import LostError, Stretch, check_logs
from bench.lib.filling import check, fill
from bench.lib.harness import (
    NEVER,
    USUAL,
    Bench,
    Common,
    lay_out_members,
    make_app,
    open_bench,
    stop_without,
    write,
)
from bench.lib.measuring import (
    Load,
    Run,
    address_of,
    benchmark,
    check_load,
    level,
    measure,
    median,
    quiet,
    settled,
)
from bench.report.results import Row
from quorate.client.resp import open_resp
from quorate.local.cluster import LocalCluster, MemberProcess, open_cluster
from quorate.local.survey import SETTLED, survey
from quorate.node.config.config import SnapshotPolicy
from quorate.storage import Summary, describe
from quorate.storage.snapshots.file import check_snapshot

MEMBERS: Final = 3
POLICY: Final = SnapshotPolicy(keep=1, interval_bytes=2**50, margin_bytes=0)
"""Snapshots on request only, and no log is kept before them."""

KEEPER: Final = MEMBERS - 1
"""The member that keeps its whole log; it does not lead."""

POOL_BYTES: Final = 1 << 20
MB: Final = 1_000_000


async def take(cluster: LocalCluster) -> float:
    """Take a snapshot; return the seconds until all members have theirs."""
    leader = (await survey(cluster.addresses)).leader
    assert leader is not None
    at = address_of(cluster, leader.member_id)
    began = time.perf_counter()
    async with open_resp(at.host, at.client_port) as client:
        await client.call("QUORATE.CONTROL", "snapshot")
    await quiet(cluster.addresses)
    return time.perf_counter() - began


async def compare_snapshots(cluster: LocalCluster) -> float:
    """Check that all members have the same snapshot; return its uncompressed size in MB.

    Raises:
        LostError: the snapshots differ.
    """

    def read() -> list[Summary]:
        folders = [one.config.directory for one in cluster.members]
        return [check_snapshot(newest_snapshot(folder)) for folder in folders]

    found = await trio.to_thread.run_sync(read)
    if len({(one.head.position, one.digest) for one in found}) > 1:
        facts = [f"{one.digest} at {one.head.position}" for one in found]
        raise LostError(f"the members' snapshots differ: {', '.join(facts)}")
    return found[0].raw_bytes / MB


async def pruned(cluster: LocalCluster) -> None:
    """Wait until members have dropped the log before their snapshot.

    Waits at most half a minute; then the figures include the remaining log.
    """
    await quiet(cluster.addresses)
    with trio.move_on_after(30):
        while any(  # noqa: ASYNC110 - other processes
            status.start_position < status.snapshot_position
            for status in (await survey(cluster.addresses)).said
            if status.member_id != KEEPER
        ):
            await trio.sleep(0.1)


async def compare(cluster: LocalCluster, load: Load, seconds: float) -> tuple[list[Row], float]:
    """Measure writes without, with, and again without snapshots, and the time of a snapshot."""
    took = list[float]()
    keeper = cluster.members[KEEPER]

    async def snapshots(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        while True:
            took.append(await take(cluster))

    async def beside() -> Run:
        async with trio.open_nursery() as nursery:
            await nursery.start(snapshots)
            found = [await measure(cluster, load, seconds, keeper=keeper)]
            while not took:
                found.append(await measure(cluster, load, seconds, keeper=keeper))
            nursery.cancel_scope.cancel()
        return median(found)

    runs = {
        "alone": await measure(cluster, load, seconds),
        "while snapshots are taken": await beside(),
        "alone again": (await take(cluster), await measure(cluster, load, seconds))[1],
    }
    rows: list[Row] = [
        {"writes": when, "clients": load.clients, **attrs.asdict(r)} for when, r in runs.items()
    ]
    return rows, statistics.median(took)


async def back(member: MemberProcess) -> float:
    """Start a member; return the seconds until it follows and has applied everything committed."""
    began = time.perf_counter()
    await member.start()
    with trio.fail_after(600):
        while True:
            seen = await survey([member.address])
            for status in seen.said:
                if status.member_id == member.member_id and status.state == SETTLED:
                    head = max(each.commit_position for each in seen.said)
                    if status.applied_position >= head:
                        return time.perf_counter() - began
            await trio.sleep(0.02)


async def follower_of(cluster: LocalCluster) -> tuple[MemberProcess, MemberProcess]:
    """Return the leader and a follower that does not keep its whole log."""
    while (status := (await settled(cluster))[0]).member_id == KEEPER:
        at = address_of(cluster, KEEPER)
        async with open_resp(at.host, at.client_port) as client:
            await client.call("QUORATE.CONTROL", "transfer", "0")
    leader = next(one for one in cluster.members if one.member_id == status.member_id)
    return leader, next(one for one in cluster.members if one is not leader)


async def is_whole(cluster: LocalCluster, load: Load) -> None:
    """Check that all members have the same keys, values, and log (as far as they keep it).

    Raises:
        LostError: something differs.
    """
    await check(cluster, load)
    await check_logs(cluster.members, (await settled(cluster))[0].append_position)


async def restart(cluster: LocalCluster, load: Load, *gone: str) -> float:
    """Kill a follower, remove some of its data, and start it again."""
    _, follower = await follower_of(cluster)
    await follower.kill()
    for name in gone:
        shutil.rmtree(follower.config.directory / name)
    took = await back(follower)
    await is_whole(cluster, load)
    return took


async def install(cluster: LocalCluster, load: Load) -> float:
    """Restart a follower that is so far behind that it must fetch the snapshot."""
    leader, follower = await follower_of(cluster)
    await follower.kill()
    there = [one for one in cluster.members if one is not follower]
    begin = await level(there)
    await benchmark(load, leader.address.client_port, load.trial())
    await check_load(there, load, Stretch(begin, await level(there)), load.trial())
    async with open_resp(leader.address.host, leader.address.client_port) as client:
        await client.call("QUORATE.CONTROL", "snapshot")
    await quiet([leader.address])
    took = await back(follower)
    await is_whole(cluster, load)
    return took


async def recover(cluster: LocalCluster, load: Load) -> float:
    """Empty the disk of a follower, run `quorate recover`, and start it."""
    _, follower = await follower_of(cluster)
    await follower.kill()
    folder = follower.config.directory
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    began = time.perf_counter()
    command = [sys.executable, "-m", "quorate", "recover", str(folder / "node.toml")]
    await trio.run_process(command, capture_stdout=True, capture_stderr=True)
    took = time.perf_counter() - began + await back(follower)
    await is_whole(cluster, load)
    return took


def sizes(directory: Path) -> dict[str, float]:
    """Return the sizes of a member's files, in MB."""
    log = describe(directory / "log")
    found: dict[str, float] = {
        "log_mb": log.bytes,
        "log_file_mb": log.file_bytes,
        "log_free_mb": log.free_pages * log.page_bytes,
        "tables_file_mb": (directory / "tables" / "data.mdb").stat().st_size,
        "snapshots_mb": sum(path.stat().st_size for path in (directory / "snapshots").iterdir()),
    }
    return {name: size / MB for name, size in found.items()}


def newest_snapshot(directory: Path) -> Path:
    """Return the file of a member's newest snapshot."""
    return directory / "snapshots" / describe(directory / "log").snapshots[-1].name


async def measure_all(bench: Bench, load: Load, seconds: float) -> None:
    """Run all measurements."""
    configs = lay_out_members(bench.place, MEMBERS, snapshot=POLICY)
    write(keeper := attrs.evolve(configs[KEEPER], snapshot=NEVER))
    configs[KEEPER] = keeper
    async with open_cluster(configs) as cluster:
        pool = os.urandom(POOL_BYTES // 2).hex().encode()
        await fill(cluster, load, pool)
        folder = (await follower_of(cluster))[0].config.directory
        bench.found({"disk": "before the first snapshot", **sizes(folder)})
        times = {"killed, with the whole log": await restart(cluster, load)}
        await check(cluster, load, pool)
        seconds_alone = await take(cluster)
        await pruned(cluster)
        bench.found({"disk": "after it", **sizes(folder)})
        size = await compare_snapshots(cluster)
        writes, seconds_beside = await compare(cluster, load, seconds)
        for what, took in (("alone", seconds_alone), ("beside writes", seconds_beside)):
            rate = size / took
            bench.found({"snapshot": what, "mb": size, "seconds": took, "mb_per_s": rate})
        for row in writes:
            bench.found(row)
        await pruned(cluster)
        bench.found({"disk": "after writes and snapshots", **sizes(folder)})
        times["killed"] = await restart(cluster, load)
        times["killed, its tables gone: loads its snapshot"] = await restart(
            cluster, load, "tables"
        )
        times["too far behind: fetches a snapshot"] = await install(cluster, load)
        times["an empty disk: quorate recover"] = await recover(cluster, load)
        for what, took in times.items():
            bench.found({"follower": what, "seconds": took})


app = make_app()


@app.default
async def main(
    *, options: Common = USUAL, keys: int = 1_000_000, size: int = 1000, seconds: float = 10.0
) -> None:
    """Measure what snapshots cost and save.

    Parameters
    ----------
    keys
        Number of keys.
    size
        Length of each value, in bytes.
    seconds
        How long each run of writes lasts.
    """
    stop_without("redis-benchmark", "redis-tools")
    if options.quick:
        keys, seconds = 50_000, 3.0
    load = Load("set", 64, 1, size, keys)
    with open_bench("snapshot", options, members=MEMBERS, keys=keys, value_bytes=size) as bench:
        await measure_all(bench, load, seconds)


if __name__ == "__main__":
    sys.exit(app())
