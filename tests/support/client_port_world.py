"""A client port in which only the cluster is simulated: sockets, parser and service are real.

:class:`OneMember` replaces the member's gateway. It applies each request at once to a real
:class:`KeyValueService`. While `parked` is a list it keeps requests instead, like a member that
waits for a leader.
"""

from __future__ import annotations

import os
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

import attrs
import trio

from quorate.errors import RefusedError
from quorate.keyvalue.access.directory import Directory
from quorate.keyvalue.clients.port_access import PortAccess
from quorate.keyvalue.port.listener import ClientPort, ClientPortLimits, PortTls
from quorate.keyvalue.programs.watch import LocalWatches
from quorate.keyvalue.service import KeyValueService
from quorate.keyvalue.slots.cluster_map import group_name
from quorate.keyvalue.slots.signposts import Signposts
from quorate.node.requests.journey import Latencies
from quorate.node.requests.request import RequestKind, still_allowed
from quorate.node.requests.status import MemberAddress, NodeStatus, PeerStatus, Topology
from quorate.node.state_machine.service import Command

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from quorate.errors import RequestError
    from quorate.node.config.config import Redirect
    from quorate.node.requests.request import Request

MEMBERS = tuple(MemberAddress(n, f"10.0.0.{n + 1}", 7000 + n) for n in range(3))


class OneMember:
    """A gateway that applies every request at once.

    Attributes:
        parked: a list keeps requests until `release`; None applies them.
        error: fails every request, if it is set.
        commands: payloads of applied commands; `queries` and `stale` are those of reads.
        principals: those of the applied commands.
        time_ms: log time; `now_ms` is ahead of it by `idle_ms`.
    """

    def __init__(self, service: KeyValueService) -> None:
        self.service = service
        self.topology = Topology(MEMBERS, leader_id=0, term=4, own_id=0, is_leader=True)
        self.cluster = "orders"
        self.state = "CLOSED"
        self.position = 0
        self.time_ms = 1_700_000_000_123
        self.idle_ms = 0
        self.commands: list[bytes] = []
        self.principals: list[int] = []
        self.queries: list[bytes] = []
        self.stale: list[bytes] = []
        self.measured = Latencies()
        self.parked: list[Request] | None = None
        self.error: RequestError | None = None

    def follow(self, leader_id: int | None, state: str = "CLOSED") -> None:
        """Stop leading."""
        self.topology = attrs.evolve(self.topology, leader_id=leader_id, is_leader=False)
        self.state = state

    def submit(self, request: Request) -> None:
        """Answer, fail or keep a request."""
        if self.parked is not None:
            self.parked.append(request)
        elif self.error is not None:
            request.done(self.error)
        else:
            self.answer(request)

    def submit_all(self, requests: list[Request]) -> None:
        """Answer, fail or keep the requests of one turn."""
        for request in requests:
            self.submit(request)

    def answer(self, request: Request) -> None:
        """Apply or read, and reply, unless the request was cancelled."""
        if request.cancelled:
            return
        if request.kind is RequestKind.CONTROL:
            assert request.payload.startswith(b"wait ")
            peers = self.status().peers
            behind = [peer.member_id for peer in peers if peer.append_position < self.position]
            names = " ".join(map(str, behind)).encode()
            every = request.payload.startswith(b"wait all ")
            request.done(names if every else b"%d" % (len(peers) - len(behind)))
            return
        if request.kind is RequestKind.QUERY:
            self.queries.append(request.payload)
            request.done(self.service.query(request.payload, request.flags))
            return
        self.commands.append(request.payload)
        self.principals.append(request.principal)
        stamp = request.session, request.sequence
        command = Command(request.payload, request.flags, *stamp, 4, self.position, 0, self.time_ms)
        command.principal = request.principal
        reply = self.service.apply(command)
        self.position += 64 + len(request.payload)
        self.service.advance(self.position, self.time_ms)
        request.done(reply)

    def release(self) -> None:
        """Answer the parked requests, as if a leader had been found."""
        parked, self.parked = self.parked or [], None
        for request in still_allowed(parked):
            self.answer(request)

    def stale_query(self, payload: bytes, flags: int) -> bytes:
        """Read the applied state."""
        self.stale.append(payload)
        return self.service.query(payload, flags)

    def now_ms(self) -> int:
        """Return log time."""
        return self.time_ms + self.idle_ms

    def own_order(self, words: bytes) -> bytes:
        """Say what was asked."""
        if words == b"trace":
            raise RefusedError("expected more")
        return b"done: " + words

    def recent(self, since: int) -> dict[str, Any]:
        """Return what a test can recognise."""
        return {"steps": [], "step_count": since}

    def latencies(self) -> Latencies:
        """Return what a test has set."""
        return self.measured

    def status(self) -> NodeStatus:
        """Return plausible figures."""
        return NodeStatus(
            member_id=0,
            cluster=self.cluster,
            role="leader" if self.topology.is_leader else "follower",
            state=self.state,
            state_age_s=2.5,
            term=4,
            leader_id=self.topology.leader_id,
            log_term=4,
            start_position=0,
            append_position=self.position,
            commit_position=self.position,
            applied_position=self.position,
            elections=1,
            uptime_s=100_000.5,
            timestamp_ms=self.time_ms,
            parked=len(self.parked or ()),
            forwarded=0,
            incarnation=77,
            snapshot_position=-1,
            snapshot_timestamp_ms=self.time_ms - 1_000_000,
            snapshot_activity="",
            suspended=False,
            disk_full=False,
            damage="",
            standing="member",
            not_heard=(),
            entries=0,
            batches=0,
            commits=0,
            lease_s=0.0,
            clock_skew_ms=0,
            peers=(
                PeerStatus(1, connected=True, append_position=self.position, last_heard_s=0.01),
                PeerStatus(2, connected=False, append_position=-1, last_heard_s=None),
            ),
        )


