"""Connections with turns under a test's control: real sockets, but no epoll and no member.

:class:`Leader` replaces the gateway; it answers when the test calls :meth:`Leader.answer`.
:class:`Port` replaces the listener.
"""

from __future__ import annotations

import select
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import attrs

from quorate.keyvalue.clients.client_state import ClientState
from quorate.keyvalue.clients.port_state import ClientPortLimits, PortState
from quorate.keyvalue.native.resp_reader import count_untrusted
from quorate.keyvalue.port.connection import WAIT_READABLE, Connection
from quorate.keyvalue.protocol import resp
from quorate.keyvalue.protocol.parser import CommandParser, ParserLimits
from quorate.keyvalue.protocol.payload import IN_PARTS, TRANSACTION, PayloadParser
from quorate.node.requests.request import RequestKind, still_wanted

if TYPE_CHECKING:
    from collections.abc import Generator

    from quorate.errors import RequestError
    from quorate.node.requests.gateway import Gateway
    from quorate.node.requests.request import Request

QUERY = RequestKind.QUERY


class Leader:
    """A gateway that replies to each command with the command's own words.

    Args:
        at_a_time: number of commands that it executes of a request that allows partial execution.

    Attributes:
        at_once: whether requests are answered when they are submitted.
        error: fails every request, if it is set.
        waiting: submitted requests that were not sent; `sent` can no longer be withdrawn.
        applied: the executed commands.
        seen: kind, payload and flags of every submitted request.
    """

    @attrs.frozen
    class Topology:
        is_leader: bool = True

    topology = Topology()

    def __init__(self, at_a_time: int = 1 << 30) -> None:
        self.at_a_time = at_a_time
        self.at_once = False
        self.error: RequestError | None = None
        self.waiting: list[Request] = []
        self.sent: list[Request] = []
        self.applied: list[list[bytes]] = []
        self.seen: list[tuple[RequestKind, bytes, int]] = []

    def submit(self, request: Request) -> None:
        """Keep a request, or answer it at once."""
        self.seen.append((request.kind, request.payload, request.flags))
        self.waiting.append(request)
        if self.at_once:
            self.answer()

    def submit_all(self, requests: list[Request]) -> None:
        """Take the requests of a turn."""
        for request in requests:
            self.submit(request)

    def send(self) -> None:
        """Send the waiting requests, which can then no longer be withdrawn."""
        self.sent += still_wanted(self.waiting)
        self.waiting = []

    def answer(self) -> None:
        """Answer all requests."""
        self.send()
        sent, self.sent = self.sent, []
        for request in sent:
            if self.error is not None:
                request.done(self.error)
            elif request.kind is QUERY:
                while not request.answer(self.query):
                    pass
            else:
                request.done(self.query(request.payload, request.flags))

    def query(self, payload: bytes, flags: int) -> bytes:
        """Execute a payload and return the replies."""
        commands = PayloadParser().parse_untrusted(payload)
        done = commands[: self.at_a_time] if flags & IN_PARTS else commands
        self.applied += done
        if flags & TRANSACTION:
            return b"*1\r\n+done\r\n"
        replies = b"".join(resp.bulk(b" ".join(arguments)) for arguments in done)
        return replies if done == commands else b"\0%d\r\n" % len(done) + replies


class Client:
    """The client's end of a connection; `received` is everything it has read."""

    def __init__(self, port: Port, flags: int) -> None:
        near, self.socket = socket.socketpair()
        near.setblocking(False)
        self.socket.setblocking(False)
        self.near = near
        self.port = port
        self.received = b""
        state = port.state
        parser = CommandParser(ParserLimits(state.limits.request_bytes))
        self.client = ClientState(len(port.clients), "a", "b", 0.0, 0.0, flags=flags)
        self.connection = Connection(near, self.client, parser, state, port)
        state.clients[self.client.client_id] = self.connection
        port.events[self.connection.fileno] = WAIT_READABLE

    @property
    def idle(self) -> bool:
        """Return whether this client has no request in flight."""
        return self.connection._conversation.idle  # pyright: ignore[reportPrivateUsage]

    @property
    def open(self) -> bool:
        """Return whether the connection is still open."""
        return self.connection.fileno >= 0

    def take(self) -> bytes:
        """Read and return all available bytes."""
        taken = b""
        while True:
            try:
                more = self.socket.recv(1 << 20)
            except BlockingIOError:
                more = b""
            taken += more
            if self.port.events.get(self.connection.fileno, 0) & select.EPOLLOUT:
                self.connection.on_event(select.EPOLLOUT)
            elif not more:
                self.received += taken
                return taken


class Port:
    """Replaces the listener; it is the `connection.Poller` of its connections."""

    def __init__(self, gateway: object, limits: ClientPortLimits | None = None) -> None:
        self.state = PortState(cast("Gateway", gateway), limits or ClientPortLimits())
        self.clients: list[Client] = []
        self.events: dict[int, int] = {}
        self.lingering: list[Connection] = []

    def connect(self, flags: int = 0) -> Client:
        """Connect one more client."""
        self.clients.append(Client(self, flags))
        return self.clients[-1]

    def turn(self, *said: tuple[Client, bytes], joined: bool = True) -> None:
        """Take a turn in which these bytes are read from these clients."""
        self.begin(*said, joined=joined)
        self.state.end_turn()

    def begin(self, *said: tuple[Client, bytes], joined: bool = True) -> None:
        """Begin such a turn; the test ends it."""
        self.state.begin_turn(0.0)
        for client, data in said:
            client.connection.on_data(data, count_untrusted(data) if joined else 0)

    def watch(self, fileno: int, events: int) -> None:
        """See `connection.Poller`."""
        self.events[fileno] = events

    def linger(self, connection: Connection) -> None:
        """See `connection.Poller`."""
        self.lingering.append(connection)

    def forget(self, connection: Connection) -> None:
        """See `connection.Poller`."""
        del self.events[connection.fileno]
        del self.state.clients[connection.client.client_id]


@contextmanager
def open_port(gateway: object, limits: ClientPortLimits | None = None) -> Generator[Port]:
    """Yield a port; its sockets are closed at the end."""
    port = Port(gateway, limits)
    try:
        yield port
    finally:
        for client in port.clients:
            client.connection.close()
            client.socket.close()
