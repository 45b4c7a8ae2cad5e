"""TLS and plain connections at the same port, while a cluster is switched from one to the other.

Members are restarted one after the other, so for a while some have certificates and some have not.
A member that has some uses this network: it dials by TLS first, and plainly if that fails; and it
takes what comes, either way. Once all members have certificates, all links are TLS. Then they are
restarted once more without this.

It protects nothing: anybody who can reach or change a connection can have it plain. It is a bridge
for the minutes of a switch, on a network that was plain before.
"""

from functools import partial
from typing import Final, Never

import trio

from ...errors import HandshakeError
from ..identity import Identity
from ..limits import LinkLimits
from ..network import Address, Connection, ConnectionHandler, Network
from ..strangers import OnceLog, Strangers, host_of
from ..streams import CONNECTION_ERRORS, describe
from .network import HANDSHAKE_SECONDS, TlsNetwork

_ENOUGH_BYTES: Final = 3
"""Bytes that distinguish TLS from a hello. With fewer, some hellos look like TLS."""

_PEEK_BYTES: Final = 4 << 10


class SwitchingNetwork:
    """Dials by TLS, else plainly, and takes both. See `network.Network`.

    Args:
        plain: makes the connections.
        tls: the same with TLS.
        limits: `pending_hellos` bounds the connections that have said nothing yet.
    """

    def __init__(self, plain: Network, tls: TlsNetwork, limits: LinkLimits | None = None) -> None:
        self._plain = plain
        self._tls = tls
        self._log = OnceLog().warn
        most = (limits or LinkLimits()).pending_hellos
        self._strangers = Strangers(most, "without a first byte", self._log)

    async def connect(self, address: Address) -> Connection:
        """See `Network`."""
        try:
            return await self._tls.connect(address)
        except (HandshakeError, trio.BrokenResourceError) as error:
            reason = describe(error)
        # A listener without TLS has closed the connection: it saw the header of no frame.
        connection = await self._plain.connect(address)
        self._log(f"plain_connection to={address} accept_plain=true: no TLS: {reason}")
        return connection

    async def serve(
        self,
        address: Address,
        handler: ConnectionHandler,
        *,
        task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
    ) -> Never:
        """See `Network`."""
        await self._plain.serve(address, partial(self._take, handler), task_status=task_status)

    async def _take(self, handler: ConnectionHandler, inner: Connection) -> None:
        """Look at the first bytes of a connection, and pass it on as what it is."""
        try:
            first = await self._peek(inner)
            connection = _Peeked(inner, first)
            if is_tls(first):
                await self._tls.take(handler, connection)
            elif first:
                await handler(connection)
        finally:
            inner.close()

    async def _peek(self, inner: Connection) -> bytes:
        """Return the first bytes; none if they do not come in time."""
        first = b""
        with (
            self._strangers.waiting(host_of(inner.peer)),
            trio.move_on_after(HANDSHAKE_SECONDS) as patience,
        ):
            try:
                while len(first) < _ENOUGH_BYTES:
                    data = await inner.receive(_PEEK_BYTES)
                    if not data:
                        return b""
                    first += data
            except CONNECTION_ERRORS:
                return b""
            return first
        if patience.cancelled_caught:
            self._log(f"no connection from {host_of(inner.peer)}: it says nothing")
        return b""


def is_tls(first: bytes) -> bool:
    """Whether a connection begins as TLS does, not with the frame of a hello."""
    # A handshake record, of version 3.1 to 3.4. The third byte of a frame is zero: it is of the
    # length, and a hello is shorter than 64 KiB.
    return first[:2] == b"\x16\x03" and first[2] != 0


class _Peeked:
    """A connection whose first bytes were received already; see `network.Connection`."""

    def __init__(self, inner: Connection, first: bytes) -> None:
        self.peer = inner.peer
        self.send_nowait = inner.send_nowait
        self.wait_writable = inner.wait_writable
        self.close = inner.close
        self._inner = inner
        self._first = first

    @property
    def identity(self) -> Identity | None:
        """See `Connection`."""
        return self._inner.identity

    async def receive(self, max_bytes: int) -> bytes:
        """See `Connection`."""
        if not self._first:
            return await self._inner.receive(max_bytes)
        await trio.lowlevel.checkpoint()
        found, self._first = self._first[:max_bytes], self._first[max_bytes:]
        return found
