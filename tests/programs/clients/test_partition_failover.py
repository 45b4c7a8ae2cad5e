"""Cluster clients, unmodified, while slots move and leaders are killed: 3 machines, 4 partitions.

All of them run at the same time, since a cluster of so many processes takes long to start.
"""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import attrs
import pytest
import trio

import quorate
from quorate.keyvalue.slots.cluster_map import META
from quorate.keyvalue.slots.ranges import parse_slots_untrusted
from quorate.local.cluster import HOST, free_client_port
from quorate.machine.partition_survey import survey_groups
from quorate.machine.reach import RemoteGroups, open_groups
from quorate.partitions.metadata import load
from quorate.partitions.progress import follow_moves
from quorate.partitions.wishes import plan_move, request_moves
from quorate.torture.partitions.machines import Machines
from tests.support.real import PATIENCE_SECONDS

pytestmark = pytest.mark.slow

WRITERS: Final = Path(__file__).parents[2] / "support" / "writers"
PACKAGES: Final = {"ioredis": "ioredis@6.0.0", "node-redis": "redis@6.3.1"}
RETRYING: Final = ["redis-py", "ioredis"]
"""They send again what a dead leader has not answered, and wait for the next one."""
IMPATIENT: Final = ["redis-asyncio", "coredis", "node-redis", "redis-benchmark"]
"""They may return an error if a leader dies. redis-py's half for asyncio: it closes all of its
connections, and a task that is about to use one fails. coredis: if there is no other leader after
0.2 s. node-redis: for each command in flight, and if its member is not back after 5 s.
redis-benchmark: if another member leads than when it began; on a busy machine none need die."""
ONE_CONNECTION: Final = ["redis-cli", "redis-benchmark"]
"""They end with the member that they talk to, so they only see slots move."""
LOST: Final = (
    *("ConnectionError", "ECONNRESET", "ECONNREFUSED", "SocketClosedUnexpectedlyError"),
    *("DisconnectsClientError", ": TimeoutError", "AttributeError: 'NoneType' object has no"),
    "could not find node",
)
"""What they call a connection that is lost, or a member that does not come back."""
PORTS: Final = 309
"""The ports of three machines with four partitions each, from the first to the last one."""


