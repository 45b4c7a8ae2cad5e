"""A client's connection to a simulated port, without a socket: bytes go in, replies come out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from ...keyvalue.clients.client_state import ClientState
from ...keyvalue.conversation.conversation import Conversation
from ...keyvalue.protocol import resp
from ...keyvalue.protocol.parser import CommandParser, ParserLimits
from ...keyvalue.protocol.replies import end_of_reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...errors import OversizedRequestError
    from ...keyvalue.clients.port_state import PortState
    from ...node.requests.request import Request, RequestKind

_LIMITS: Final = ParserLimits()


class Session:
    """One connection.

    Args:
        client_id: its number.
        port: of the member.
        remote: the client is on another machine, and the port is closed to those without a login.

    Attributes:
        client: its state at the port.
        closed: the port has closed it, or the member is gone.
        congested: never.
        fileno: it has no file.
        read_at: its client always reads.
        has_room: always.
        pushes: what was pushed to it.
    """

    def __init__(self, client_id: int, port: PortState, *, remote: bool = False) -> None:
        now = trio.current_time()
        self.client = ClientState(client_id, "client", "port", now, now, remote=remote)
        self.closed = False
        self.congested = False
        self.fileno = -1
        self.read_at = now
        self.has_room = True
        self.pushes: list[bytes] = []
        self._port = port
        self._came = trio.Event()
        self._received = b""
        port.admit(self.client, at_redirect_port=False)
        self._conversation = Conversation(self.client, CommandParser(_LIMITS), port, self)
        port.clients[client_id] = self

    async def ask(self, *commands: Sequence[bytes]) -> bytes | None:
        """Send commands at once; return the last reply, or None if there is none any more."""
        self._received = b""
        self.feed(b"".join(resp.bulk_array(list(words)) for words in commands))
        while len(replies := self._replies()) < len(commands) and not self.closed:
            self._came = trio.Event()
            await self._came.wait()
        return replies[-1] if len(replies) == len(commands) else None

    def feed(self, data: bytes) -> None:
        """Take bytes that the client has sent."""
        self._port.begin_turn(trio.current_time())
        self._conversation.feed(data)
        self._port.end_turn()

    async def receive(self) -> bytes:
        """Return what was sent to the client; wait for it. Empty once the connection is closed."""
        while not (self._received or self.pushes or self.closed):
            self._came = trio.Event()
            await self._came.wait()
        # The reply to QUORATE.WATCH comes before the pushes of that watch.
        received = self._received + b"".join(self.pushes)
        self._received = b""
        self.pushes.clear()
        return received

    def _replies(self) -> list[bytes]:
        # Whole replies come, never a part of one.
        found, at = list[bytes](), 0
        while at < len(self._received):
            end = end_of_reply(self._received, at)
            found.append(self._received[at:end])
            at = end
        return found

    # --- what the port and the conversation call

    def deliver(self) -> None:
        """See `Outlet`."""
        replies = self._conversation.replies
        self._received += b"".join(replies)
        replies.clear()
        self._came.set()
        if self.client.closing:
            self.close()

    def close(self) -> None:
        """See `ClientConnection`."""
        if not self.closed:
            self.closed = True
            self._conversation.end()
            self._port.clients.pop(self.client.client_id, None)
            self._came.set()

    def push(self, data: bytes) -> None:
        """See `ClientConnection`."""
        self.pushes.append(data)
        self._came.set()

    def doubt(self) -> None:
        """See `ClientConnection`."""
        self._conversation.doubt()

    def check_again(self) -> Sequence[Request]:
        """See `JoinedClient`."""
        return self._conversation.check_again()

    @property
    def waiting_bytes(self) -> tuple[int, int]:
        """See `ClientConnection`."""
        return 0, 0

    @property
    def unfinished_bytes(self) -> int:
        """See `ClientConnection`."""
        return 0

    def refuse(self, error: OversizedRequestError) -> None:
        """See `ClientConnection`; nothing here is so large."""
        raise AssertionError(error)

    def settle(self, reply: bytes) -> bool:
        """See `JoinedClient`; nothing is joined here."""
        raise AssertionError(reply)

    def take_over(self, kind: RequestKind, payload: bytes, flags: int, count: int) -> Request:
        """See `JoinedClient`; nothing is joined here."""
        raise AssertionError((kind, payload, flags, count))
