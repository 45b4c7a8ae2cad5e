"""Clusters of three members of quorate and RedisRaft, for the same load.

Each product commits durably on a quorum before it answers, and reads linearizably. All other
options keep their defaults, except addresses and directories.

Each product reports how much it has written, for comparison with the acknowledged writes. Our log
holds the writes themselves; one revision of etcd, or one entry of RedisRaft's log, is one write.
"""

import re
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

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


async def start(nursery: trio.Nursery, directory: Path, *command: str) -> int:
    """Start a process that is killed with the nursery; return its id."""

    async def kill(process: trio.Process) -> None:
        await trio.lowlevel.checkpoint()
        process.kill()  # its files are thrown away

    with (directory / "log").open("ab") as log:
        run = partial(trio.run_process, command, stdout=log, stderr=log, cwd=directory)
        process = await nursery.start(partial(run, deliver_cancel=kill))
    assert isinstance(process, trio.Process)
    return process.pid


async def until_works(works: Callable[[], Awaitable[object]]) -> None:
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
                await start(
                    nursery,
                    own,
                    *("redis-server", "--port", str(port), "--save", "", "--appendonly", "no"),
                    *("--loadmodule", str(module)),
                    *("--raft.addr", f"{HOST}:{port}", "--raft.log-fsync", "yes"),
                )
            )
        await until_works(partial(_redis_says, ports[0], "PING"))
        await _redis_says(ports[0], "RAFT.CLUSTER", "INIT")
        for port in ports[1:]:
            await until_works(
                partial(_redis_says, port, "RAFT.CLUSTER", "JOIN", f"{HOST}:{ports[0]}")
            )
        await until_works(partial(_redis_says, ports[0], "SET", "ready", "yes"))
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
