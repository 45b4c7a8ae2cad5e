"""Clusters of three members of etcd and quorate that serve etcd's API, for the same load program.

`etcd_load` is that program, in Go with etcd's own client library: its calls are spread over all
members. `etcdctl` asks both products for revisions, terms and hashes.
"""

import base64
import json
import os
import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import trio
from rich.console import Console

from bench.lib.checking import LostError
from bench.lib.competitors import (
    FILL,
    HOST,
    LOOKED_AT,
    READY_SECONDS,
    Count,
    Peer,
    check_lengths,
    make,
    start,
    until_works,
)
from bench.lib.harness import lay_out_members
from bench.lib.measuring import Latencies, Load
from bench.report.sections import OURS
from bench.runs.cluster import MEMBERS
from quorate.local.cluster import free_client_port, open_cluster

GO: Final = {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode"}
CONNECTIONS: Final = 8
SPARE_SECONDS: Final = 120.0
"""How long a load may take. The program never gives up, so that without a limit a bench hangs
whose members do not answer."""


async def build_etcd_load(directory: Path, console: Console) -> Path | None:
    """Build the load program for etcd; None, after a message, if something for it is missing."""
    missing = [name for name in ("etcd", "etcdctl", "go") if shutil.which(name) is None]
    if missing:
        console.print(
            f"no etcd: {', '.join(missing)} not found; on Debian: apt install etcd-server "
            "etcd-client golang-go golang-etcd-server-dev"
        )
        return None
    built = directory / "etcd-load"
    done = await trio.run_process(
        ["go", "build", "-o", str(built), "./etcd_load"],
        env=os.environ | GO | {"GOCACHE": str(directory / "go")},
        cwd=Path(__file__).parent,
        capture_stderr=True,
        check=False,
    )
    if done.returncode:
        console.print(f"no etcd: its load is not built: {done.stderr.decode().strip()}")
        return None
    return built


@attrs.frozen
class Api:
    """A running cluster that serves etcd's API.

    Args:
        name: name of the product.
        loader: the load program.
        endpoints: host:port of all members, separated by commas.
        pids: process ids of the members, in the same order.
    """

    name: str
    loader: Path
    endpoints: str
    pids: Sequence[int]

    async def load(self, **options: object) -> dict[str, float]:
        """Run the load program, and return what it found.

        Raises:
            RuntimeError: the program failed; the message has its output.
            trio.TooSlowError: it did not end in time.
        """
        command = [str(self.loader), "-endpoints", self.endpoints]
        command += [f"-{name.replace('_', '-')}={value}" for name, value in options.items()]
        with trio.fail_after(SPARE_SECONDS + float(str(options.get("seconds", 0)))):
            done = await trio.run_process(
                command, capture_stdout=True, capture_stderr=True, check=False
            )
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {said[-500:]}")
        found: dict[str, float] = json.loads(done.stdout)
        return found

    async def run(self, load: Load, requests: int, *, gateway: bool = False) -> Latencies:
        """Have clients put or get."""
        found = await self.load(
            op={"set": "put"}.get(load.command, load.command),
            gateway=str(gateway).lower(),
            connections=min(CONNECTIONS, load.clients),
            clients=load.clients,
            total=requests,
            value_bytes=load.value_bytes,
            keys=load.keys,
        )
        return Latencies(**found)

    async def ask(self, *words: str) -> Any:
        """Return what etcdctl prints."""
        done = await trio.run_process(
            ["etcdctl", "--endpoints", self.endpoints, *words, "-w", "json"],
            capture_stdout=True,
            env=os.environ | {"ETCDCTL_API": "3"},
        )
        return json.loads(done.stdout)

    async def statuses(self) -> list[dict[str, Any]]:
        """Return the status of each member."""
        return [one["Status"] for one in await self.ask("endpoint", "status")]

    async def revisions(self) -> list[int]:
        """Return the revision of each member."""
        return [one["header"]["revision"] for one in await self.statuses()]

    async def term(self) -> int:
        """Return the term, which an election makes higher."""
        return max(int(one["raftTerm"]) for one in await self.statuses())

    async def compare(self) -> None:
        """Compare the members' hashes of their whole state, and some values.

        Raises:
            LostError: they differ.
        """
        said = await self.ask("endpoint", "hashkv")
        hashes = [one["HashKV"]["hash"] for one in said]
        if len(set(hashes)) > 1:
            raise LostError(f"members of {self.name} have different values, by hashes: {hashes}")
        for endpoint in self.endpoints.split(","):
            words = ("get", "key:", "--prefix", "--limit", str(LOOKED_AT), "--consistency", "s")
            said = await attrs.evolve(self, endpoints=endpoint).ask(*words)
            values = [base64.b64decode(one["value"]) for one in said.get("kvs", ())]
            check_lengths(f"{self.name} at {endpoint}", values)

    async def begin(self, load: Load) -> list[Peer]:
        """Wait until all serve, and write the keys of a load; return the doors: gRPC, and JSON."""
        with trio.fail_after(READY_SECONDS):
            await until_works(self.statuses)
            await self.run(load, load.clients)
        await self.run(load, load.whole(FILL * load.keys))
        statuses = await self.statuses()
        leads = [one.get("leader") == one["header"]["member_id"] for one in statuses]
        pids = sorted(self.pids, key=lambda pid: not leads[self.pids.index(pid)])
        count = await Count.begin(f"the revision of {self.name}", self.revisions)
        peer = partial(Peer, self.name, pids, check=count.check, compare=self.compare)
        runs = (self.run, partial(self.run, gateway=True))
        return [peer(run=run, pipelines=False) for run in runs]


@asynccontextmanager
async def open_etcd_api(directory: Path, loader: Path) -> AsyncGenerator[Api]:
    """Run three members of etcd, with its usual settings."""
    ports = [(free_client_port(1), free_client_port(1)) for _ in range(MEMBERS)]
    urls = [(f"http://{HOST}:{client}", f"http://{HOST}:{peer}") for client, peer in ports]
    make(directory)
    everybody = ",".join(f"m{i}={peer}" for i, (_, peer) in enumerate(urls))
    async with trio.open_nursery() as nursery:
        pids = [
            await start(
                nursery,
                directory,
                *("etcd", "--name", f"m{i}", "--data-dir", str(directory / f"m{i}")),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", everybody, "--initial-cluster-state", "new"),
            )
            for i, (client, peer) in enumerate(urls)
        ]
        yield Api("etcd", loader, ",".join(f"{HOST}:{client}" for client, _ in ports), pids)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_quorate_api(directory: Path, loader: Path) -> AsyncGenerator[Api]:
    """Run three members of quorate, each with a port for clients of etcd."""
    configs = lay_out_members(directory, MEMBERS, etcd_port=free_client_port(MEMBERS))
    endpoints = ",".join(f"{HOST}:{config.etcd.port}" for config in configs)
    async with open_cluster(configs) as cluster:
        pids = [member.pid for member in cluster.members if member.pid is not None]
        yield Api(OURS, loader, endpoints, pids)


@asynccontextmanager
async def open_etcd(directory: Path, loader: Path) -> AsyncGenerator[Peer]:
    """Run three members of etcd as a peer of our Redis port."""
    async with open_etcd_api(directory, loader) as api:
        grpc, _ = await api.begin(Load("set", 256))
        yield grpc
