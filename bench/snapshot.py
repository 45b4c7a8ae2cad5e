"""What snapshots cost and save: three members, real disks, one client machine which is this one.

Keys are loaded; then writers set them one command at a time, first alone and then while one
snapshot after the other is taken, and their latencies are compared. After that a follower is killed
and started again: as it is, without its tables, and with an empty disk. Times are from the start of
the process until the member follows and has applied everything.

The members share the machine with the client, and with each other: the snapshot of all three is
written by the same two processors and to the same disk.
"""

import json
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Final

import attrs
import trio
from cyclopts import App, Parameter

from quorate.cluster import (
    HOST,
    LocalCluster,
    MemberProcess,
    free_client_port,
    lay_out,
    open_cluster,
)
from quorate.node.config import NodeConfig, SnapshotPolicy
from quorate.respclient import open_resp
from quorate.status import SETTLED, Verdict, survey
from quorate.storage import SnapshotReader, describe

MEMBERS: Final = 3
PIPELINE: Final = 500
WRITERS: Final = 16

app = App(help=__doc__)


@attrs.frozen
class Load:
    """What is written.

    Args:
        keys: how many there are.
        size: of each value, in bytes; it packs to about a half.
    """

    keys: int
    size: int
    pool: bytes = attrs.field(factory=lambda: os.urandom(2 << 20).hex().encode(), repr=False)

    def set(self, number: int) -> tuple[bytes | str, ...]:
        """Give the command that sets a key."""
        start = number * 4099 % (len(self.pool) - self.size)
        return "SET", f"key:{number % self.keys:010d}", self.pool[start : start + self.size]


async def wait_until_agreed(cluster: LocalCluster) -> int:
    """Wait until all members follow one leader; give it."""
    while True:
        seen = await survey(cluster.addresses)
        if seen.verdict is Verdict.AGREED and seen.leader is not None:
            return seen.leader.member_id
        await trio.sleep(0.05)


async def load_keys(cluster: LocalCluster, leader: int, what: Load) -> float:
    """Set all keys; give the seconds."""
    began = time.perf_counter()
    address = cluster.members[leader].address

    async def load(first: int) -> None:
        async with open_resp(address.host, address.client_port) as client:
            for start in range(first, what.keys, 4 * PIPELINE):
                batch = range(start, min(start + PIPELINE, what.keys))
                await client.pipeline([what.set(number) for number in batch])

    async with trio.open_nursery() as nursery:
        for first in range(0, 4 * PIPELINE, PIPELINE):
            nursery.start_soon(load, first)
    return time.perf_counter() - began


async def latencies(
    cluster: LocalCluster, leader: int, what: Load, stop: trio.Event
) -> list[float]:
    """Write one command at a time until told to stop; give the seconds that each took."""
    found: list[float] = []
    address = cluster.members[leader].address

    async def write(number: int) -> None:
        async with open_resp(address.host, address.client_port) as client:
            at = number
            while not stop.is_set():
                began = time.perf_counter()
                await client.call(*what.set(at))
                found.append(time.perf_counter() - began)
                at += 7919

    async with trio.open_nursery() as nursery:
        for number in range(WRITERS):
            nursery.start_soon(write, number)
    return found


def percentiles(found: list[float]) -> dict[str, float]:
    """Milliseconds."""
    ranked = sorted(found)
    at = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
    result = {name: 1000 * ranked[int(part * (len(ranked) - 1))] for name, part in at.items()}
    return result | {"longest": 1000 * ranked[-1], "writes": float(len(ranked))}


async def control(cluster: LocalCluster, leader: int, *words: str) -> float:
    """Ask the leader for something; give the seconds."""
    address = cluster.members[leader].address
    began = time.perf_counter()
    async with open_resp(address.host, address.client_port) as client:
        await client.call("QUORATE.CONTROL", *words)
    return time.perf_counter() - began


async def compare(
    cluster: LocalCluster, leader: int, what: Load, seconds: float
) -> dict[str, object]:
    """Measure writes without snapshots, with them, and without again."""
    rounds: list[dict[str, float]] = []
    took: list[float] = []
    for snapshots in (False, True, False):
        stop, found = trio.Event(), list[list[float]]()

        async def measure(stop: trio.Event = stop, found: list[list[float]] = found) -> None:
            found.append(await latencies(cluster, leader, what, stop))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(measure)
            end = time.perf_counter() + seconds
            while snapshots and time.perf_counter() < end:
                took.append(await control(cluster, leader, "snapshot"))
                await quiet(cluster)
            await trio.sleep(max(0.0, end - time.perf_counter()))
            stop.set()
        rounds.append(percentiles(found[0]))
    return {"alone": rounds[0], "with snapshots": rounds[1], "alone again": rounds[2], "took": took}


