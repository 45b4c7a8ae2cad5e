"""The port that Redis clients connect to: one task, one epoll, all clients.

All client sockets are registered, level-triggered, with one ``epoll`` object. One task waits until
the epoll itself is readable, and then serves every ready client: that is a turn. The requests of a
turn go to the gateway together, and become one batch of the log. A task for each client would cost
a task switch for each command, and nothing would bring their requests together.

The task awaits nothing else, so a cancellation comes between turns, and closes all connections.

The work of a turn is bounded: at most :data:`TURN_EVENTS` clients, at most
:data:`~.connection.RECEIVE_BYTES` from each, and after :data:`TURN_SECONDS` the other tasks of the
member get the processor. The clock is not read after a plain command that was only joined with
others, since that takes a microsecond. A conversation that takes long pauses by itself; an eventfd
among the sockets causes the turn in which it continues.

Caveats: Linux only, because of epoll. Descriptors are opened when the object is made and closed at
the end of :meth:`ClientPort.run`, which can be called once.
"""

import contextlib
import errno
import functools
import itertools
import logging
import os
import resource
import select
import socket
import sys
from pathlib import Path
from typing import Final, Never

import attrs
import trio

from ...node.config.config import Redirect
from ...node.protocol.role import Signal
from ...node.requests.gateway import Gateway
from ..protocol import resp
from ..protocol.parser import CommandParser, ParserLimits
from .client_state import KEEPALIVE_SECONDS, ClientPortLimits, PortState, Session
from .connection import WAIT_READABLE, Connection

__all__ = [
    "RESERVED_DESCRIPTORS",
    "TURN_EVENTS",
    "TURN_SECONDS",
    "ClientPort",
    "ClientPortLimits",
]

TURN_EVENTS: Final = 512
"""Clients that are served in one turn."""

TURN_SECONDS: Final = 0.005
"""Longer, and heartbeats of a busy leader are late; shorter, and batches get smaller."""

DRAIN_SECONDS: Final = 1.0
"""How long a stopping member continues to answer requests that it has read."""

CLOSE_SECONDS: Final = 0.2
"""How long clients then have to close their ends; a busy client does so at once."""

LINGER_SECONDS: Final = 5.0
"""How long a client has otherwise, once we have closed ours."""

RESERVED_DESCRIPTORS: Final = 64
"""Descriptors kept for links and streams of nine members, stores, log files and tools. Fewer, and
a crowd of clients could keep the member from opening its store's files."""

_PROBES: Final = 3
_PROBE_SECONDS: Final = 20
"""So many unanswered probes, so far apart, and the client's machine counts as gone."""

_OPEN_FILES: Final = Path("/proc/self/fd")
_BACKLOG: Final = 511  # as Redis
_ACCEPTS_IN_A_ROW: Final = 64
_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RETRY_ACCEPT_S: Final = 0.1

_log = logging.getLogger("quorate.keyvalue")


