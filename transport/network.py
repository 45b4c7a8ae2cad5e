"""The seam between members and the network: TCP here, a simulated network in `testing`.

Everything above uses `Connection`: an ordered stream of bytes in each direction, with a
non-blocking send and a blocking receive. A leader can therefore hand a batch to all its followers
without a task switch. A connection breaks, and then stays broken. Before that it never loses or
reorders bytes.

The TCP side uses plain non-blocking sockets and trio's readiness calls. It waits for readiness
first and reads then. Reading first saves the wait only while bytes pile up, and costs a failed
``recv`` otherwise. (Measured between two processes: 12 % more CPU per round trip, no gain for
bulk.)
"""

import errno
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Never, Protocol, TypeAlias

import attrs
import trio

from ..errors import ConfigurationError, WireError
from ..log_events import log_event
from .identity import Identity

log = logging.getLogger("quorate.transport")

KEEPALIVE_IDLE_SECONDS: Final = 5
KEEPALIVE_INTERVAL_SECONDS: Final = 2
KEEPALIVE_PROBES: Final = 3
RETRANSMIT_PAUSE_MS: Final = 1000
"""Longest pause between two attempts to get bytes through. With the kernel's limit of 120 s, a link
could stay silent after a partition for as long again as the partition lasted."""

ACCEPT_PAUSE_SECONDS: Final = 0.1
"""Pause after a failed accept, usually for lack of file descriptors. Without it the loop would
spin."""

HIGHEST_PORT: Final = 65535
# Python has no name for it yet. An older kernel refuses it, and the link works without.
_TCP_RTO_MAX_MS: Final = 44 if sys.platform == "linux" else None  # since Linux 6.15


@attrs.frozen
class Address:
    """Where a member listens: host name or numeric address, and port (0: any free one)."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return the form that `parse_address` reads."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse ``host:port``; an IPv6 address is in brackets.

    Raises:
        ConfigurationError: the text has another form.
    """
    # From the right: an IPv6 address has colons of its own.
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigurationError(
            f"address {text!r}: expected an IPv6 address in brackets, as in [::1]:9001"
        )
    # `isdigit` alone accepts digits of other scripts, and `int` would read them.
    if not (colon and host and port.isascii() and port.isdigit()) or int(port) > HIGHEST_PORT:
        raise ConfigurationError(f"address {text!r}: expected host:port, with a port up to 65535")
    return Address(host, int(port))


def parse_address_untrusted(text: str) -> Address:
    """Parse an address that another member sent.

    Raises:
        WireError: it is not ``host:port``.
    """
    try:
        return parse_address(text)
    except ConfigurationError as error:
        raise WireError(str(error)) from None


class Connection(Protocol):
    """An ordered stream of bytes in each direction.

    One task at a time may receive, and one may wait until it is writable.
    """

    @property
    def peer(self) -> str:
        """The other end, for logs."""
        ...

    @property
    def identity(self) -> Identity | None:
        """Who the other end has proved to be; None without TLS."""
        ...

    def send_nowait(self, data: bytes | memoryview) -> int:
        """Send what fits now; return the number of bytes taken, 0 if none.

        After a call that has taken a part, the next one has to begin with the rest: the first byte
        of that may be out already.

        Raises:
            trio.BrokenResourceError: the connection is broken.
            trio.ClosedResourceError: this end closed it.
        """
        ...

    async def wait_writable(self) -> None:
        """Wait until `send_nowait` would take something or fail.

        Raises:
            trio.ClosedResourceError: this end closed it.
        """
        ...

    async def receive(self, max_bytes: int) -> bytes:
        """Wait for bytes; ``b""`` means that the other end closed the connection.

        Raises:
            trio.BrokenResourceError: the connection is broken.
            trio.ClosedResourceError: this end closed it, perhaps during this call.
        """
        ...

    def close(self) -> None:
        """Close at once; idempotent. Bytes taken before are still delivered."""
        ...


ConnectionHandler: TypeAlias = Callable[[Connection], Awaitable[None]]


class Network(Protocol):
    """Makes connections."""

    async def connect(self, address: Address) -> Connection:
        """Connect to an address.

        Raises:
            ConnectionRefusedError: the host is there, and nobody listens.
            OSError: it can't be reached.
        """
        ...

    async def serve(
        self,
        address: Address,
        handler: ConnectionHandler,
        *,
        task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
    ) -> Never:
        """Listen, and run `handler` in a task for every connection, which is closed afterwards.

        `started` with the address that was bound. An error of a handler ends it.

        Raises:
            OSError: the address can't be bound.
        """
        ...


