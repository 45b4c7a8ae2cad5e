"""Clusters of quorate and etcd whose members come and go, by the commands that an operator types.

Each member is a process on a machine of its own: an address of the loopback network, with the same
ports on all machines. Machines are numbered, and none is used twice.
"""

import base64
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import attrs
import trio

from bench.lib.checking import values_of
from bench.lib.harness import write
from bench.lib.writers import Address
from bench.lib.written import Written
from quorate.client.resp import open_resp
from quorate.local.cluster import LocalCluster, MemberProcess, free_client_port
from quorate.local.survey import agreed, agreed_and_applied, until
from quorate.node.config.config import MemberConfig, NodeConfig, load_config

MEMBERS: Final = 3
READY_SECONDS: Final = 60.0
"""How long a step may take. If smaller, a busy machine fails. If larger, a step that never ends
holds up the bench."""

TRY_SECONDS: Final = 0.1
GROUP: Final = 500
"""Keys in one command of a check."""

PAGE: Final = 10_000
"""Keys in one answer of etcd. If larger, an answer exceeds what its gateway sends."""


def host(machine: int) -> str:
    """Return the address of a machine."""
    return f"127.0.{1 + machine // 250}.{1 + machine % 250}"


@attrs.frozen
class Ended:
    """How the process of a removed member ended.

    Args:
        seconds: from its removal on.
        status: its exit status.
    """

    seconds: float
    status: int


class Changing(Protocol):
    """A running cluster. Members are named by their machines."""

    @property
    def members(self) -> list[int]:
        """The machines that have a member, in the order in which they came."""
        ...

    @property
    def addresses(self) -> list[Address]:
        """The members' addresses for clients."""
        ...

    def next_addresses(self, count: int) -> list[Address]:
        """Return the addresses of the next machines."""
        ...

    async def leader(self) -> int:
        """Wait until all members follow one leader; return it."""
        ...

    async def replace(self, member: int) -> None:
        """Put a new member in the place of another one, which goes."""
        ...

    async def remove(self, member: int) -> None:
        """Remove a member."""
        ...

    async def ended(self, member: int) -> Ended:
        """Wait until the process of a member that was removed has ended by itself."""
        ...

    async def add(self) -> None:
        """Add a voter on the next machine, and wait until it is one."""
        ...

    async def add_wrong(self) -> None:
        """Give a seat to a member at an address where nobody ever listens."""
        ...

    async def remove_wrong(self) -> None:
        """Remove that member."""
        ...

    async def check(self, written: Written) -> None:
        """Check that each member has all acknowledged writes; raise `LostError` if not."""
        ...


async def repeated(what: str, attempt: Callable[[], Awaitable[str | None]]) -> str:
    """Repeat a command until it succeeds; return its output.

    Raises:
        RuntimeError: it never does.
    """
    with trio.move_on_after(READY_SECONDS):
        while True:
            if (said := await attempt()) is not None:
                return said
            await trio.sleep(TRY_SECONDS)
    raise RuntimeError(f"{what} has not succeeded within {READY_SECONDS} s")


# --- quorate --------------------------------------------------------------------------------------