class ClientPort:
    """Listens for clients and serves them.

    Args:
        gateway: the way into the member.
        host: name or address to listen on.
        port: TCP port, 0 for any free one.
        limits: what clients may take.
        redirect_port: TCP port for cluster clients, 0 for any free one, None for none.
        redirect: which clients are sent to the leader.
    """

    def __init__(
        self,
        gateway: Gateway,
        host: str,
        port: int,
        limits: ClientPortLimits | None = None,
        *,
        redirect_port: int | None = None,
        redirect: Redirect = "auto",
    ) -> None:
        usual = limits or ClientPortLimits()
        self._state = PortState(gateway, usual, host, port, redirect_port, redirect)
        self._parser_limits = ParserLimits(request_bytes=self._state.limits.request_bytes)
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._state.wake = functools.partial(os.eventfd_write, self._wake, 1)
        self._connections: dict[int, Connection] = {}  # by file descriptor
        # Events that the last turn had no time for; None stands for paused conversations.
        self._unserved: list[tuple[Connection | None, int]] = []
        self._lingering: dict[Connection, float] = {}  # and until when
        self._ended = Signal()
        self._accepting = trio.CancelScope()
        self._end_of_descriptors = sys.maxsize
        self._ids = itertools.count(1)
        self._now = trio.lowlevel.current_clock().current_time  # a turn asks for many a client

    @property
    def state(self) -> PortState:
        """What all connections share; metrics read its figures."""
        return self._state

    async def run(
        self, *, task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED
    ) -> Never:
        """Serve clients until cancelled; `started()` has the host and port really bound.

        Raises:
            OSError: the address can't be bound.
        """
        state = self._state
        listeners, redirecting = await _listen_twice(state.host, state.port, state.redirect_port)
        try:
            if redirecting:
                state.redirect_port = redirecting[0].getsockname()[1]
            state.host, state.port = listeners[0].getsockname()[:2]
            self._heed_descriptors()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._accept_clients, listeners, redirecting)
                nursery.start_soon(self._end_lingering)
                task_status.started((self._state.host, self._state.port))
                while True:
                    await trio.lowlevel.wait_readable(self._epoll.fileno())
                    self._serve()
        finally:
            for connection in list(self._connections.values()):
                connection.close()
            self._epoll.close()
            os.close(self._wake)

    async def drain(self) -> None:
        """Accept no more clients or commands, and wait until the requests read so far are answered.

        For :data:`DRAIN_SECONDS` at most: a client may not read, a request may wait for a leader.
        """
        self._accepting.cancel()
        await trio.lowlevel.checkpoint()
        while self._unserved:
            self._serve()
        for connection in list(self._connections.values()):
            connection.finish()
        with trio.move_on_after(DRAIN_SECONDS):
            while len(self._lingering) < len(self._connections):
                await self._ended.wait()

    async def close(self) -> None:
        """After :meth:`drain`, let clients close first, for :data:`CLOSE_SECONDS` at most."""
        with trio.move_on_after(CLOSE_SECONDS):
            while self._connections:
                await self._ended.wait()

    def _serve(self) -> None:
        """Serve ready clients for one turn; the rest come first in the next one."""
        connections, state = self._connections, self._state
        now = self._now()
        turn_ends = now + TURN_SECONDS
        state.begin_turn(now)
        ready = iter(
            self._unserved
            or [
                (connections.get(fileno), events)
                for fileno, events in self._epoll.poll(0, TURN_EVENTS)
            ]
        )
        for connection, events in ready:
            if connection is None:
                self._resume(turn_ends)
            elif connection.on_event(events):
                continue  # joining takes hardly longer than reading the clock
            if self._now() > turn_ends:
                break
        self._unserved = list(ready)
        if self._unserved:
            state.wake()
        state.end_turn()

    def _resume(self, turn_ends: float) -> None:
        """Continue paused conversations."""
        unfinished = self._state.unfinished
        for _ in range(len(unfinished)):
            unfinished.popleft()()
            if self._now() > turn_ends:
                break
        if not unfinished:
            os.eventfd_read(self._wake)

    def _heed_descriptors(self) -> None:
        """Lower `max_clients` if the limit of open files leaves no room for so many.

        The limit is the process's and not ours to change: see `quorate.cli.run`.
        """
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit == resource.RLIM_INFINITY:
            return
        self._end_of_descriptors = limit - RESERVED_DESCRIPTORS
        wanted = self._state.limits.max_clients
        room = max(self._end_of_descriptors - sum(1 for _ in _OPEN_FILES.iterdir()), 0)
        if room < wanted:
            self._state.limits = attrs.evolve(self._state.limits, max_clients=room)
            _log.warning(
                "max_clients is %d, but the limit of open files, %d, leaves room for %d clients",
                wanted,
                limit,
                room,
            )

    # Coming and going ------------------------------------------------------------------------

    async def _accept_clients(
        self, listeners: list[socket.socket], redirecting: list[socket.socket]
    ) -> None:
        """Accept until `drain`; then no longer listen."""
        try:
            with self._accepting:
                async with trio.open_nursery() as nursery:
                    for listener in listeners:
                        nursery.start_soon(self._accept, listener, False)
                    for listener in redirecting:
                        nursery.start_soon(self._accept, listener, True)
        finally:
            for listener in (*listeners, *redirecting):
                listener.close()

    async def _accept(self, listener: socket.socket, redirecting: bool) -> Never:  # noqa: FBT001 - trio passes no keywords
        while True:
            await trio.lowlevel.wait_readable(listener)
            try:
                for _ in range(_ACCEPTS_IN_A_ROW):
                    self._admit(*listener.accept(), at_redirect_port=redirecting)
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno in _OUT_OF_DESCRIPTORS:
                    _log.warning("no client can be accepted: %s", error.strerror)
                    await trio.sleep(_RETRY_ACCEPT_S)

    async def _end_lingering(self) -> Never:
        """Close connections that lingered too long, and those whose clients do not read."""
        while True:
            await trio.sleep(LINGER_SECONDS)
            now = trio.current_time()
            for connection in [one for one, until in self._lingering.items() if until <= now]:
                connection.close()
            for connection in list(self._connections.values()):
                connection.close_if_stalled(now)

    def _admit(
        self, client: socket.socket, address: tuple[str, int], *, at_redirect_port: bool
    ) -> None:
        state = self._state
        # The system gives the lowest free descriptor: a high one means that few are left.
        scarce = client.fileno() >= self._end_of_descriptors
        if scarce or len(self._connections) >= state.limits.max_clients:
            state.counters.refused_connections += 1
            _refuse(client)
            return
        try:
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _keep_alive(client)
            local = _text(client.getsockname())
        except OSError:  # it has gone already
            client.close()
            return
        state.counters.connections += 1
        now = trio.current_time()
        session = Session(next(self._ids), _text(address), local, now, now)
        state.admit(session, at_redirect_port=at_redirect_port)
        parser = CommandParser(self._parser_limits)
        connection = Connection(client, session, parser, state, self)
        self._epoll.register(connection.fileno, WAIT_READABLE)
        self._connections[connection.fileno] = connection
        state.clients[session.client_id] = connection
        if self._accepting.cancel_called:
            connection.finish()

    def watch(self, fileno: int, events: int) -> None:
        """Change the events that a connection waits for."""
        self._epoll.modify(fileno, events)

    def forget(self, connection: Connection) -> None:
        """A connection is about to close its socket."""
        self._epoll.unregister(connection.fileno)
        del self._connections[connection.fileno]
        del self._state.clients[connection.session.client_id]
        self._lingering.pop(connection, None)
        self._ended.notify()

    def linger(self, connection: Connection) -> None:
        """A connection has sent its last reply, and waits for the client to close."""
        self._lingering[connection] = trio.current_time() + LINGER_SECONDS
        self._ended.notify()


