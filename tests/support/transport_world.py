"""Shared by the tests of links: handlers that record, and members over a network in memory."""

import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial, wraps
from random import Random
from typing import ParamSpec

import attrs
import trio
from trio._core import _run as trio_run  # pyright: ignore[reportPrivateUsage]
from trio.testing import MockClock

from quorate.errors import WireError
from quorate.transport import (
    PROTOCOL_VERSION,
    Address,
    CommitPosition,
    Connection,
    FrameDecoder,
    FrameStream,
    Hello,
    HelloReply,
    HelloStatus,
    LinkLimits,
    Links,
    Message,
    Network,
    PeerAddresses,
    PeerSecurity,
    StreamPurpose,
    encode,
)
from quorate.transport.testing import MemoryNetwork

Parameters = ParamSpec("Parameters")
StreamHandler = Callable[[Hello, FrameStream], Awaitable[None]]


def simulated(test: Callable[Parameters, Awaitable[None]]) -> Callable[Parameters, None]:
    """Run an async test in virtual time with a seeded scheduler, so that all runs are equal."""

    @wraps(test)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
        trio_run._r.seed(0)  # pyright: ignore[reportPrivateUsage]
        trio.run(partial(test, *args, **kwargs), clock=MockClock(autojump_threshold=0))

    return run


@attrs.frozen
class Event:
    """A call of a handler: ``message``, ``receiving``, ``up`` or ``lost``."""

    time: float
    kind: str
    member: int
    message: Message | None = None


async def no_stream(hello: Hello, stream: FrameStream) -> None:
    raise AssertionError(f"unexpected stream {hello} from {stream.peer}")


