"""Clusters of three members of quorate, etcd and RedisRaft, for the same load.

Each product commits durably on a quorum before it answers, and reads linearizably. All other
options keep their defaults, except addresses and directories.

Each product reports how much it has written, for comparison with the acknowledged writes. Our log
holds the writes themselves; one revision of etcd, or one entry of RedisRaft's log, is one write.
"""

import base64
import json
import os
import re
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from bench.lib.checking import LostError, Stretch
from bench.lib.filling import check, fill
from bench.lib.harness import KEPT, lay_out_members
from bench.lib.measuring import Latencies, Load, benchmark, check_load, settled
from bench.report.sections import LEASED, OURS
from bench.runs.cluster import MEMBERS
from quorate.client.resp import RespError, open_resp
from quorate.local.cluster import LocalCluster, free_client_port, open_cluster
from quorate.node import Timeouts
from quorate.node.requests.status import NodeStatus

HOST: Final = "127.0.0.1"
CONNECTIONS: Final = 8
FILL: Final = 3
"""Random writes for each key. Smaller: more keys are never written. Larger: filling takes
longer."""
READY_SECONDS: Final = 60.0
TRY_SECONDS: Final = 0.2
LEVEL_SECONDS: Final = 10.0
"""Seconds that a follower has to apply its log."""
LOOKED_AT: Final = 1000
"""Keys whose values are checked on each member of etcd, or on RedisRaft's leader."""


BOTH: Final = ("set", "get")


@attrs.frozen
class Peer:
    """A running cluster with (nearly) all keys.

    Args:
        name: name of the product.
        pids: process ids of its members, the leader's first.
        run: runs a load with a number of requests.
        check: checks that all members have this number of values, written by the load since the
            last check; raises `LostError`.
        compare: checks that all members have the same keys and values; raises `LostError`.
        commands: the commands that may be used as a load.
        pipelines: whether a client may send more than one request before it is answered.
        status: returns our leader's status; None for other products.
    """

    name: str
    pids: Sequence[int]
    run: Callable[[Load, int], Awaitable[Latencies]]
    check: Callable[[Load, int], Awaitable[None]]
    compare: Callable[[], Awaitable[None]]
    commands: Sequence[str] = BOTH
    pipelines: bool = True
    status: Callable[[], Awaitable[NodeStatus]] | None = None


@attrs.define
class Count:
    """A number that grows by one with each write, on all members.

    Args:
        name: name of the number.
        read: reads the number from all members.
        mark: its last value.
    """

    name: str
    read: Callable[[], Awaitable[list[int]]]
    mark: int

    @classmethod
    async def begin(cls, name: str, read: Callable[[], Awaitable[list[int]]]) -> "Count":
        """Begin with the present value, once all members agree on it."""
        with trio.fail_after(READY_SECONDS):
            while len(set(seen := await read())) > 1:  # noqa: ASYNC110 - other processes
                await trio.sleep(TRY_SECONDS)
        return cls(name, read, seen[0])

    async def check(self, _load: Load, writes: int) -> None:
        """Check that the number has grown by `writes`.

        Raises:
            LostError: it has not, on some member.
        """
        wanted, seen = self.mark + writes, list[int]()
        with trio.move_on_after(LEVEL_SECONDS):
            while (seen := await self.read()) != [wanted] * MEMBERS:  # noqa: ASYNC110 - as above
                await trio.sleep(TRY_SECONDS)
        if seen != [wanted] * MEMBERS:
            raise LostError(
                f"{writes} writes were acknowledged; {self.name} went from {self.mark} to {seen}"
            )
        self.mark = wanted


@attrs.define
class Log:
    """Our log, and the position up to which it was checked."""

    cluster: LocalCluster
    mark: int

    async def leader(self) -> NodeStatus:
        """Return the leader's status, once all members are idle."""
        return (await settled(self.cluster))[0]

    async def check(self, load: Load, writes: int) -> None:
        """Check that the log has this many more writes.

        Raises:
            LostError: it has not, on some member.
        """
        end = (await self.leader()).append_position
        await check_load(self.cluster.members, load, Stretch(self.mark, end), writes)
        self.mark = end


def check_lengths(who: str, values: Sequence[object]) -> None:
    """Check that all values exist and have the right length.

    Raises:
        LostError: a value is missing or has another length.
    """
    size = Load("set", 1).value_bytes
    wrong = [one for one in values if one is not None and one_length(one) != size]
    if wrong or not any(values):
        raise LostError(f"{who}: {len(wrong)} of {len(values)} values are wrong: {wrong[:1]!r:.60}")