def _refuse(client: socket.socket) -> None:
    client.setblocking(False)
    with contextlib.suppress(OSError):
        client.send(resp.error("ERR max number of clients reached"))
    client.close()


def _keep_alive(client: socket.socket) -> None:
    """Have the system end the connection of a client whose machine is gone without a word.

    Keepalive probes find that if nothing is under way, the user timeout if replies are.
    """
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    before = KEEPALIVE_SECONDS - _PROBES * _PROBE_SECONDS
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, before)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * KEEPALIVE_SECONDS)


def _text(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _listen_twice(
    host: str, port: int, redirect_port: int | None
) -> tuple[list[socket.socket], list[socket.socket]]:
    """Listen on the usual port, and on the one for cluster clients if there is one."""
    listeners = await _listen(host, port)
    if redirect_port is None:
        return listeners, []
    try:
        return listeners, await _listen(host, redirect_port)
    except OSError:
        for listener in listeners:
            listener.close()
        raise


async def _listen(host: str, port: int) -> list[socket.socket]:
    """Bind every address of a host; plain sockets, for trio's would hide `accept` without wait."""
    try:
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=_BACKLOG)
    except OSError as error:
        error.filename = _text((host, port))  # the system does not say which
        raise
    sockets: list[socket.socket] = []
    for listener in listeners:
        plain = socket.socket(fileno=listener.socket.detach())
        plain.setblocking(False)
        sockets.append(plain)
    return sockets
