"""The tasks of a connection: one reads, one sends, one watches deadlines; streams have their own.

Replies of one turn of the event loop go out in one piece: the task that sends runs after all
callbacks of the turn. For plain sockets the end of the turn sends, and that task only what a socket
did not take.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import trio

from ..services.wire import Wire
from .connection import Connection

if TYPE_CHECKING:
    from ..services.context import PortContext

__all__ = ["serve"]

_GOODBYE_S: Final = 1.0
"""For the last bytes to a client. Shorter, and it sees a lost connection in place of a reason;
longer, and a client that reads nothing holds up the end of the member."""

_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


async def serve(stream: trio.abc.Stream, context: PortContext) -> None:
    """Serve one client until it goes, breaks the protocol, or the port stops.

    The caller closes the stream. When the port stops, streams end with code 14, requests under way
    are still answered, and the client hears that the server goes. If this is cancelled, they are
    not answered.

    Args:
        stream: begins with the preface of HTTP/2.
        context: of the port.
    """
    wire = Wire(stream)
    connection: Connection | None = None
    try:
        async with trio.open_nursery() as nursery:
            connection = Connection(context, nursery)
            nursery.start_soon(connection.expire_calls)
            nursery.start_soon(_send, wire, connection, nursery.cancel_scope)
            try:
                with context.stopping.interrupts():
                    await _receive(wire, connection)
                # The last bytes may be the reason why we do not go on.
                with trio.move_on_after(_GOODBYE_S):
                    if context.stopping.begun:
                        await connection.finish_unary_calls()
                    await connection.all_sent()
            finally:
                # While the nursery is open: a call may ask for a task when its request is done.
                connection.withdraw_requests()
            nursery.cancel_scope.cancel()
    finally:
        # In the middle of other bytes they would be nonsense.
        if connection is not None and not connection.sending:
            connection.go_away()
            with trio.move_on_after(_GOODBYE_S, shield=True), contextlib.suppress(*_GONE):
                await wire.send(connection.http2.take())


async def _receive(wire: Wire, connection: Connection) -> None:
    """Take what the client sends until it goes or breaks the protocol."""
    with contextlib.suppress(*_GONE):
        while data := await wire.receive():
            if wire.is_plain:
                connection.send_some = wire.send_some
            if not connection.receive_untrusted(data):
                return
            await connection.room_to_read()


async def _send(wire: Wire, connection: Connection, scope: trio.CancelScope) -> None:
    """Send what the calls want sent, for ever; cancel the scope once the client is gone."""
    with contextlib.suppress(*_GONE):
        while True:
            await wire.send(await connection.next_bytes())
    scope.cancel()