class Quorate:
    """A cluster of quorate.

    Args:
        place: a directory for all members.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        client = free_client_port(1)
        self._ports = client + 10_000, client
        self._redirect = client + 60
        self._machines = 0
        self._running: dict[int, MemberProcess] = {}
        self._removed: dict[int, tuple[MemberProcess, float]] = {}
        self._ids: dict[int, int] = {}
        self._wrong = -1

    async def start(self) -> None:
        """Found the cluster."""
        founders = [self._next_machine() for _ in range(MEMBERS)]
        entries = tuple(
            MemberConfig(i, host(i), *self._ports, redirect_port=self._redirect) for i in founders
        )
        for i in founders:
            directory = self._directory(i)
            config = NodeConfig("bench", i, directory, entries)
            write(config)
            self._running[i], self._ids[i] = MemberProcess(config), i
            await self._running[i].start()

    async def kill(self) -> None:
        """Kill all processes."""
        cluster = LocalCluster(())
        cluster.members = [*self._running.values(), *(one for one, _ in self._removed.values())]
        await cluster.kill()

    @property
    def members(self) -> list[int]:
        """The machines that have a member, in the order in which they came."""
        return [*self._running]

    @property
    def addresses(self) -> list[Address]:
        """The members' addresses for clients."""
        return [(host(machine), self._ports[1]) for machine in self._running]

    def next_addresses(self, count: int) -> list[Address]:
        """Return the addresses of the next machines."""
        return [(host(self._machines + i), self._ports[1]) for i in range(count)]

    async def leader(self) -> int:
        """Wait until all members follow one leader; return it."""
        places = [one.address for one in self._running.values()]
        seen = await until(places, agreed, READY_SECONDS)
        assert seen.leader is not None
        return next(k for k, member in self._ids.items() if member == seen.leader.member_id)

    async def replace(self, member: int) -> None:
        """Put a new member in the place of another one, which goes."""
        machine = self._next_machine()
        words = ("replace", str(self._ids[member]), *self._at(machine))
        await self._join(machine, *words)
        self._is_gone(member)

    async def remove(self, member: int) -> None:
        """Remove a member."""
        await self._call("remove", str(self._ids[member]))
        self._is_gone(member)

    async def ended(self, member: int) -> Ended:
        """Wait until the process of a member that was removed has ended by itself."""
        process, since = self._removed[member]
        with trio.fail_after(READY_SECONDS):
            status = await process.wait()
        return Ended(time.monotonic() - since, status)

    async def add(self) -> None:
        """Add a voter on the next machine, and wait until it is one."""
        machine = self._next_machine()
        await self._join(machine, "add", *self._at(machine))

    async def add_wrong(self) -> None:
        """Give a seat to a member at an address where nobody ever listens."""
        words = ("add", *self._at(self._next_machine()), "--json")
        self._wrong = json.loads(await self._call(*words))["member"]

    async def remove_wrong(self) -> None:
        """Remove that member."""
        await self._call("remove", str(self._wrong))

    async def check(self, written: Written) -> None:
        """Check that each member has all acknowledged writes; raise `LostError` if not."""
        places = [one.address for one in self._running.values()]
        await until(places, agreed_and_applied, READY_SECONDS)
        for place in places:
            values: dict[bytes, bytes] = {}
            async with open_resp(place.host, place.client_port) as client:
                await client.call("READONLY")  # its own state, not that of the leader
                for group in grouped(key for key, _ in written.pairs()):
                    found = await values_of(client, group)
                    pairs = zip(group, found, strict=True)
                    values |= {key: one for key, one in pairs if isinstance(one, bytes)}
            written.compare(f"quorate, member {place.member_id}", values)

    def _next_machine(self) -> int:
        machine, self._machines = self._machines, self._machines + 1
        return machine

    def _directory(self, machine: int) -> Path:
        directory = self._place / f"machine-{machine}"
        directory.mkdir(parents=True)
        return directory

    def _at(self, machine: int) -> tuple[str, ...]:
        """Return the options that name the address of a machine."""
        member, client = map(str, self._ports)
        ports = ("--port", member, "--client-port", client)
        return ("--host", host(machine), *ports, "--redirect-port", str(self._redirect))

    async def _join(self, machine: int, *words: str) -> None:
        """Give a member its seat, start it, and wait until it is a voter."""
        file = self._directory(machine) / "node.toml"
        await self._call(*words, "--out", str(file))
        process = MemberProcess(load_config(file))
        self._running[machine], self._ids[machine] = process, process.member_id
        await process.start()
        await self._call(*words, "--out", str(file), "--wait")

    def _is_gone(self, member: int) -> None:
        self._removed[member] = self._running.pop(member), time.monotonic()

    async def _call(self, *words: str) -> str:
        """Run a command of `quorate member`; return its output.

        Raises:
            RuntimeError: it has failed.
        """
        asked = [word for name, port in self.addresses for word in ("--connect", f"{name}:{port}")]
        return await called([sys.executable, "-m", "quorate", "member", *words, *asked])


