"""The port that Redis clients connect to: one task and one epoll for all clients.

The naive way
    A task for each client. Each command then costs a wake-up of its task, and the gateway gets
    requests one by one.

What we do: turns
    All client sockets are registered, level-triggered, with one ``epoll`` object. One task waits
    until the epoll itself is readable, and then serves all ready clients in a *turn*. The requests
    of a turn go to the gateway together, and become one batch of the log. Only that wait is
    awaited, so cancellation comes between turns, and then closes all connections.

Bounds of a turn
    At most :data:`TURN_EVENTS` clients, and at most :data:`~.connection.RECEIVE_BYTES` from each.
    After :data:`TURN_SECONDS` trio's other tasks run. A conversation that takes long pauses by
    itself; an eventfd among the sockets starts the turn in which it continues.

Clients with TLS
    They come through ports of their own. Their handshakes are bounded and sliced apart from the
    turns (:mod:`..tls.handshakes`). Afterwards they are connections like any other, over an object
    that is called like a socket (:mod:`..tls.socket`).

Caveats
    Linux only, because of epoll. Descriptors are opened by the constructor and closed at the end
    of :meth:`ClientPort.run`, which can be called once.
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
import ssl
import sys
import time
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Never

import attrs
import trio

from ...log_events import log_event
from ...node.config.config import Redirect
from ...node.protocol.signal import Signal
from ...node.requests.gateway import Gateway
from ..clients.client_state import ClientState
from ..clients.port_access import PortAccess
from ..clients.port_state import KEEPALIVE_SECONDS, ClientPortLimits, PortState
from ..programs.watch import WatchSource
from ..protocol import resp
from ..protocol.parser import CommandParser, ParserLimits
from ..slots.signposts import Signposts
from ..tls.certified import certified_user
from ..tls.handshakes import Arrival, Handshakes
from ..tls.socket import TlsSocket
from .connection import WAIT_READABLE, Connection
from .leader_users import follow_users
from .watch_pushes import WatchPushes

__all__ = [
    "RESERVED_DESCRIPTORS",
    "TURN_EVENTS",
    "TURN_SECONDS",
    "ClientPort",
    "ClientPortLimits",
    "PortTls",
]

TURN_EVENTS: Final = 512
"""Clients that one turn serves. More, and a turn's batch and its latency grow; fewer, and there are
more turns with smaller batches."""

TURN_SECONDS: Final = 0.005
"""After this time the other tasks of the member run. Longer, and heartbeats could be late; shorter,
and the scheduler is entered more often."""

DRAIN_SECONDS: Final = 1.0
"""How long a stopping member goes on answering what it has read. Shorter, and clients lose replies
to commands that took effect; longer, and a restart takes longer."""

CLOSE_SECONDS: Final = 0.2
"""How long clients then have to close their side; a busy client does so at once."""

LINGER_SECONDS: Final = 5.0
"""How long a client has to close its side in other cases, after we have closed our side."""

RESERVED_DESCRIPTORS: Final = 64
"""File descriptors that clients never get: for links of nine members, stores, log files, tools.
Fewer, and many clients could keep the member from opening its own files."""

_PROBES: Final = 3
_PROBE_SECONDS: Final = 20
"""Number and interval of the probes without an answer after which a client counts as gone."""

_OPEN_FILES: Final = Path("/proc/self/fd")
_BACKLOG: Final = 511  # as Redis
# With fewer, it takes many turns until all clients are back after an outage; with more, the clients
# that are back wait for longer.
_ACCEPTS_IN_A_ROW: Final = 64
_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RETRY_ACCEPT_S: Final = 0.1

_log = logging.getLogger("quorate.keyvalue")


@attrs.frozen
class PortTls:
    """TLS for clients.

    Args:
        port: TCP port, 0 for any free one.
        context: returns the context in use; it may be another one for each client.
        cluster: whose certificates of clients name users.
        authorities: returns the CAs that are trusted now, each as DER.
    """

    port: int
    context: Callable[[], ssl.SSLContext]
    cluster: str
    authorities: Callable[[], frozenset[bytes]] = frozenset


class ClientPort:
    """Listens for clients and serves them.

    Args:
        gateway: takes the requests.
        host: name or address to listen on.
        port: TCP port, 0 for any free one, None for none.
        limits: what clients may take.
        redirect_port: TCP port for cluster clients, 0 for any free one, None for none. It speaks
            TLS if `port` is None.
        redirect: which clients are redirected to the leader.
        access: users and logins; None for a port where everybody may do everything.
        tls: a port for clients with TLS; None for none.
        protected: clients of other machines are served only as users.
        watches: makes watches of the member's keys; None for a member without keys.
        signposts: where other partitions are; None for a cluster without partitions.
    """

    def __init__(
        self,
        gateway: Gateway,
        host: str,
        port: int | None,
        limits: ClientPortLimits | None = None,
        *,
        redirect_port: int | None = None,
        redirect: Redirect = "auto",
        access: PortAccess | None = None,
        tls: PortTls | None = None,
        protected: bool = False,
        watches: WatchSource | None = None,
        signposts: Signposts | None = None,
    ) -> None:
        usual = limits or ClientPortLimits()
        self._state = PortState(
            gateway,
            usual,
            host,
            port or 0,
            redirect_port,
            redirect=redirect,
            access=access or PortAccess(),
            protected=protected,
            signposts=signposts,
        )
        self._pushes = WatchPushes(watches, self._state) if watches is not None else None
        self._state.watches = self._pushes
        self._tls = tls
        self._doors = _doors(port, redirect_port, tls)
        self._handshakes = Handshakes(self._admit_with_tls, self._count_failure)
        self._parser_limits = ParserLimits(request_bytes=self._state.limits.request_bytes)
        self._epoll = select.epoll()
        # An eventfd among the sockets: a paused conversation starts a turn the way a client does.
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._state.wake = functools.partial(os.eventfd_write, self._wake, 1)
        self._connections: dict[int, Connection] = {}  # by file descriptor
        # Events that the last turn had no time for. Without a connection it is the eventfd, which
        # asks to resume paused conversations.
        self._unserved: list[tuple[Connection | None, int]] = []
        self._lingering: dict[Connection, float] = {}  # each with the time to close it
        self._ended = Signal()
        self._accepting = trio.CancelScope()
        self._end_of_descriptors = sys.maxsize
        self._ids = itertools.count(1)
        self._now = trio.lowlevel.current_clock().current_time  # turns call it often
        self._state.counters.clock = self._now

    @property
    def state(self) -> PortState:
        """What all connections share; its figures may be read from outside."""
        return self._state

    async def run(
        self, *, task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED
    ) -> Never:
        """Serve clients until cancelled; `started()` gets the host and port that were bound.

        That is the usual port, or the one for clients with TLS if there is no other.

        Raises:
            OSError: the address can't be bound.
        """
        state = self._state
        listeners = await _listen_all(state.host, self._doors)
        try:
            for door, listener in listeners:
                bound = listener.getsockname()[1]
                if door.redirects:
                    state.redirect_port = bound
                elif door.tls:
                    state.tls_port = bound
                else:
                    state.port = bound
            state.host = listeners[0][1].getsockname()[0]
            self._limit_to_descriptors()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._accept_clients, listeners)
                nursery.start_soon(self._close_overdue)
                nursery.start_soon(state.access.verifier.run)
                nursery.start_soon(state.access.penalties.run)
                nursery.start_soon(follow_users, state)
                if self._pushes is not None:
                    nursery.start_soon(self._pushes.run)
                task_status.started((state.host, state.port or state.tls_port))
                while True:
                    await trio.lowlevel.wait_readable(self._epoll.fileno())
                    self._serve()
        finally:
            # A copy: each `close` calls `forget`, which removes the connection from the dictionary.
            for connection in list(self._connections.values()):
                connection.close()
            self._handshakes.close()
            self._epoll.close()
            os.close(self._wake)

    async def drain(self) -> None:
        """Accept no more clients and commands, and wait until everything read is answered.

        It waits at most :data:`DRAIN_SECONDS`: a client may not read, or a request may wait for a
        leader.
        """
        self._accepting.cancel()
        await trio.lowlevel.checkpoint()
        # These clients were ready in the last turn: `finish` below would leave their commands
        # unread.
        while self._unserved:
            self._serve()
        for connection in list(self._connections.values()):
            connection.finish()
        with trio.move_on_after(DRAIN_SECONDS):
            # A connection lingers once its last reply is sent, or closes and is forgotten.
            while len(self._lingering) < len(self._connections):
                await self._ended.wait()

    async def close(self) -> None:
        """After :meth:`drain`, wait at most :data:`CLOSE_SECONDS` for clients to close first."""
        with trio.move_on_after(CLOSE_SECONDS):
            while self._connections:
                await self._ended.wait()

    def _serve(self) -> None:
        """Serve ready clients for one turn; those not reached are the first of the next turn."""
        connections, state = self._connections, self._state
        now = self._now()
        turn_ends = now + TURN_SECONDS
        state.begin_turn(now)
        # Events left over come first. Otherwise the first clients of the list could take all turns.
        ready = iter(
            self._unserved
            or [
                (connections.get(fileno), events)
                # Timeout 0: only `wait_readable` may wait. Here the event loop would sleep, with
                # all its tasks.
                for fileno, events in self._epoll.poll(0, TURN_EVENTS)
            ]
        )
        for connection, events in ready:
            if connection is None:  # the eventfd
                self._resume(turn_ends)
            elif connection.on_event(events):
                continue  # it only joined a request: cheaper than to look at the clock each time
            if self._now() > turn_ends:
                break
        self._unserved = list(ready)
        if self._unserved:
            state.wake()  # their events are taken already: epoll might not be readable again
        state.end_turn()

    def _resume(self, turn_ends: float) -> None:
        """Resume paused conversations."""
        # One round at most: a conversation that pauses again waits for the next turn.
        unfinished = self._state.unfinished
        for _ in range(len(unfinished)):
            unfinished.popleft()()
            if self._now() > turn_ends:
                break
        # While some are left the eventfd stays readable, so there will be another turn.
        if not unfinished:
            os.eventfd_read(self._wake)

    def _limit_to_descriptors(self) -> None:
        """Lower `max_clients` to the file descriptors that are left, less the reserve.

        The limit belongs to the process, so it is not raised here but in `quorate.cli.run`.
        """
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit == resource.RLIM_INFINITY:
            return
        self._end_of_descriptors = limit - RESERVED_DESCRIPTORS
        wanted = self._state.limits.max_clients
        room = max(self._end_of_descriptors - sum(1 for _ in _OPEN_FILES.iterdir()), 0)
        if room < wanted:
            self._state.limits = attrs.evolve(self._state.limits, max_clients=room)
            log_event(
                _log,
                logging.WARNING,
                "few_descriptors",
                "max_clients is %(wanted)d, but the limit of open files, %(limit)d, leaves room "
                "for %(room)d clients",
                wanted=wanted,
                limit=limit,
                room=room,
            )

    # Coming and going ------------------------------------------------------------------------

    async def _accept_clients(self, listeners: "list[tuple[_Door, socket.socket]]") -> None:
        """Accept clients until `drain`, then stop listening."""
        try:
            with self._accepting:
                async with trio.open_nursery() as nursery:
                    for door, listener in listeners:
                        nursery.start_soon(self._accept, listener, door)
                    if self._tls is not None:
                        nursery.start_soon(self._handshakes.run)
        finally:
            for _, listener in listeners:
                listener.close()

    async def _accept(self, listener: socket.socket, door: "_Door") -> Never:
        while True:
            await trio.lowlevel.wait_readable(listener)
            if door.tls:
                await self._handshakes.room()
            try:
                # Several at once, since after an outage all clients come back together; not all,
                # since other tasks wait.
                for _ in range(_ACCEPTS_IN_A_ROW):
                    self._receive(*listener.accept(), door)
                    if door.tls and self._handshakes.full:
                        break
            except BlockingIOError:
                continue
            except OSError as error:
                # The client stays in the kernel's queue, so the listener stays readable. Without
                # the pause this loop would spin.
                if error.errno in _OUT_OF_DESCRIPTORS:
                    words = "no client can be accepted: %(why)s"
                    log_event(_log, logging.WARNING, "accept_failed", words, why=error.strerror)
                    await trio.sleep(_RETRY_ACCEPT_S)

    async def _close_overdue(self) -> Never:
        """Close connections that linger, do not read, or do not log in for too long.

        Also those of clients whose certificates have expired.
        """
        while True:
            # One timer for all clients. A timer for each would cost a task for each.
            await trio.sleep(LINGER_SECONDS)
            now = trio.current_time()
            for connection in [one for one, until in self._lingering.items() if until <= now]:
                connection.close()
            trusted = self._tls.authorities() if self._tls else frozenset[bytes]()
            for connection in list(self._connections.values()):
                connection.close_if_stalled(now)
                # Which of the CAs its certificate is of, Python does not say before 3.13.
                if connection.client.good_until <= now or not (
                    connection.client.authorities <= trusted
                ):
                    connection.close()
            self._state.counters.closed_strangers += self._state.strangers.end_overdue(now)

    def _receive(self, sock: socket.socket, address: tuple[str, int], door: "_Door") -> None:
        """Take a client that has connected, unless there are too many."""
        state = self._state
        # The kernel gives out the lowest free descriptor, so a high one means that few are left.
        scarce = sock.fileno() >= self._end_of_descriptors
        if scarce or len(self._connections) + len(self._handshakes) >= state.limits.max_clients:
            state.counters.refused_connections += 1
            _refuse(sock, plain=not door.tls)
            return
        try:
            sock.setblocking(False)
            # Replies are small, and with Nagle's algorithm the kernel would hold one back until the
            # one before is acknowledged.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _keep_alive(sock)
        except OSError:  # the client has closed already
            sock.close()
            return
        if door.tls:
            assert self._tls is not None, "a door with TLS is made only for it"
            wrapped = TlsSocket(sock, self._tls.context())
            now, trusted = trio.current_time(), self._tls.authorities()
            self._handshakes.begin(Arrival(wrapped, address, door.redirects, now, trusted))
        else:
            self._admit(sock, address, at_redirect_port=door.redirects)

    def _count_failure(self, address: tuple[str, int], reason: str) -> None:
        self._state.counters.failed_handshakes += 1
        self._state.access.audit.refused(address, reason)

    def _admit_with_tls(self, arrival: Arrival) -> None:
        """Take a client whose handshake is over."""
        assert self._tls is not None, "no handshake begins without it"
        shown = arrival.socket.certificate
        connection = self._admit(
            arrival.socket,
            arrival.address,
            at_redirect_port=arrival.at_redirect_port,
            certified=b"" if shown is None else certified_user(shown.uris, self._tls.cluster),
        )
        if connection is not None and shown is not None:
            # OpenSSL looks at it once, by the system's clock; a session may last for months.
            left = shown.ends - time.time()  # noqa: TID251 - as OpenSSL
            connection.client.good_until = trio.current_time() + left
            connection.client.authorities = arrival.authorities
        # epoll does not see what came together with the end of the handshake.
        if connection is not None and arrival.socket.has_input:
            self._state.resume_later(lambda: _read(connection))

    def _admit(
        self,
        sock: "socket.socket | TlsSocket",
        address: tuple[str, int],
        *,
        at_redirect_port: bool,
        certified: bytes = b"",
    ) -> Connection | None:
        """Begin to serve a client; return None if it is gone."""
        state = self._state
        try:
            host, port = sock.getsockname()[:2]
        except OSError:
            sock.close()
            return None
        state.counters.connections += 1
        now = trio.current_time()
        client = ClientState(
            next(self._ids),
            _text(address),
            _text((host, port)),
            now,
            now,
            certified=certified,
            tls=isinstance(sock, TlsSocket),
            remote=state.protected and not _is_local(address[0], host),
        )
        state.admit(client, at_redirect_port=at_redirect_port)
        parser = CommandParser(self._parser_limits)
        connection = Connection(sock, client, parser, state, self)
        self._epoll.register(connection.fileno, WAIT_READABLE)
        self._connections[connection.fileno] = connection
        state.clients[client.client_id] = connection
        state.count_stranger(connection)
        # `drain` has begun: no new commands are taken, not even from a client that was being
        # accepted.
        if self._accepting.cancel_called:
            connection.finish()
        return connection

    def watch(self, fileno: int, events: int) -> None:
        """Change the events that a connection waits for."""
        self._epoll.modify(fileno, events)

    def forget(self, connection: Connection) -> None:
        """A connection is about to close its socket."""
        # While the descriptor is open: afterwards its number may be that of another client.
        self._epoll.unregister(connection.fileno)
        del self._connections[connection.fileno]
        del self._state.clients[connection.client.client_id]
        self._lingering.pop(connection, None)
        self._ended.notify()

    def linger(self, connection: Connection) -> None:
        """A connection has sent its last reply, and waits for the client to close."""
        self._lingering[connection] = trio.current_time() + LINGER_SECONDS
        self._ended.notify()


def _refuse(sock: socket.socket, *, plain: bool) -> None:
    sock.setblocking(False)
    # As far as the socket takes it at once: a refused client is not worth waiting for. Nor is it
    # worth a handshake, and without one a client with TLS could not read the reason.
    if plain:
        with contextlib.suppress(OSError):
            sock.send(resp.error("ERR max number of clients reached"))
    sock.close()


def _read(connection: Connection) -> None:
    """Read from a client as if epoll had reported it; it may be closed by now."""
    connection.on_event(WAIT_READABLE)


def _is_local(host: str, own: str) -> bool:
    """Whether a client is on this machine, by its address and ours."""
    address = ip_address(host.partition("%")[0])
    # At an address of IPv6, clients of IPv4 have one that begins with ::ffff:
    mapped = getattr(address, "ipv4_mapped", None) or address
    # Only this machine can call from our own address.
    return host == own or mapped.is_loopback


def _keep_alive(sock: socket.socket) -> None:
    """Make the kernel end the connection when the client's machine has vanished."""
    # Keepalive probes notice that while nothing is under way; while replies are, the user timeout
    # does, because probes are not sent then.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    before = KEEPALIVE_SECONDS - _PROBES * _PROBE_SECONDS
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, before)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * KEEPALIVE_SECONDS)


