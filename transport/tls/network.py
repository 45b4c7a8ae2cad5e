"""A network whose connections are TLS connections, over another network.

A handshake costs about half a millisecond of processor at each end, and strangers may begin as many
as they like. So each has a time limit, the number of those under way is bounded, and all of them
together get one step in a turn of the event loop: heartbeats go on during a storm of dials. Our own
dials, and those from hosts that we dial, have a step of their own: strangers do not hold them up.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from ...errors import HandshakeError
from ..limits import LinkLimits
from ..strangers import Audit, NoAudit, OnceLog, Strangers, host_of
from ..streams import CONNECTION_ERRORS, describe
from .connection import TlsConnection

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Never

    from ..network import Address, Connection, ConnectionHandler, Network
    from .files import Material

HANDSHAKE_SECONDS: Final = 5.0
"""Time limit of a handshake. Smaller: members that are busy fail to connect. Larger: a silent
stranger keeps one of the places for longer."""

MOST_HOSTS: Final = 64
"""Hosts that are known as those of members. Fewer: members of a large cluster, and those that have
moved, wait with strangers. More: nothing, but somebody could name us hosts without end."""

LINGER_SECONDS: Final = 0.5
"""How long a refused connection is kept, so that the other end gets the reason. Smaller: it may see
a reset connection instead. Larger: a stranger keeps its place for longer."""


class TlsNetwork:
    """TLS over another network; both ends show a certificate. See `network.Network`.

    Args:
        inner: makes the connections that carry the ciphertext.
        material: our certificate, and the CAs that we trust.
        limits: `pending_hellos` bounds the handshakes of those that call us.
        audit: takes note of those that fail.

    Attributes:
        material: may be replaced at any time; connections that are open keep theirs.
        before_dial: is called before each dial; it may replace the material.
    """

    def __init__(
        self,
        inner: Network,
        material: Material,
        limits: LinkLimits | None = None,
        audit: Audit | None = None,
    ) -> None:
        self.material = material
        self.before_dial: Callable[[], object] = _nothing
        self._inner = inner
        self._turns, self._turns_of_members = trio.Lock(), trio.Lock()
        self._hosts: dict[str, None] = {}  # of those that we have dialled, the last one at the end
        self._audit = audit or NoAudit()
        self._log = OnceLog().warn
        most = (limits or LinkLimits()).pending_hellos
        self._strangers = Strangers(most, "without a TLS handshake", self._log)
        self._accepted: dict[TlsConnection, Material] = {}  # open ones that were opened to us

    async def connect(self, address: Address) -> TlsConnection:
        """See `Network`.

        Raises:
            HandshakeError: the other end speaks no TLS, or is not certified by our CA.
            trio.BrokenResourceError: the connection broke during the handshake.
            trio.TooSlowError: the handshake took too long.
        """
        self.before_dial()
        inner = await self._inner.connect(address)
        material = self.material
        connection = TlsConnection(inner, material.client, server=False)
        self._note_host(host_of(inner.peer))
        try:
            with trio.fail_after(HANDSHAKE_SECONDS):
                await connection.shake_hands(self._turns_of_members)
        except BaseException:
            connection.close()  # also when cancelled: nobody else has it yet
            raise
        # As for those that dial us.
        if not material.authorities <= self.material.authorities:
            connection.close()
            raise HandshakeError("a CA was taken out of the file during the TLS handshake")
        return connection

    def _note_host(self, host: str) -> None:
        self._hosts.pop(host, None)
        self._hosts[host] = None
        if len(self._hosts) > MOST_HOSTS:
            del self._hosts[next(iter(self._hosts))]

    async def serve(
        self,
        address: Address,
        handler: ConnectionHandler,
        *,
        task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED,
    ) -> Never:
        """See `Network`."""
        await self._inner.serve(address, partial(self.take, handler), task_status=task_status)

    async def take(self, handler: ConnectionHandler, inner: Connection) -> None:
        """Shake hands with a connection that was opened to us, and pass it on."""
        material = self.material
        connection = TlsConnection(inner, material.server, server=True)
        try:
            # A CA may have been taken out of the file during the handshake.
            if (
                await self._is_welcome(connection)
                and material.authorities <= self.material.authorities
            ):
                self._accepted[connection] = material
                await handler(connection)
        finally:
            self._accepted.pop(connection, None)
            connection.close()

    def doubtful(self) -> list[TlsConnection]:
        """Return connections to us from when a CA was trusted that is trusted no more.

        The certificate at their other end may be of that CA. Close them: whoever has a good one
        dials again.
        """
        # Which CA it was, Python does not say before 3.13.
        now = self.material.authorities
        return [each for each, made in self._accepted.items() if not made.authorities <= now]

    async def _is_welcome(self, connection: TlsConnection) -> bool:
        host = host_of(connection.peer)
        with self._strangers.waiting(host):
            turns = self._turns_of_members if host in self._hosts else self._turns
            try:
                with trio.fail_after(HANDSHAKE_SECONDS):
                    await connection.shake_hands(turns)
            except CONNECTION_ERRORS as error:
                # The port of the peer is in the error, and differs each time.
                reason = describe(error).replace(connection.peer, "it").removeprefix("it: ")
                self._log(f"no TLS connection from {host}: {reason}")
                self._audit.note("refused", of=host, address=connection.peer, reason=reason)
                with trio.move_on_after(LINGER_SECONDS), suppress(*CONNECTION_ERRORS):
                    await connection.linger()
                return False
            return True
        return False  # a newer connection needed the place


def _nothing() -> None:
    """Do nothing before a dial: a member has a task that watches its files."""