def grouped(keys: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield the keys in groups."""
    group: list[bytes] = []
    for key in keys:
        group.append(key)
        if len(group) == GROUP:
            yield group
            group = []
    if group:
        yield group


async def called(command: Sequence[str], **options: Any) -> str:
    """Run a command; return its output.

    Raises:
        RuntimeError: it has failed.
    """
    with trio.fail_after(READY_SECONDS):
        done = await trio.run_process(
            command, capture_stdout=True, capture_stderr=True, check=False, **options
        )
    if done.returncode:
        said = done.stderr.decode().strip() or done.stdout.decode().strip()
        raise RuntimeError(f"{' '.join(command)}: exit status {done.returncode}: {said}")
    return done.stdout.decode()


@asynccontextmanager
async def open_quorate(place: Path) -> AsyncGenerator[Changing]:
    """Run three members of quorate during a block."""
    cluster = Quorate(place)
    try:
        await cluster.start()
        await cluster.leader()
        yield cluster
    finally:
        await cluster.kill()


# --- etcd -----------------------------------------------------------------------------------------


class Etcd:
    """A cluster of etcd, with its defaults except addresses and directories.

    Args:
        place: a directory for all members.
        moves: whether a leader is asked to move the leadership before it is removed.
    """

    def __init__(self, place: Path, *, moves: bool) -> None:
        self._place, self._moves = place, moves
        self._ports = free_client_port(1), free_client_port(1)
        self._machines = 0
        self._running: dict[int, trio.Process] = {}
        self._removed: dict[int, tuple[trio.Process, float]] = {}
        self._ids: dict[int, str] = {}
        self._wrong = ""

    async def start(self) -> None:
        """Found the cluster."""
        founders = [self._next_machine() for _ in range(MEMBERS)]
        for machine in founders:
            await self._start(machine, founders, "new")
        await repeated("the start of etcd", self._status)
        listed = json.loads(await self._etcdctl("member", "list", "-w", "json"))
        names = {one["name"]: f"{one['ID']:x}" for one in listed["members"]}
        self._ids = {machine: names[f"m{machine}"] for machine in founders}

    async def kill(self) -> None:
        """Kill all processes."""
        with trio.CancelScope(shield=True):
            for process in (*self._running.values(), *(one for one, _ in self._removed.values())):
                if process.poll() is None:
                    process.kill()
                    await process.wait()

    @property
    def members(self) -> list[int]:
        """The machines that have a member, in the order in which they came."""
        return [*self._running]

    @property
    def addresses(self) -> list[Address]:
        """The members' addresses for clients."""
        return [(host(machine), self._ports[0]) for machine in self._running]

    def next_addresses(self, count: int) -> list[Address]:
        """Return the addresses of the next machines."""
        return [(host(self._machines + i), self._ports[0]) for i in range(count)]

    async def leader(self) -> int:
        """Wait until all members follow one leader; return it."""
        status: list[dict[str, Any]] = json.loads(await repeated("etcd's status", self._status))
        leader = f"{status[0]['Status']['leader']:x}"
        return next(machine for machine, member in self._ids.items() if member == leader)

    async def replace(self, member: int) -> None:
        """Put a new member in the place of another one, which goes."""
        await self.add()
        await self.remove(member)

    async def remove(self, member: int) -> None:
        """Remove a member."""
        if self._moves and await self.leader() == member:
            target = next(other for other in self._running if other != member)
            await self._etcdctl("move-leader", self._ids[target], asked=[member])
        # It may be done although it fails, since the leader that was asked ends.
        await self._removes(self._ids[member])
        self._removed[member] = self._running.pop(member), time.monotonic()

    async def ended(self, member: int) -> Ended:
        """Wait until the process of a member that was removed has ended by itself."""
        process, since = self._removed[member]
        with trio.fail_after(READY_SECONDS):
            status = await process.wait()
        return Ended(time.monotonic() - since, status)

    async def add(self) -> None:
        """Add a voter on the next machine, and wait until it is one."""
        machine = self._next_machine()
        self._ids[machine] = await self._add_learner(machine)
        await self._start(machine, [*self._running, machine], "existing")
        promote = ("member", "promote", self._ids[machine])
        await repeated("the promotion", lambda: self._try(*promote))

    async def add_wrong(self) -> None:
        """Give a seat to a member at an address where nobody ever listens."""
        self._wrong = await self._add_learner(self._next_machine())

    async def remove_wrong(self) -> None:
        """Remove that member."""
        await self._removes(self._wrong)

    async def check(self, written: Written) -> None:
        """Check that each member has all acknowledged writes; raise `LostError` if not."""
        await self.leader()
        for name, port in self.addresses:
            values = await trio.to_thread.run_sync(
                read_etcd, f"http://{name}:{port}/v3/kv/range", f"{written.name}:".encode()
            )
            written.compare(f"etcd at {name}", values)

    def _next_machine(self) -> int:
        machine, self._machines = self._machines, self._machines + 1
        return machine

    def _urls(self, machine: int) -> tuple[str, str]:
        client, peer = self._ports
        return f"http://{host(machine)}:{client}", f"http://{host(machine)}:{peer}"

    async def _start(self, machine: int, machines: Sequence[int], state: str) -> None:
        self._place.mkdir(parents=True, exist_ok=True)
        client, peer = self._urls(machine)
        command = ["etcd", "--name", f"m{machine}", "--data-dir", str(self._place / f"m{machine}")]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        everybody = ",".join(f"m{one}={self._urls(one)[1]}" for one in machines)
        command += ["--initial-cluster", everybody, "--initial-cluster-state", state]
        with (self._place / f"m{machine}.log").open("ab") as log:
            self._running[machine] = await trio.lowlevel.open_process(
                command, stdin=subprocess.DEVNULL, stdout=log.fileno(), stderr=log.fileno()
            )

    async def _add_learner(self, machine: int) -> str:
        """Give a learner its seat, once etcd regards its members as healthy; return its id."""
        words = ["member", "add", f"m{machine}", "--learner", "-w", "json"]
        words.append(f"--peer-urls={self._urls(machine)[1]}")
        said = json.loads(await repeated("member add", lambda: self._try(*words)))
        return f"{said['member']['ID']:x}"

    async def _removes(self, member: str) -> None:
        async def attempt() -> str | None:
            try:
                return await self._etcdctl("member", "remove", member)
            except RuntimeError as error:
                return "" if "not found" in str(error) else None

        await repeated("member remove", attempt)

    async def _status(self) -> str | None:
        """Return the status of all members if they follow one leader."""
        said = await self._try("endpoint", "status", "-w", "json")
        seen = {one["Status"]["leader"] for one in json.loads(said or "[]")}
        return said if len(seen) == 1 and 0 not in seen else None

    async def _try(self, *words: str) -> str | None:
        try:
            return await self._etcdctl(*words)
        except RuntimeError:
            return None

    async def _etcdctl(self, *words: str, asked: Sequence[int] = ()) -> str:
        endpoints = ",".join(self._urls(machine)[0] for machine in asked or self._running)
        command = ["etcdctl", "--endpoints", endpoints, *words]
        return await called(command, env=os.environ | {"ETCDCTL_API": "3"})


def read_etcd(url: str, prefix: bytes) -> dict[bytes, bytes]:
    """Return the keys with a prefix, and their values, from one member's own state."""
    values: dict[bytes, bytes] = {}
    begin, end = prefix, prefix[:-1] + bytes([prefix[-1] + 1])
    while True:
        asked = {"key": _text(begin), "range_end": _text(end), "limit": PAGE, "serializable": True}
        request = urllib.request.Request(url, json.dumps(asked).encode())
        with urllib.request.urlopen(request, timeout=READY_SECONDS) as answer:
            said = json.load(answer)
        pairs = said.get("kvs", ())
        values |= {base64.b64decode(one["key"]): base64.b64decode(one["value"]) for one in pairs}
        if not said.get("more"):
            return values
        begin = base64.b64decode(pairs[-1]["key"]) + b"\0"


def _text(key: bytes) -> str:
    return base64.b64encode(key).decode()


@asynccontextmanager
async def open_etcd(place: Path, *, moves: bool) -> AsyncGenerator[Changing]:
    """Run three members of etcd during a block."""
    cluster = Etcd(place, moves=moves)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.kill()
