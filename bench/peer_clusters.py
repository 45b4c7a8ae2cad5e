"""Clusters of three to put the same load on: ours, etcd's, RedisRaft's.

Each commits durably on a quorum before it answers, and answers reads linearizably. What they are
called with is their default but for that, and for where they listen and store.
"""

import json
import os
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio
from cluster import MEMBERS
from harness import lay_out_members
from measuring import Latencies, Load, benchmark, fill, settled

from quorate.cluster import free_client_port, open_cluster
from quorate.respclient import RespError, open_resp

HOST: Final = "127.0.0.1"
CONNECTIONS: Final = 8
FILL: Final = 3
"""So many random writes of each key leave few keys out."""
READY_SECONDS: Final = 60.0
TRY_SECONDS: Final = 0.2


@attrs.frozen
class Peer:
    """A cluster that is up and has (nearly) all keys.

    Args:
        name: of the product.
        pids: process ids of its members, the leader's first.
        run: puts a load of so many requests on it.
        pipelines: whether a client may send more than one request before it is answered.
    """

    name: str
    pids: Sequence[int]
    run: Callable[[Load, int], Awaitable[Latencies]]
    pipelines: bool = True


def make(directory: Path) -> Path:
    """Make a directory, and those that it lies in."""
    directory.mkdir(parents=True)
    return directory


async def _start(nursery: trio.Nursery, directory: Path, *command: str) -> int:
    """Start a process that is ended with the nursery; return its id."""
    with (directory / "log").open("ab") as log:
        process = await nursery.start(
            partial(trio.run_process, command, stdout=log, stderr=log, cwd=directory)
        )
    assert isinstance(process, trio.Process)
    return process.pid


async def _until(works: Callable[[], Awaitable[object]]) -> None:
    """Try again and again until it does not fail."""
    with trio.fail_after(READY_SECONDS):
        while True:
            try:
                await works()
            except (OSError, RespError, subprocess.CalledProcessError):
                await trio.sleep(TRY_SECONDS)
            else:
                return


@asynccontextmanager
async def open_quorate(directory: Path) -> AsyncGenerator[Peer]:
    """Three members of ours."""
    async with open_cluster(lay_out_members(directory, MEMBERS)) as cluster:
        await fill(cluster, Load("set", 1))
        leader = (await settled(cluster))[0].member_id
        members = sorted(cluster.members, key=lambda member: member.member_id != leader)
        pids = [member.pid for member in members if member.pid is not None]
        yield Peer("quorate", pids, partial(_redis_load, members[0].address.client_port))
        if (await settled(cluster))[0].member_id != leader:
            raise RuntimeError("the leader changed during a run; this machine is too busy")


@asynccontextmanager
async def open_redisraft(directory: Path, module: Path) -> AsyncGenerator[Peer]:
    """Three of RedisRaft, by the module's file."""
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
        peer = Peer("RedisRaft", pids, partial(_redis_load, ports[0]))
        await peer.run(filling := Load("set", 256), FILL * filling.keys)
        yield peer
        nursery.cancel_scope.cancel()


async def _redis_load(port: int, load: Load, requests: int) -> Latencies:
    return await benchmark(load, port, requests)


async def _redis_says(port: int, *words: str) -> None:
    async with open_resp(HOST, port) as client:
        await client.call(*words)


@asynccontextmanager
async def open_etcd(directory: Path, loader: Path) -> AsyncGenerator[Peer]:
    """Three of etcd; `loader` is `etcd_load/main.go`, built."""
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
        await run(filling := Load("set", 256), FILL * filling.keys)
        leader = [await _etcd_leads(client) for client, _ in urls].index(True)
        pids.insert(0, pids.pop(leader))
        yield Peer("etcd", pids, run, pipelines=False)
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


async def _etcd_leads(url: str) -> bool:
    done = await trio.run_process(
        ["etcdctl", "--endpoints", url, "endpoint", "status", "-w", "json"],
        capture_stdout=True,
        env=os.environ | {"ETCDCTL_API": "3"},
    )
    status = json.loads(done.stdout)[0]["Status"]
    return bool(status["leader"] == status["header"]["member_id"])