class RawClient:
    """A client's socket, plain or with TLS."""

    def __init__(
        self, stream: trio.SocketStream, tls: trio.SSLStream[trio.SocketStream] | None = None
    ) -> None:
        self.stream = stream
        self.tls = tls
        self._way: trio.abc.Stream = tls or stream
        self._received = b""

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        await self._way.send_all(data)

    def send_at_once(self, data: bytes) -> int:
        """Send what the socket takes, without a checkpoint; return the number of bytes."""
        with socket.socket(fileno=os.dup(self.stream.socket.fileno())) as plain:
            return plain.send(data)

    async def receive(self, count: int) -> bytes:
        """Receive exactly `count` bytes, or fewer if the port closes first."""
        chunks: list[bytes] = []
        length = 0
        while length < count:
            more = await self.receive_some(1 << 20)
            if not more:
                break
            chunks.append(more)
            length += len(more)
        received = b"".join(chunks)
        self._received = received[count:]
        return received[:count]

    async def ask(self, data: bytes, reply: bytes) -> None:
        """Send bytes and check that exactly this reply follows."""
        await self.send(data)
        assert await self.receive(len(reply)) == reply

    async def receive_until(self, end: bytes, *, chunk_bytes: int = 4096) -> bytes:
        """Receive until the received bytes end with these."""
        received = b""
        while not received.endswith(end):
            more = await self.receive_some(chunk_bytes)
            assert more, f"closed after {received!r:.200}"
            received += more
        return received

    async def receive_some(self, count: int) -> bytes:
        """Receive the available bytes: at least one, unless the port has closed."""
        if not self._received:
            try:
                with trio.fail_after(5):
                    return bytes(await self._way.receive_some(count))
            except trio.BrokenResourceError:
                return b""
        taken, self._received = self._received, b""
        return taken

    async def rest(self) -> bytes:
        """Receive until the port closes."""
        return await self.receive(1 << 30)

    async def aclose(self) -> None:
        """Close both directions."""
        await self._way.aclose()


@attrs.define(eq=False)
class World:
    """A port that listens on loopback, with its member and its clients."""

    member: OneMember
    port: ClientPort
    address: tuple[str, int]
    connected: list[RawClient] = attrs.field(factory=list["RawClient"])

    async def connect(self, *, redirected: bool = False) -> RawClient:
        """Open a connection; it is closed with the world."""
        host, port = self.address
        if redirected:
            assert self.port.state.redirect_port is not None
            port = self.port.state.redirect_port
        self.connected.append(RawClient(await trio.open_tcp_stream(host, port)))
        return self.connected[-1]

    async def connect_tls(self, context: ssl.SSLContext, *, redirected: bool = False) -> RawClient:
        """Open a connection with TLS, after the handshake; it is closed with the world."""
        state = self.port.state
        port = state.redirect_port if redirected else state.tls_port
        assert port
        stream = await trio.open_tcp_stream(self.address[0], port)
        tls = trio.SSLStream(stream, context, https_compatible=True)
        self.connected.append(RawClient(stream, tls))
        with trio.fail_after(30):  # a hundred of them at once, on a busy machine
            await tls.do_handshake()
        return self.connected[-1]

    async def has_read(self, count: int) -> None:
        """Wait until the port has read `count` bytes in total."""
        await self.until(lambda: self.port.state.counters.input_bytes >= count)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds; real sockets have no virtual time."""
        with trio.fail_after(5):
            while not condition():  # noqa: ASYNC110 - waits for the kernel, not for a task
                await trio.sleep(0.001)

    @classmethod
    @asynccontextmanager
    async def opened(
        cls,
        directory: Path,
        limits: ClientPortLimits | None = None,
        *,
        redirect_port: int | None = None,
        redirect: Redirect = "auto",
        settled: bool = True,
        tls: Callable[[], ssl.SSLContext] | None = None,
        plain: bool = True,
        protected: bool = False,
        machine: Path | None = None,
    ) -> AsyncGenerator[Self]:
        """Open a port over an empty store; with the folder of a machine, of its partition 0."""
        partitioned = machine is not None
        cluster = group_name("orders", 0) if partitioned else "orders"
        service = KeyValueService.open(
            directory, cluster=cluster, member_id=0, partition=partitioned
        )
        signposts = None
        if machine is not None and service.ownership is not None:
            signposts = Signposts(machine, 0, service.ownership)
            service.moved = signposts.moved
        try:
            member = OneMember(service)
            member.cluster = cluster
            access = PortAccess(Directory(service.users, settled=settled), spread_s=0.0)
            port = ClientPort(
                *(member, "127.0.0.1", 0 if plain else None, limits),
                redirect_port=redirect_port,
                redirect=redirect,
                access=access,
                tls=PortTls(0, tls, "orders") if tls else None,
                protected=protected,
                watches=LocalWatches(service.changes, service=service),
                signposts=signposts,
            )
            async with trio.open_nursery() as nursery:
                world = cls(member, port, await nursery.start(port.run))
                try:
                    yield world
                finally:
                    for client in world.connected:
                        client.stream.socket.close()
                nursery.cancel_scope.cancel()
        finally:
            service.close()


def command(*arguments: bytes | str) -> bytes:
    """Encode a command."""
    parts = [one.encode() if isinstance(one, str) else one for one in arguments]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)