@attrs.define
class Writer:
    """A client in a process of its own, and what it has said."""

    process: trio.Process
    acknowledged: list[str] = attrs.field(factory=list[str])
    errors: list[str] = attrs.field(factory=list[str])
    lost: list[str] = attrs.field(factory=list[str])

    async def begin(self) -> None:
        assert self.process.stdout is not None
        said = b""
        with trio.fail_after(PATIENCE_SECONDS):
            while not said.endswith(b"\n"):
                part = await self.process.stdout.receive_some(1)
                assert part, f"{self.process.args} ends with {self.process.returncode}"
                said += part
        assert said == b"begins\n"

    async def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        await self.process.stdin.aclose()
        with trio.fail_after(PATIENCE_SECONDS):
            said = b"".join([part async for part in self.process.stdout])
            await self.process.wait()
        found = json.loads(said)
        self.acknowledged, self.errors = found["acknowledged"], found["errors"]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with the clients of Node.js, and why there are none."""
    folder = tmp_path_factory.mktemp("node")
    if shutil.which("node") is None or shutil.which("npm") is None:
        return folder, "node and npm are not installed"
    words = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder)]
    try:
        done = subprocess.run(
            [*words, *PACKAGES.values()], capture_output=True, text=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return folder, "npm finds no registry within 60 s"
    return folder, f"npm install fails: {done.stderr[-200:]}" if done.returncode else ""


@pytest.fixture(scope="module")
def writers(
    tmp_path_factory: pytest.TempPathFactory, packages: tuple[Path, str]
) -> dict[str, Writer]:
    """All clients, after they have written while slots moved and leaders were killed."""
    folder, missing = packages
    kinds = ["redis-py", "redis-asyncio", "coredis"]
    kinds += [] if missing else [*PACKAGES]
    kinds += [kind for kind in ONE_CONNECTION if shutil.which(kind)]
    return trio.run(_write, tmp_path_factory.mktemp("machines"), folder, kinds)


async def _write(directory: Path, folder: Path, kinds: Iterable[str]) -> dict[str, Writer]:
    machines = Machines(directory, 4, free_client_port(PORTS))
    found: dict[str, Writer] = {}
    try:
        await machines.start()
        async with AsyncExitStack() as stack:
            groups = await stack.enter_async_context(open_groups(lambda: machines.map))
            await _founded(machines)
            ports = machines.client_ports()
            for kind in kinds:
                found[kind] = await _start(kind, folder, ports)
            await _trouble(machines, groups, found)
            await _read_back(found.values(), ports)
        await machines.stop()
    finally:
        for writer in found.values():
            if writer.process.returncode is None:
                writer.process.kill()
        await machines.kill()
    assert not machines.found
    assert not machines.ends()
    return found


async def _founded(machines: Machines) -> None:
    with trio.fail_after(3 * PATIENCE_SECONDS):
        while True:
            seen = await survey_groups(machines.map, figures=False)
            if all(each.is_ready for each in seen):
                return
            await trio.sleep(0.2)


async def _start(kind: str, folder: Path, ports: list[int]) -> Writer:
    words = [sys.executable, "-m", "tests.support.writers.python"]
    if kind in PACKAGES:
        words = ["node", str(WRITERS / "node.mjs"), str(folder)]
    return Writer(
        await trio.lowlevel.open_process(
            [*words, kind, *map(str, ports)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    )


async def _trouble(machines: Machines, groups: RemoteGroups, found: dict[str, Writer]) -> None:
    """Move slots there and back, then once more while leaders are killed; end the writers."""
    for writer in found.values():
        await writer.begin()
    for target in (1, 0):
        await _move(groups, target)
    for kind in ONE_CONNECTION:
        if kind in found:
            await found[kind].end()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_kill, machines)
        for target in (1, 0):
            await _move(groups, target)
    await trio.sleep(1)
    for kind, writer in found.items():
        if kind not in ONE_CONNECTION:
            await writer.end()


async def _move(groups: RemoteGroups, target: int) -> None:
    now = await load(groups.group(META))
    assert now is not None
    moves = plan_move(now, parse_slots_untrusted("0-1023"), target)
    await request_moves(groups.group(META), moves)
    with trio.fail_after(PATIENCE_SECONDS):
        assert all(each.done for each in await follow_moves(groups, moves, lambda _: None))


async def _kill(machines: Machines) -> None:
    """Kill the leaders of the partitions, one after the other; each is started again."""
    for partition in (0, 3, 1, 2):
        leader = await machines.leader(partition)
        assert leader is not None
        assert machines.signal_member(leader, partition, signal.SIGKILL)
        await trio.sleep(1)


async def _read_back(found: Iterable[Writer], ports: list[int]) -> None:
    async with quorate.connect([(HOST, port) for port in ports]) as kv:
        for writer in found:
            keys = [key for key in writer.acknowledged if key]
            values = await kv.get_many(keys)
            writer.lost = [key for key in keys if values[key.encode()] != key.encode()]


def of(kind: str, writers: dict[str, Writer], missing: str) -> Writer:
    """A writer, if its client is here."""
    if kind not in writers:
        pytest.skip(missing if kind in PACKAGES else f"{kind} is not installed")
    return writers[kind]


@pytest.mark.parametrize("kind", [*RETRYING, "redis-cli"])
def test_no_command_fails_and_no_write_is_lost(
    kind: str, writers: dict[str, Writer], packages: tuple[Path, str]
) -> None:
    writer = of(kind, writers, packages[1])
    assert writer.acknowledged
    assert (writer.errors, writer.lost) == ([], [])


@pytest.mark.parametrize("kind", IMPATIENT)
def test_the_only_errors_are_lost_connections_and_no_write_is_lost(
    kind: str, writers: dict[str, Writer], packages: tuple[Path, str]
) -> None:
    writer = of(kind, writers, packages[1])
    assert writer.acknowledged
    assert not writer.lost
    others = [each for each in writer.errors if not any(word in each for word in LOST)]
    assert not others