class TcpConnection:
    """A connected non-blocking TCP socket.

    Args:
        sock: belongs to this object from now on.
    """

    identity: Identity | None = None

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._closed = False
        _set_options(sock)
        try:
            host, port = sock.getpeername()[:2]
        except OSError:  # already gone: the first receive raises
            host, port = "?", 0
        self.peer = str(Address(host, port))

    def send_nowait(self, data: bytes | memoryview) -> int:
        """See `Connection`."""
        if self._closed:
            raise trio.ClosedResourceError
        try:
            # Tried at once, without asking: the kernel's buffer usually has room, and asking is a
            # system call too.
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error

    async def wait_writable(self) -> None:
        """See `Connection`."""
        if self._closed:
            raise trio.ClosedResourceError
        await trio.lowlevel.wait_writable(self._sock)

    async def receive(self, max_bytes: int) -> bytes:
        """See `Connection`."""
        while True:
            # In the loop: this end may have been closed while we waited.
            if self._closed:
                raise trio.ClosedResourceError
            await trio.lowlevel.wait_readable(self._sock)
            try:
                return self._sock.recv(max_bytes)
            except BlockingIOError:
                # Readable does not promise bytes: the kernel may drop a segment with a wrong
                # checksum after it has woken us.
                continue
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error

    def close(self) -> None:
        """See `Connection`."""
        if not self._closed:
            self._closed = True
            # Before the close: it wakes the tasks that wait for this socket. Afterwards its number
            # may be another socket's.
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()


def _set_options(sock: socket.socket) -> None:
    """Set the options of a link as far as this system has them; a link works without."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options: list[tuple[int | None, int]] = [
        # Otherwise the kernel holds back a small frame until the one before is acknowledged, and a
        # commit waits for that.
        (socket.TCP_NODELAY, 1),
        (getattr(socket, "TCP_KEEPIDLE", None), KEEPALIVE_IDLE_SECONDS),
        (getattr(socket, "TCP_KEEPINTVL", None), KEEPALIVE_INTERVAL_SECONDS),
        (getattr(socket, "TCP_KEEPCNT", None), KEEPALIVE_PROBES),
        (_TCP_RTO_MAX_MS, RETRANSMIT_PAUSE_MS),
    ]
    for option, value in options:
        if option is not None:
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)


class TcpNetwork:
    """TCP over the sockets of this machine.

    Trio resolves host names on a thread; numeric addresses need none.
    """

    async def connect(self, address: Address) -> TcpConnection:
        """See `Network`. Uses the first of the host's addresses that answers."""
        failure: OSError = OSError(errno.EADDRNOTAVAIL, f"{address} has no address")
        for family, kind, protocol, target in await _resolve(address):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                await _connect(sock, target)
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                # Cancelled, usually by the timeout of the dial. The socket must not leak.
                sock.close()
                raise
            else:
                return TcpConnection(sock)
        raise failure

    async def serve(
        self,
        address: Address,
        handler: ConnectionHandler,
        *,
        task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
    ) -> Never:
        """See `Network`. Listens at the first of the host's addresses."""
        family, kind, protocol, target = (await _resolve(address, socket.AI_PASSIVE))[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setblocking(False)
            # After a restart old connections may be in TIME_WAIT, and would keep the address from
            # being bound.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(target)
                listener.listen(128)
            except OSError as error:
                error.filename = str(address)  # the system's message does not name it
                raise
            async with trio.open_nursery() as nursery:
                # The port that was bound: the one that was given may be 0.
                task_status.started(Address(*listener.getsockname()[:2]))
                while True:
                    connection = await _accept(listener)
                    nursery.start_soon(_handle, handler, connection)


async def _resolve(
    address: Address, flags: int = 0
) -> list[tuple[int, int, int, tuple[object, ...]]]:
    """Return family, kind, protocol and socket address of each of the host's addresses."""
    try:
        addresses = await trio.socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=flags
        )
    except socket.gaierror as error:
        error.filename = str(address)  # the system's message does not name it
        raise
    except ValueError as error:  # a name that can't be written in DNS, or one with a zero byte
        raise OSError(errno.EINVAL, f"{address}: {error}") from None
    return [(family, kind, protocol, target) for family, kind, protocol, _, target in addresses]


async def _connect(sock: socket.socket, target: tuple[object, ...]) -> None:
    code = sock.connect_ex(target)
    # A local address may connect, or refuse, at once. A loop of dials must still let other tasks
    # run.
    await trio.lowlevel.checkpoint()
    if code == errno.EINPROGRESS:
        await trio.lowlevel.wait_writable(sock)
        # Writable means "over", not "connected": the outcome is in SO_ERROR.
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
    if sock.getsockname() == sock.getpeername():
        # The kernel may give a dial to a free local port that very port as its own end. It is then
        # connected with itself, and the real listener could never bind the port.
        raise ConnectionRefusedError(errno.ECONNREFUSED, "connected with itself: nobody listens")


async def _accept(listener: socket.socket) -> TcpConnection:
    while True:
        await trio.lowlevel.wait_readable(listener)
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            continue
        except OSError as error:
            words = "no connection can be accepted: %(why)s"
            log_event(log, logging.WARNING, "accept_failed", words, why=str(error))
            await trio.sleep(ACCEPT_PAUSE_SECONDS)
            continue
        sock.setblocking(False)
        return TcpConnection(sock)


async def _handle(handler: ConnectionHandler, connection: TcpConnection) -> None:
    try:
        await handler(connection)
    finally:
        connection.close()
