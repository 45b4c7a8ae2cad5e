"""Programs that are connected with `quorate.connect` to a simulated cluster, over its client ports.

Everything of the client is the real one, but for the socket: what it sends goes to the port of a
simulated member, later and only while both can be reached, and so does what comes back. A process
that stands still finds what has come when it goes on, as with a real socket.
"""

from __future__ import annotations

import random
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING

import anyio
import trio
from anyio.abc import ByteStream

from quorate.client.connect import open_through
from quorate.client.dialling import DIAL_SECONDS, Dialler, Wire
from quorate.simulation import SCENARIOS, Observer, Plan, Trace
from quorate.simulation.plan import BOUND_TIMEOUTS
from quorate.simulation.ports.machine import Ports
from quorate.simulation.ports.rulebook import RuleBook
from quorate.simulation.recipes.programs import PATIENCE_TIMEOUTS, SESSION_S
from quorate.simulation.recipes.replay import Replay
from quorate.simulation.store import stores
from quorate.simulation.storm import Storm
from quorate.simulation.watching.watched import watch
from quorate.simulation.workloads import Programs
from quorate.simulation.world import open_world
from quorate.transport import Address

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from quorate.keyvalue.programs.client import KeyValue
    from quorate.simulation.ports.session import Session
    from quorate.simulation.recipes.programs import Program


class PortStream(ByteStream):
    """A program's connection to a simulated port.

    Args:
        program: whose it is.
        member: id of the member.
        session: of its port.
    """

    def __init__(self, program: Program, member: int, session: Session) -> None:
        self._program = program
        self._member = member
        self._host = program.world.hosts[member]
        self._session = session
        self._ends = trio.CancelScope()
        self._up, self._out = trio.open_memory_channel[bytes](1000)
        self._in, self._down = trio.open_memory_channel[bytes](1000)
        program.network.start_soon(self._carry)

    async def _carry(self) -> None:
        with self._ends:
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._carry_up)
                    await self._carry_down()
                    nursery.cancel_scope.cancel()
            finally:
                self._in.close()
                self._session.close()

    async def _carry_up(self) -> None:
        async for data in self._out:
            await self._travel()
            await self._host.awake()
            if self._session.closed:
                return
            self._session.feed(data)

    async def _carry_down(self) -> None:
        while data := await self._session.receive():
            await self._host.awake()
            await self._travel()
            await self._in.send(data)

    async def _travel(self) -> None:
        program = self._program
        await trio.sleep(program.world.setting.latency * program.rng.random())
        await program.reaches()

    async def send(self, item: bytes) -> None:
        await trio.lowlevel.checkpoint()
        if self._program.dead or self._session.closed:
            raise anyio.BrokenResourceError
        self._up.send_nowait(item)
        number, trace = self._program.number, self._program.world.trace
        trace.tell("client", self._member, item, client=number, status="sends")

    async def receive(self, max_bytes: int = 65536) -> bytes:
        del max_bytes  # replies here are short
        try:
            return await self._down.receive()
        except trio.EndOfChannel:
            raise anyio.EndOfStream from None

    async def send_eof(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        self._ends.cancel()
        await trio.lowlevel.checkpoint()


class PortDialler(Dialler):
    """Dials the ports of simulated members: member 2 is at ``h2``."""

    def __init__(self, program: Program, ports: Ports) -> None:
        super().__init__()
        self._program, self._ports = program, ports

    async def open(self, address: Address) -> Wire:
        program, member = self._program, int(address.host.removeprefix("h"))
        with anyio.fail_after(DIAL_SECONDS):
            await program.reaches()
            await trio.sleep(program.world.setting.latency * (1 + program.rng.random()))
            await program.world.hosts[member].awake()
            session = self._ports.connect(member)
            if session is None or program.dead:
                raise ConnectionRefusedError("nobody listens")
            wire = Wire(PortStream(program, member, session), address)
            try:
                await self._log_in(wire)
            except BaseException:
                await wire.aclose()
                raise
        return wire


async def connected_storm(
    directory: Path,
    seed: int,
    seconds: float,
    *,
    members: int = 3,
    trace: Trace | None = None,
) -> Programs:
    """Run storms over a cluster whose clients are programs that use `quorate.connect`.

    Raises:
        ViolationError: an invariant, or a promise of a recipe, was violated.
    """
    plan = Plan(seed, members, seconds / 3600, "recipes")
    scenario = SCENARIOS[plan.scenario]
    setting = scenario.setting(seed, members, random.Random(f"{seed}/setting"), seconds)
    observer = Observer(list(range(setting.members)))
    ports_rng = random.Random(f"{seed}/ports")
    with closing(Replay(directory / "replay")) as replay:
        make = replay.attending(stores(random.Random(f"{seed}/flushes")))
        service = watch(make, observer.tell, observer)
        async with open_world(directory, service, setting, trace=trace, observer=observer) as world:
            timeout = setting.timeouts.leader_heartbeat_timeout
            ports = Ports(ports_rng, observer.tell, RuleBook(BOUND_TIMEOUTS * timeout))
            world.accompany = ports.accompany

            @asynccontextmanager
            async def connect(program: Program, *, once: bool) -> AsyncGenerator[KeyValue]:
                dialler = PortDialler(program, ports)
                addresses = [Address(f"h{i}", 7000) for i in world.present]
                async with open_through(
                    dialler,
                    addresses,
                    exactly_once=once,
                    session_timeout_s=SESSION_S,
                    patience_s=PATIENCE_TIMEOUTS * program.unit,
                    rng=program.rng,
                ) as kv:
                    yield kv

            programs = Programs(replay, connect)
            await Storm(world, observer, [programs], scenario, seed).run(seconds)
            return programs


async def connected_digest(directory: Path, seed: int, seconds: float) -> str:
    """Run the first seconds of a storm; return the digest of its events, and of what is sent."""
    trace = Trace()
    with trio.move_on_after(seconds):
        await connected_storm(directory, seed, 2 * seconds, trace=trace)
    return trace.digest