class Recorder:
    """A handler that records its calls, and lets a test wait for them.

    Attributes:
        links: of which it is the handler.
        events: messages, and what happened to links.
        peers: the linked members after each change.
        removals: the members that said that we were removed, and why.
        admitted: the members that it lets in; None for all.
    """

    links: Links

    def __init__(self, on_stream: StreamHandler = no_stream) -> None:
        self.events: list[Event] = []
        self.peers: list[tuple[int, ...]] = []
        self.removals: list[tuple[int, str]] = []
        self.admitted: set[int] | None = None
        self._stream = on_stream
        self._changed = trio.Event()

    def admits(self, hello: Hello) -> tuple[HelloStatus, str]:
        if self.admitted is None or hello.member_id in self.admitted:
            return HelloStatus.ACCEPTED, ""
        expected = ", ".join(map(str, sorted(self.admitted))) or "none"
        return HelloStatus.WRONG_MEMBER, f"member {hello.member_id}, expected one of {expected}"

    def on_peers(self) -> None:
        self.peers.append(self.links.peers)
        self._notify()

    def on_removed(self, member: int, reason: str) -> None:
        self.removals.append((member, reason))
        self._notify()

    def on_hello(self, member: int, hello: Hello) -> None:
        assert hello.member_id == member
        assert hello.instance == 200 + member
        assert member in self.links.peers

    def on_message(self, sender: int, message: Message) -> None:
        assert sender in self.links.peers
        self._record("message", sender, message)

    def on_receiving(self, member: int) -> None:
        self._record("receiving", member)

    def on_link_up(self, member: int) -> None:
        self._record("up", member)

    def on_link_lost(self, member: int) -> None:
        self._record("lost", member)

    async def on_stream(self, hello: Hello, stream: FrameStream) -> None:
        await self._stream(hello, stream)

    def _record(self, kind: str, member: int, message: Message | None = None) -> None:
        self.events.append(Event(trio.current_time(), kind, member, message))
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def count(self, kind: str, member: int) -> int:
        return sum(event.kind == kind and event.member == member for event in self.events)

    def messages(self, sender: int) -> list[Message]:
        return [e.message for e in self.events if e.message is not None and e.member == sender]

    def kinds(self, member: int) -> list[str]:
        return [event.kind for event in self.events if event.member == member]

    async def until(self, kind: str, member: int, count: int = 1) -> None:
        """Wait until an event has happened a number of times since the start."""
        await self.until_true(lambda: self.count(kind, member) >= count)

    async def until_true(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds that calls of this handler make true."""
        with trio.fail_after(30):
            while not condition():
                await self._changed.wait()


def commit(number: int) -> CommitPosition:
    """Make a message that carries a number."""
    return CommitPosition(1, number, 0, 0)


def numbers(messages: list[Message]) -> list[int]:
    return [message.log_position for message in messages if isinstance(message, CommitPosition)]


def hello(
    member_id: int,
    *,
    cluster: str = "test",
    protocol_version: int = PROTOCOL_VERSION,
    incarnation: int = 1,
    purpose: StreamPurpose = StreamPurpose.CONSENSUS,
    called_member_id: int = -1,
    history: int = 0,
    at: Address | None = None,
) -> Hello:
    """Make a hello, by default one that member 0 of the cluster "test" accepts from a member."""
    return Hello(
        cluster,
        member_id,
        protocol_version,
        incarnation,
        purpose,
        called_member_id=called_member_id,
        history=history,
        instance=200 + member_id,
        host=at.host if at else "",
        port=at.port if at else 0,
    )


def address(member: int) -> Address:
    """Return the address of a member in a network in memory."""
    return Address(f"host{member}", 7000)


def free_addresses(count: int) -> list[Address]:
    """Find ports of this machine that are free."""
    sockets = [socket.socket() for _ in range(count)]
    for sock in sockets:
        sock.bind(("127.0.0.1", 0))
    found = [Address(*sock.getsockname()) for sock in sockets]
    for sock in sockets:
        sock.close()
    return found


def make_links(
    member: int,
    addresses: Mapping[int, Address],
    network: Network,
    handler: Recorder,
    *,
    peers: PeerAddresses | None = None,
    limits: LinkLimits | None = None,
    cluster: str = "test",
    security: PeerSecurity | None = None,
) -> Links:
    """Make the links of a member; its peers are the other members of `addresses` unless given."""
    if handler.admitted is None and peers is None:
        handler.admitted = set(addresses) - {member}
    handler.links = Links(
        cluster=cluster,
        member_id=member,
        incarnation=100 + member,
        instance=200 + member,
        bind=addresses.get(member, Address("127.0.0.1", 0)),
        peers=addresses if peers is None else peers,
        network=network,
        handler=handler,
        rng=Random(member),
        limits=limits or LinkLimits(),
        advertised=addresses.get(member),
        security=security,
    )
    return handler.links


@attrs.define(eq=False)
class World:
    """Members of one cluster over a network in memory, each with its recorder."""

    network: MemoryNetwork
    nursery: trio.Nursery
    links: dict[int, Links] = attrs.Factory(dict[int, Links])
    recorders: dict[int, Recorder] = attrs.Factory(dict[int, Recorder])
    scopes: dict[int, trio.CancelScope] = attrs.Factory(dict[int, trio.CancelScope])

    async def start(
        self,
        member: int,
        size: int,
        *,
        limits: LinkLimits | None = None,
        on_stream: StreamHandler = no_stream,
        cluster: str = "test",
    ) -> None:
        recorder = Recorder(on_stream)
        addresses = {number: address(number) for number in range(size)}
        host = self.network.host(f"host{member}")
        links = make_links(
            member, addresses, host, recorder, limits=limits or LinkLimits(), cluster=cluster
        )
        self.links[member], self.recorders[member] = links, recorder
        self.scopes[member] = await self.nursery.start(_run_in_scope, links)

    def stop(self, member: int) -> None:
        self.scopes[member].cancel()


async def _run_in_scope(links: Links, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(links.run)
        task_status.started(nursery.cancel_scope)


@asynccontextmanager
async def world(
    size: int,
    *,
    limits: LinkLimits | None = None,
    on_stream: StreamHandler = no_stream,
    jitter: float = 0.0,
    seed: int = 0,
) -> AsyncGenerator[World]:
    """Run this many members, with all links up."""
    async with trio.open_nursery() as nursery:
        made = World(MemoryNetwork(Random(seed), latency=0.001, jitter=jitter), nursery)
        for member in range(size):
            await made.start(member, size, limits=limits, on_stream=on_stream)
        for member in range(size):
            for other in range(size):
                if other != member:
                    await made.recorders[member].until("up", other)
        yield made
        nursery.cancel_scope.cancel()


class Stranger:
    """A raw connection to a member, over which the test sends anything."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.decoder = FrameDecoder()

    async def send(self, data: bytes) -> None:
        while data:
            data = data[self.connection.send_nowait(data) :]
            if data:
                await self.connection.wait_writable()

    async def reply(self) -> HelloReply | None:
        """Wait for the answer to a hello; None if the member closed the connection instead."""
        while True:
            data = await self.connection.receive(1000)
            if not data:
                return None
            for message in self.decoder.feed(data):
                if isinstance(message, HelloReply):
                    return message
                raise WireError(f"{message} is no reply")

    async def ends(self) -> bool:
        """Return whether the member closes the connection within a long time."""
        with trio.move_on_after(60):
            try:
                return not await self.connection.receive(1000)
            except trio.BrokenResourceError:
                return True
        return False


async def stranger(network: Network, target: Address, *start: Message | bytes) -> Stranger:
    """Connect and send messages or bytes."""
    made = Stranger(await network.connect(target))
    for item in start:
        await made.send(item if isinstance(item, bytes) else encode(item))
    return made