def _text(address: tuple[str, int]) -> str:
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@attrs.frozen
class _Door:
    """A port that clients come through.

    Args:
        port: TCP port, 0 for any free one.
        tls: they speak TLS.
        redirects: they are cluster clients.
    """

    port: int
    tls: bool = False
    redirects: bool = False


def _doors(port: int | None, redirect_port: int | None, tls: PortTls | None) -> list[_Door]:
    doors: list[_Door] = []
    if port is not None:
        doors.append(_Door(port))
    if tls is not None:
        doors.append(_Door(tls.port, tls=True))
    if redirect_port is not None:
        doors.append(_Door(redirect_port, tls=port is None, redirects=True))
    return doors


async def _listen_all(host: str, doors: list[_Door]) -> list[tuple[_Door, socket.socket]]:
    """Listen on all ports, in this order.

    Raises:
        OSError: one can't be bound; none is open then.
    """
    listeners: list[tuple[_Door, socket.socket]] = []
    try:
        for door in doors:
            listeners += [(door, listener) for listener in await _listen(host, door.port)]
    except OSError:
        for _, listener in listeners:
            listener.close()
        raise
    return listeners


async def _listen(host: str, port: int) -> list[socket.socket]:
    """Bind every address of a host; return plain sockets, non-blocking."""
    # trio's own listeners offer no `accept` that does not wait.
    try:
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=_BACKLOG)
    except OSError as error:
        error.filename = _text((host, port))  # the kernel's error does not name the address
        raise
    sockets: list[socket.socket] = []
    for listener in listeners:
        # Detached, so that trio's object does not close the descriptor when it is collected.
        plain = socket.socket(fileno=listener.socket.detach())
        plain.setblocking(False)
        sockets.append(plain)
    return sockets
