"""A cluster in virtual time: real members, stores on a temporary folder, a network in memory."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING

import attrs
import trio

from quorate.node import Member, MemberConfig, NodeConfig, State, Timeouts, Transition, open_member
from quorate.storage import InlineExecutor
from quorate.transport import MemoryNetwork

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from pathlib import Path

    from quorate.node import Command
    from quorate.storage.store import Write

EPOCH_MS = 1_700_000_000_000
TIMEOUTS = Timeouts(
    startup_canvass=2.0,
    leader_heartbeat_timeout=0.5,
    leader_heartbeat_interval=0.05,
    election_timeout=0.25,
    canvass_interval=0.02,
)


class Ledger:
    """A volatile service: the list of all commands, in order."""

    def __init__(self) -> None:
        self.position = 0
        self.commands: list[Command] = []
        self.timestamp_ms = 0
        self.deadline_ms: int | None = None

    def apply(self, command: Command) -> bytes:
        self.commands.append(command)
        return b"%d" % len(self.commands)

    def advance(self, position: int, timestamp_ms: int) -> None:
        self.timestamp_ms = timestamp_ms
        if self.deadline_ms is not None and self.deadline_ms <= timestamp_ms:
            self.deadline_ms = None

    def query(self, payload: bytes, flags: int) -> bytes:
        del payload, flags
        return b"%d" % len(self.commands)

    def next_deadline_ms(self) -> int | None:
        return self.deadline_ms

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()

    @property
    def payloads(self) -> list[bytes]:
        return [command.payload for command in self.commands]


@attrs.define(eq=False)
class Host:
    """A place where a member runs, is killed, and runs again on the same disk."""

    config: NodeConfig
    member: Member | None = None
    service: Ledger = attrs.field(factory=Ledger)
    executor: InlineExecutor[Write] | None = None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    gone: trio.Event = attrs.field(factory=trio.Event)
    starts: int = 0

    @property
    def running(self) -> Member:
        assert self.member is not None
        return self.member

    @property
    def state(self) -> State:
        return State[self.running.status().state]


class World:
    """The cluster, its network and what was seen of its elections."""

    def __init__(
        self,
        nursery: trio.Nursery,
        directory: Path,
        size: int,
        *,
        seed: int = 0,
        timeouts: Timeouts = TIMEOUTS,
        latency: float = 0.0005,
        fsync: float = 0.001,
    ) -> None:
        self.nursery = nursery
        self.network = MemoryNetwork(random.Random(f"{seed}/network"), latency=latency)
        self.seed = seed
        self.fsync = fsync
        self.transitions: list[Transition] = []
        members = tuple(
            MemberConfig(member_id=i, host=f"h{i}", member_port=7000, client_port=6000)
            for i in range(size)
        )
        self.hosts = {
            i: Host(
                NodeConfig(
                    cluster="test",
                    member_id=i,
                    directory=directory / f"member-{i}",
                    members=members,
                    timeouts=timeouts,
                )
            )
            for i in range(size)
        }

    async def start(self, *ids: int) -> None:
        for i in ids or tuple(self.hosts):
            await self.nursery.start(self._run, self.hosts[i])

    async def _run(self, host: Host, *, task_status: trio.TaskStatus[None]) -> None:
        host.starts += 1
        host.service, host.scope, host.gone = Ledger(), trio.CancelScope(), trio.Event()
        name = f"{self.seed}/{host.config.member_id}/{host.starts}"

        def executor(
            write: Callable[[Sequence[Write]], None], *, delivered: Callable[[], None]
        ) -> InlineExecutor[Write]:
            host.executor = InlineExecutor(write, delivered=delivered, latency=self.fsync)
            return host.executor

        try:
            with host.scope:
                async with open_member(
                    host.config,
                    host.service,
                    rng=random.Random(name),
                    clock_ms=lambda: EPOCH_MS + int(trio.current_time() * 1000),
                    network=self.network.host(f"h{host.config.member_id}"),
                    executor=executor,
                ) as member:
                    host.member = member
                    member.observe(self.transitions.append)
                    task_status.started()
                    await trio.sleep_forever()
        finally:
            host.member = None
            host.gone.set()

    async def kill(self, *ids: int) -> None:
        """Crash: what was not synced is lost, nothing more is sent or written."""
        for i in ids:
            host = self.hosts[i]
            assert host.executor is not None
            host.executor.cut_power()
            host.scope.cancel()
            await host.gone.wait()

    async def until(self, condition: Callable[[], bool], *, within: float = 30.0) -> None:
        with trio.fail_after(within):
            while not condition():  # noqa: ASYNC110 - virtual time; any state may be asked for
                await trio.sleep(0.005)

    def leaders(self) -> list[int]:
        return [
            i for i, host in self.hosts.items() if host.member and host.member.topology.is_leader
        ]

    async def leader(self, *, within: float = 30.0) -> int:
        await self.until(lambda: len(self.leaders()) == 1, within=within)
        return self.leaders()[0]

    async def settled(self, *, within: float = 30.0) -> int:
        """Wait until every running member's election is closed, with one leader; return it."""
        alive = [host for host in self.hosts.values() if host.member]
        await self.until(
            lambda: all(host.state is State.CLOSED for host in alive) and len(self.leaders()) == 1,
            within=within,
        )
        return self.leaders()[0]

    async def command(self, at: int, payload: bytes) -> bytes:
        return await self.hosts[at].running.command(payload)

    async def equal(self, payloads: list[bytes] | None = None, *, within: float = 30.0) -> None:
        """Wait until all running members have applied the same commands (these, if given)."""
        alive = [host for host in self.hosts.values() if host.member]
        want = payloads
        if want is None:
            want = max((host.service.payloads for host in alive), key=len)
        await self.until(
            lambda: all(host.service.payloads == want for host in alive), within=within
        )

    def path(self, member: int, *, since: int = 0) -> list[str]:
        return [t.after.name for t in self.transitions[since:] if t.member_id == member]


@contextlib.asynccontextmanager
async def open_world(directory: Path, size: int = 3, **how: object) -> AsyncGenerator[World, None]:
    async with trio.open_nursery() as nursery:
        world = World(nursery, directory, size, **how)  # type: ignore[arg-type]
        try:
            yield world
        finally:
            for host in world.hosts.values():
                if host.executor is not None:
                    host.executor.cut_power()
            nursery.cancel_scope.cancel()
