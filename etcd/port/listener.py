"""Listens for clients of this API.

Each connection has a task. Most of them carry one watch, or one client's calls in a row, so there
are few of them, and each task has much to wait for.

Bounds
------
There are at most as many connections as the file allows; one more is closed at once. A connection
has `GREETING_SECONDS` for its handshake, and again for its first bytes.

A port that other machines reach may demand users (`protected`). Until there are some, it serves
clients of this machine alone. Whoever is refused is noted in :mod:`.refusals`.
"""

from __future__ import annotations

import logging
import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, Never

import trio

from ...log_events import log_event
from ..gateway import server as gateway
from ..grpc import server as grpc
from .protocols import PeekedStream, is_grpc, peek_untrusted, secured
from .refusals import NO_USERS, TLS, TOO_MANY, Refusals, no_audit, why_no_tls

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from ..services.context import PortContext

__all__ = ["EtcdPort"]

GREETING_SECONDS: Final = 10.0
"""How long a handshake may take, and the first bytes. Shorter: slow networks fail. Longer: a
client that says nothing keeps a connection for longer."""

DRAIN_SECONDS: Final = 1.0
"""How long a stopping member goes on answering what it was asked. Shorter: clients lose replies to
commands that took effect. Longer: a restart takes longer."""

_FOR_REDIS: Final = b"-ERR this is the port for clients of etcd: use the client port\r\n"

_PROBES: Final = 3
_PROBE_SECONDS: Final = 20
_KEEPALIVE_SECONDS: Final = 120

_CONNECTION_ERRORS: Final = (
    OSError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    trio.TooSlowError,
)

_log = logging.getLogger("quorate.etcd")


class EtcdPort:
    """Listens for clients of this API, and serves them.

    Args:
        context: what all connections share.
        host: name or address to listen on.
        port: TCP port, 0 for any free one.
        tls: returns the context for a new connection; None for a port without TLS.
        most: connections at the same time.
        protected: clients of other machines are served only as users.
        audited: notes an address and the reason why it was refused.

    Attributes:
        connections: how many there are.
        refusals: connections that never became clients.
    """

    def __init__(
        self,
        context: PortContext,
        host: str,
        port: int,
        *,
        tls: Callable[[], ssl.SSLContext] | None = None,
        most: int = 10_000,
        protected: bool = False,
        audited: Callable[[tuple[str, int], str], None] = no_audit,
    ) -> None:
        self._context = context
        self._host = host
        self._port = port
        self._tls = tls
        self._most = most
        self._protected = protected
        self._accepting = trio.CancelScope()
        self.connections = 0
        self.refusals = Refusals(audited)
        self._none_left = trio.Event()

    async def run(
        self, *, task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED
    ) -> Never:
        """Serve clients until cancelled; `started` gets the host and port that were bound.

        Raises:
            OSError: the address can't be bound.
        """
        try:
            listeners = await trio.open_tcp_listeners(self._port, host=self._host)
        except OSError as error:
            error.filename = f"{self._host}:{self._port}, the port of [etcd]"
            raise
        async with trio.open_nursery() as nursery:
            host, port = listeners[0].socket.getsockname()[:2]
            task_status.started((host, port))
            with self._accepting:
                await trio.serve_listeners(self._take, listeners, handler_nursery=nursery)
            await trio.sleep_forever()
        raise AssertionError("only cancellation ends it")  # pragma: no cover - never reached

    async def drain(self) -> None:
        """Accept no more clients and calls, and wait until those that run have ended.

        It waits at most :data:`DRAIN_SECONDS`.
        """
        self._accepting.cancel()
        self._context.stopping.begin()
        with trio.move_on_after(DRAIN_SECONDS):
            while self.connections:
                self._none_left = trio.Event()
                await self._none_left.wait()

    async def _take(self, stream: trio.SocketStream) -> None:
        """Serve one connection until it ends."""
        self.connections += 1
        try:
            address = _address(stream.socket)
            if address is not None and self._welcomes(stream.socket, address):
                await self.serve(stream, address)
        finally:
            self.connections -= 1
            self._none_left.set()
            await trio.aclose_forcefully(stream)

    def _welcomes(self, sock: trio.socket.SocketType, address: tuple[str, int]) -> bool:
        """Whether a client may connect at all."""
        if self.connections > self._most:
            reason = f"{self._most} connections are open, which is max_clients of [limits]"
            self.refusals.note(address, TOO_MANY, reason)
            return False
        try:
            _keep_alive(sock)
            own = sock.getsockname()[0]
        except OSError:  # it has closed already
            return False
        if not self._protected or self._context.users.enabled or is_local(address[0], own):
            return True
        reason = "require_users = true, and there are no users yet: make some with ACL SETUSER"
        self.refusals.note(address, NO_USERS, reason)
        return False

    async def serve(
        self, stream: trio.abc.Stream, address: tuple[str, int] = ("an unknown address", 0)
    ) -> None:
        """Serve a connection, whatever it speaks; the caller closes it."""
        try:
            with self._context.stopping.interrupts():
                if self._tls is not None:
                    stream = await self._secured(stream, address, self._tls())
                with trio.fail_after(GREETING_SECONDS):
                    first = await peek_untrusted(stream)
                if not first:
                    return
            if self._context.stopping.begun:
                return
            peeked = PeekedStream(stream, first)
            if is_grpc(first):
                await grpc.serve(peeked, self._context)
            elif first.startswith(b"*"):
                await stream.send_all(_FOR_REDIS)
            else:
                await gateway.serve(peeked, self._context)
            with trio.move_on_after(DRAIN_SECONDS):
                await stream.aclose()
        except _CONNECTION_ERRORS as error:
            words = "a client of the etcd port was lost: %(why)s"
            log_event(_log, logging.DEBUG, "etcd_client_ended", words, why=_why(error))
        except Exception:  # noqa: BLE001 - no client may end a member
            words = "a connection of the etcd port failed"
            log_event(_log, logging.ERROR, "etcd_client_failed", words, exc_info=True)

    async def _secured(
        self, stream: trio.abc.Stream, address: tuple[str, int], tls: ssl.SSLContext
    ) -> trio.abc.Stream:
        try:
            with trio.fail_after(GREETING_SECONDS):
                return await secured(stream, tls)
        except (trio.BrokenResourceError, trio.TooSlowError) as error:
            self.refusals.note(address, TLS, why_no_tls(error))
            raise


def _address(sock: trio.socket.SocketType) -> tuple[str, int] | None:
    """Return host and port of the other end; None if it has closed already."""
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return None
    return host, port


def _why(error: BaseException) -> str:
    return str(error.__cause__ or error) or type(error).__name__


def is_local(host: str, own: str) -> bool:
    """Whether a client is on this machine, by its address and ours."""
    address = ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None) or address
    # Only this machine can call from our own address.
    return host == own or mapped.is_loopback


def _keep_alive(sock: trio.socket.SocketType) -> None:
    """Make the kernel end the connection when the client's machine has vanished."""
    # A watch sends nothing for hours. Probes notice that the other end is gone while nothing is
    # under way, and the user timeout does while something is.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    before = _KEEPALIVE_SECONDS - _PROBES * _PROBE_SECONDS
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, before)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _KEEPALIVE_SECONDS)
