"""The bytes of one connection.

trio tries to receive before it waits, and lets other tasks run after each send. For a client that
makes one call after the other that is a failed system call and a turn of the event loop for each
call. So a plain socket is waited for first, and written to at once. A stream with TLS, or in
memory, is used as trio does.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final, Protocol, cast

import trio

if TYPE_CHECKING:
    from trio.socket import SocketType

__all__ = ["PlainStream", "Wire"]

_RECEIVE_BYTES: Final = 64 << 10


class PlainStream(Protocol):
    """A stream that is perhaps a socket and nothing else."""

    @property
    def plain_socket(self) -> SocketType | None:
        """The socket, whose bytes are those of the stream from now on; None if there is none."""
        ...


class Wire:
    """Sends and receives for one connection.

    Args:
        stream: of the client.
    """

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._socket: SocketType | None = None

    async def receive(self) -> bytes:
        """Return what has come, at least a byte; nothing at the end.

        Raises:
            trio.BrokenResourceError: the client is gone.
            trio.ClosedResourceError: the stream was closed here.
        """
        self._socket = self._socket or _socket_of(self._stream)
        if self._socket is None:
            return bytes(await self._stream.receive_some(_RECEIVE_BYTES))
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return os.read(self._socket.fileno(), _RECEIVE_BYTES)
            except BlockingIOError:
                pass
            except OSError as error:
                raise trio.BrokenResourceError("the client is gone") from error

    async def send(self, data: bytes) -> None:
        """Send bytes.

        Raises:
            trio.BrokenResourceError: the client is gone.
            trio.ClosedResourceError: the stream was closed here.
        """
        if self._socket is not None:
            data = self.send_some(data)
            if not data:
                return
        await self._stream.send_all(data)

    @property
    def is_plain(self) -> bool:
        """Whether `send_some` sends anything; false at least until something was received."""
        return self._socket is not None

    def send_some(self, data: bytes) -> bytes:
        """Send what the socket takes at once; return the rest, which `send` has to send."""
        sent = 0
        if self._socket is not None:
            # What goes wrong goes wrong again in `send`, which says so.
            with contextlib.suppress(OSError):
                sent = os.write(self._socket.fileno(), data)
        return data[sent:]


def _socket_of(stream: trio.abc.Stream) -> SocketType | None:
    if isinstance(stream, trio.SocketStream):
        return stream.socket
    return cast("PlainStream", stream).plain_socket if hasattr(stream, "plain_socket") else None