def one_length(value: object) -> int:
    """Return the length of a value; -1 for a reply that is not a value."""
    return len(value) if isinstance(value, bytes) else -1


def make(directory: Path) -> Path:
    """Make a directory and its parents."""
    directory.mkdir(parents=True)
    return directory


async def _start(nursery: trio.Nursery, directory: Path, *command: str) -> int:
    """Start a process that ends with the nursery; return its id."""
    with (directory / "log").open("ab") as log:
        process = await nursery.start(
            partial(trio.run_process, command, stdout=log, stderr=log, cwd=directory)
        )
    assert isinstance(process, trio.Process)
    return process.pid


async def _until(works: Callable[[], Awaitable[object]]) -> None:
    """Repeat a call until it does not fail."""
    with trio.fail_after(READY_SECONDS):
        while True:
            try:
                await works()
            except (OSError, RespError, subprocess.CalledProcessError):
                await trio.sleep(TRY_SECONDS)
            else:
                return


@asynccontextmanager
async def open_quorate(directory: Path, *, leased: bool = False) -> AsyncGenerator[Peer]:
    """Run three members of quorate; with leases of the maximum length, they are only read from."""
    usual = Timeouts.of("lan")
    lease = usual.leader_heartbeat_timeout if leased else 0.0
    timeouts = attrs.evolve(usual, leader_lease=lease)
    configs = lay_out_members(directory, MEMBERS, snapshot=KEPT, timeouts=timeouts)
    async with open_cluster(configs) as cluster:
        await fill(cluster, Load("set", 1))
        status, _ = await settled(cluster)
        leader = status.member_id
        members = sorted(cluster.members, key=lambda member: member.member_id != leader)
        pids = [member.pid for member in members if member.pid is not None]
        log = Log(cluster, status.append_position)
        yield Peer(
            LEASED if leased else OURS,
            pids,
            partial(_redis_load, members[0].address.client_port),
            log.check,
            partial(check, cluster, Load("set", 1)),
            commands=("get",) if leased else BOTH,
            status=log.leader,
        )
        if (await log.leader()).member_id != leader:
            raise RuntimeError("the leader changed during a run; this machine is too busy")


@asynccontextmanager
async def open_redisraft(directory: Path, module: Path) -> AsyncGenerator[Peer]:
    """Run three members of RedisRaft, from the module's file."""
    ports = [free_client_port(1) for _ in range(MEMBERS)]
    async with trio.open_nursery() as nursery:
        pids: list[int] = []
        for port in ports:
            own = make(directory / str(port))
            pids.append(
                await _start(
                    nursery,
                    own,
                    *("redis-server", "--port", str(port), "--save", "", "--appendonly", "no"),
                    *("--loadmodule", str(module)),
                    *("--raft.addr", f"{HOST}:{port}", "--raft.log-fsync", "yes"),
                )
            )
        await _until(partial(_redis_says, ports[0], "PING"))
        await _redis_says(ports[0], "RAFT.CLUSTER", "INIT")
        for port in ports[1:]:
            await _until(partial(_redis_says, port, "RAFT.CLUSTER", "JOIN", f"{HOST}:{ports[0]}"))
        await _until(partial(_redis_says, ports[0], "SET", "ready", "yes"))
        run = partial(_redis_load, ports[0])
        await run(filling := Load("set", 256), filling.whole(FILL * filling.keys))
        applied = partial(_redisraft_says, ports, "raft_last_applied_index")
        count = await Count.begin("the index of RedisRaft", applied)
        compare = partial(_redisraft_compare, ports)
        yield Peer("RedisRaft", pids, run, count.check, compare)
        nursery.cancel_scope.cancel()


async def _redis_load(port: int, load: Load, requests: int) -> Latencies:
    return await benchmark(load, port, requests)


async def _redis_says(port: int, *words: str) -> None:
    async with open_resp(HOST, port) as client:
        await client.call(*words)


async def _redisraft_says(ports: Sequence[int], name: str) -> list[int]:
    """Return a number of INFO, from each member."""
    found: list[int] = []
    for port in ports:
        async with open_resp(HOST, port) as client:
            said = await client.call("INFO", "everything")
        assert isinstance(said, bytes)
        (number,) = re.findall(rf"{name}[:=](\d+)", said.decode())
        found.append(int(number))
    return found