async def quiet(cluster: LocalCluster) -> None:
    """Wait until no member is busy with a snapshot."""
    while any(  # noqa: ASYNC110 - of other processes
        status.snapshot_activity for status in (await survey(cluster.addresses)).said
    ):
        await trio.sleep(0.05)


async def back(member: MemberProcess) -> float:
    """Start a member; give the seconds until it follows and has applied all that is committed."""
    began = time.perf_counter()
    await member.start()
    while True:
        seen = await survey([member.address])
        for status in seen.said:
            if status.member_id == member.member_id and status.state == SETTLED:
                head = max(each.commit_position for each in seen.said)
                if status.applied_position >= head:
                    return time.perf_counter() - began
        await trio.sleep(0.02)


async def restarts(cluster: LocalCluster, leader: int) -> dict[str, float]:
    """Kill a follower and start it: as it is, without tables, and with an empty disk."""
    member = cluster.members[(leader + 1) % MEMBERS]
    folder = member.config.directory
    found: dict[str, float] = {}
    for name, gone in (
        ("as it is", ()),
        ("without its tables", ("tables",)),
        ("empty", ("tables", "log", "snapshots")),
    ):
        await member.kill()
        for what in gone:
            shutil.rmtree(folder / what)
        found[name] = await back(member)
    return found


def sizes(directory: Path) -> dict[str, int]:
    """What a member's directory holds, in bytes."""
    log = describe(directory / "log")
    newest = log.snapshots[-1] if log.snapshots else None
    raw = 0
    if newest is not None:
        with SnapshotReader(directory / "snapshots" / newest.name) as reader:
            raw = sum(map(len, reader.pieces()))
    return {
        "log": log.bytes,
        "log file": log.file_bytes,
        "log free": log.free_pages * log.page_bytes,
        "tables file": (directory / "tables" / "data.mdb").stat().st_size,
        "snapshots": sum(path.stat().st_size for path in (directory / "snapshots").iterdir()),
        "newest snapshot unpacked": raw,
    }


async def measure(configs: list[NodeConfig], what: Load, seconds: float) -> object:
    """Do all of it; give what was measured."""
    async with open_cluster(configs) as cluster:
        leader = await wait_until_agreed(cluster)
        loaded = await load_keys(cluster, leader, what)
        before = sizes(configs[leader].directory)
        writes = await compare(cluster, leader, what, seconds)
        await quiet(cluster)
        after = sizes(configs[leader].directory)
        times = await restarts(cluster, await wait_until_agreed(cluster))
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, load {os.getloadavg()[0]}",
        "keys": what.keys,
        "value bytes": what.size,
        "loading seconds": loaded,
        "before": before,
        "writes": writes,
        "after": after,
        "seconds until a follower is back": times,
    }


@app.default
def main(
    *,
    keys: int = 200_000,
    size: Annotated[int, Parameter(help="Bytes of a value.")] = 1000,
    seconds: float = 10.0,
    log: Annotated[bool, Parameter(help="Keep the whole log.", negative="")] = False,
    directory: Path | None = None,
) -> None:
    """Run it, and print what was measured as JSON."""
    margin = 2**40 if log else 0
    policy = SnapshotPolicy(keep=2, interval_bytes=2**40, margin_bytes=margin)
    with tempfile.TemporaryDirectory(prefix="quorate-snapshot-", dir=directory) as folder:
        laid = lay_out(Path(folder), members=MEMBERS, client_port=free_client_port(MEMBERS))
        configs = [attrs.evolve(config, snapshot=policy) for config in laid]
        for config in configs:
            text = attrs.evolve(config, directory=Path()).to_toml()
            (config.directory / "node.toml").write_text(text)
        result = trio.run(measure, configs, Load(keys, size), seconds)
    json.dump(result, sys.stdout, indent=2)
    print(f"\n{HOST}: done")


if __name__ == "__main__":
    app()
