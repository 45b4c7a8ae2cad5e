"""The network interface of a member: real TCP here, simulated in `testing/memory_network.py`.

Everything above deals with `Connection`: an ordered stream of bytes in each direction, with a
non-blocking send, so that a member hands a batch to all its followers without a task switch, and
a blocking receive. A connection breaks, and then stays broken; it never loses or reorders bytes
before that.

The TCP side uses plain non-blocking sockets and trio's readiness calls. It waits for readiness
first and then reads. The other order pays a failed ``recv`` whenever no data wait. (Measured
between two processes: 12 % more CPU for each round trip, and no gain for a bulk of batches.)
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

log = logging.getLogger("quorate.transport")

KEEPALIVE_IDLE_SECONDS: Final = 5
KEEPALIVE_INTERVAL_SECONDS: Final = 2
KEEPALIVE_PROBES: Final = 3
RETRANSMIT_PAUSE_MS: Final = 1000
"""Longest pause between two attempts to get data through. The kernel's own limit of 120 s would let
a link stand still for as long again as a partition lasted."""

ACCEPT_PAUSE_SECONDS: Final = 0.1
"""Pause after a failed accept, which mostly means that file descriptors have run out."""

_HIGHEST_PORT: Final = 65535
_TCP_RTO_MAX_MS: Final = 44 if sys.platform == "linux" else None  # since Linux 6.15


@attrs.frozen
class Address:
    """Where a member listens: a host name or numeric address, and a port (0: any free one)."""

    host: str
    port: int

    def __str__(self) -> str:
        """Write it as `parse_address` reads it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read ``host:port``; an IPv6 address stands in brackets.

    Raises:
        ConfigurationError: it is not of that form.
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigurationError(f"address {text!r}: an IPv6 address stands in brackets")
    if not (colon and host and port.isascii() and port.isdigit()) or int(port) > _HIGHEST_PORT:
        raise ConfigurationError(f"address {text!r}: expected host:port, with a port up to 65535")
    return Address(host, int(port))


def parse_address_untrusted(text: str) -> Address:
    """Read an address that another member sent.

    Raises:
        WireError: it is not of the form ``host:port``.
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

    def send_nowait(self, data: bytes | memoryview) -> int:
        """Send what fits now; give the number of bytes taken, 0 if none do.

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
            trio.ClosedResourceError: this end closed it, perhaps while this call waited.
        """
        ...

    def close(self) -> None:
        """Close at once, any number of times. Bytes taken before are still on their way."""
        ...


ConnectionHandler: TypeAlias = Callable[[Connection], Awaitable[None]]


class Network(Protocol):
    """Makes connections."""

    async def connect(self, address: Address) -> Connection:
        """Dial.

        Raises:
            ConnectionRefusedError: the host is there, and nobody listens.
            OSError: it could not be reached.
        """
        ...

    async def serve(
        self,
        address: Address,
        handler: ConnectionHandler,
        *,
        task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
    ) -> Never:
        """Listen, and run `handler` in a task of its own for every connection, closing it after.

        Started with the address really bound. An error of a handler ends it.

        Raises:
            OSError: the address can't be bound.
        """
        ...


class TcpConnection:
    """A connected non-blocking TCP socket.

    Args:
        sock: the socket, which belongs to this object from now on.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._closed = False
        _set_options(sock)
        try:
            host, port = sock.getpeername()[:2]
        except OSError:  # gone already: the first receive will say so
            host, port = "?", 0
        self.peer = str(Address(host, port))

    def send_nowait(self, data: bytes | memoryview) -> int:
        """See `Connection`."""
        if self._closed:
            raise trio.ClosedResourceError
        try:
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
            if self._closed:
                raise trio.ClosedResourceError
            await trio.lowlevel.wait_readable(self._sock)
            try:
                return self._sock.recv(max_bytes)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error

    def close(self) -> None:
        """See `Connection`."""
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()


def _set_options(sock: socket.socket) -> None:
    """Set what a link wants, as far as this system has it; a link works without."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options: list[tuple[int | None, int]] = [
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
    """TCP, over the sockets of this machine.

    Host names are resolved by trio, on a thread; numeric addresses are not.
    """

    async def connect(self, address: Address) -> TcpConnection:
        """See `Network`. Takes the first of the host's addresses that answers."""
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
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(target)
                listener.listen(128)
            except OSError as error:
                error.filename = str(address)  # the system does not say which
                raise
            async with trio.open_nursery() as nursery:
                task_status.started(Address(*listener.getsockname()[:2]))
                while True:
                    connection = await _accept(listener)
                    nursery.start_soon(_handle, handler, connection)


async def _resolve(
    address: Address, flags: int = 0
) -> list[tuple[int, int, int, tuple[object, ...]]]:
    """Give family, kind, protocol and socket address of each of the host's addresses."""
    try:
        found = await trio.socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=flags
        )
    except socket.gaierror as error:
        error.filename = str(address)  # the system does not say which
        raise
    except UnicodeError as error:  # a name that can't be written in DNS
        raise OSError(errno.EINVAL, f"{address}: {error}") from None
    return [(family, kind, protocol, target) for family, kind, protocol, _, target in found]


async def _connect(sock: socket.socket, target: tuple[object, ...]) -> None:
    code = sock.connect_ex(target)
    await trio.lowlevel.checkpoint()
    if code == errno.EINPROGRESS:
        await trio.lowlevel.wait_writable(sock)
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
    if sock.getsockname() == sock.getpeername():
        # A dial to a free port of this machine can be given that very port as its own end, and
        # is then connected with itself, which keeps the real listener from ever binding it.
        raise ConnectionRefusedError(errno.ECONNREFUSED, "connected with itself: nobody listens")


async def _accept(listener: socket.socket) -> TcpConnection:
    while True:
        await trio.lowlevel.wait_readable(listener)
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            continue
        except OSError as error:
            log.warning("accept: %s", error)
            await trio.sleep(ACCEPT_PAUSE_SECONDS)
            continue
        sock.setblocking(False)
        return TcpConnection(sock)


async def _handle(handler: ConnectionHandler, connection: TcpConnection) -> None:
    try:
        await handler(connection)
    finally:
        connection.close()