async def _redisraft_compare(ports: Sequence[int]) -> None:
    """Compare the number of keys; RedisRaft's followers do not return values."""
    counts = await _redisraft_says(ports, "db0:keys")
    async with open_resp(HOST, ports[0]) as client:
        values = await client.call("MGET", *(f"key:{n:012d}" for n in range(LOOKED_AT)))
    assert isinstance(values, list)
    check_lengths("RedisRaft", values)
    if len(set(counts)) > 1:
        raise LostError(f"members of RedisRaft have {counts} keys")


@asynccontextmanager
async def open_etcd(directory: Path, loader: Path) -> AsyncGenerator[Peer]:
    """Run three members of etcd; `loader` is the program built from `etcd_load/main.go`."""
    ports = [(free_client_port(1), free_client_port(1)) for _ in range(MEMBERS)]
    urls = [(f"http://{HOST}:{client}", f"http://{HOST}:{peer}") for client, peer in ports]
    make(directory)
    everybody = ",".join(f"m{i}={peer}" for i, (_, peer) in enumerate(urls))
    async with trio.open_nursery() as nursery:
        pids = [
            await _start(
                nursery,
                directory,
                *("etcd", "--name", f"m{i}", "--data-dir", str(directory / f"m{i}")),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", everybody, "--initial-cluster-state", "new"),
            )
            for i, (client, peer) in enumerate(urls)
        ]
        endpoints = ",".join(f"{HOST}:{client}" for client, _ in ports)
        run = partial(_etcd_load, loader, endpoints)
        await _until(partial(run, Load("set", 1), 1))
        await run(filling := Load("set", 256), filling.whole(FILL * filling.keys))
        leader = [_etcd_leads(one) for one in await _etcdctl(endpoints, "status")].index(True)
        pids.insert(0, pids.pop(leader))
        count = await Count.begin("the revision of etcd", partial(_etcd_revisions, endpoints))
        compare = partial(_etcd_compare, endpoints)
        yield Peer("etcd", pids, run, count.check, compare, pipelines=False)
        nursery.cancel_scope.cancel()


async def _etcd_load(loader: Path, endpoints: str, load: Load, requests: int) -> Latencies:
    command = [str(loader), "-endpoints", endpoints, "-op", {"set": "put"}.get(load.command, "get")]
    command += ["-connections", str(min(CONNECTIONS, load.clients)), "-clients", str(load.clients)]
    command += [
        "-total",
        str(requests),
        "-value-bytes",
        str(load.value_bytes),
        "-keys",
        str(load.keys),
    ]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True)
    found = json.loads(done.stdout)
    return Latencies(**found)


async def _etcdctl(endpoints: str, *words: str) -> list[dict[str, Any]]:
    """Return etcdctl's output for each endpoint."""
    said: list[dict[str, Any]] = json.loads(await _etcd_json(endpoints, "endpoint", *words))
    return said


async def _etcd_json(endpoints: str, *words: str) -> bytes:
    done = await trio.run_process(
        ["etcdctl", "--endpoints", endpoints, *words, "-w", "json"],
        capture_stdout=True,
        env=os.environ | {"ETCDCTL_API": "3"},
    )
    return done.stdout


def _etcd_leads(said: dict[str, Any]) -> bool:
    status = said["Status"]
    return bool(status["leader"] == status["header"]["member_id"])


async def _etcd_revisions(endpoints: str) -> list[int]:
    said = await _etcdctl(endpoints, "status")
    return [one["Status"]["header"]["revision"] for one in said]


async def _etcd_compare(endpoints: str) -> None:
    """Compare the members' hashes of their whole state, and some values."""
    hashes = [one["HashKV"]["hash"] for one in await _etcdctl(endpoints, "hashkv")]
    if len(set(hashes)) > 1:
        raise LostError(f"members of etcd have different values, by their hashes: {hashes}")
    for endpoint in endpoints.split(","):
        words = ("get", "key:", "--prefix", "--limit", str(LOOKED_AT), "--consistency", "s")
        said = json.loads(await _etcd_json(endpoint, *words))
        values = [base64.b64decode(one["value"]) for one in said.get("kvs", ())]
        check_lengths(f"etcd at {endpoint}", values)
