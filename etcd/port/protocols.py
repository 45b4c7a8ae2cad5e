"""Which protocol a connection speaks: both of them come to one port, as with etcd.

A client of gRPC speaks HTTP/2 from its first byte on, and begins with a line that is no request of
HTTP/1.1. With TLS the client also names the protocol in its handshake, but not every client does.
So the first bytes decide in both cases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    import ssl

    from trio.socket import SocketType

__all__ = ["PREFACE", "PeekedStream", "is_grpc", "peek_untrusted", "secured"]

PREFACE: Final = b"PRI "
"""What a connection of HTTP/2 begins with, as far as it has to be looked at."""

_RECEIVE_BYTES: Final = 64 << 10


class PeekedStream(trio.abc.Stream):
    """A connection whose first bytes were received already.

    Args:
        inner: the connection.
        first: its first bytes.
    """

    def __init__(self, inner: trio.abc.Stream, first: bytes) -> None:
        self._inner = inner
        self._first = first

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """See `trio.abc.ReceiveStream`."""
        if not self._first:
            return bytes(await self._inner.receive_some(max_bytes))
        await trio.lowlevel.checkpoint()
        size = max_bytes or len(self._first)
        found, self._first = self._first[:size], self._first[size:]
        return found

    @property
    def plain_socket(self) -> SocketType | None:
        """The socket, if the connection is nothing else and the first bytes were taken."""
        if self._first or not isinstance(self._inner, trio.SocketStream):
            return None
        return self._inner.socket

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See `trio.abc.SendStream`."""
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """See `trio.abc.SendStream`."""
        await self._inner.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """See `trio.abc.AsyncResource`."""
        await self._inner.aclose()


async def secured(inner: trio.abc.Stream, context: ssl.SSLContext) -> trio.abc.Stream:
    """Return a connection with TLS, after its handshake.

    Raises:
        trio.BrokenResourceError: the handshake failed.
    """
    stream = trio.SSLStream(inner, context, server_side=True, https_compatible=True)
    await stream.do_handshake()
    return stream


async def peek_untrusted(stream: trio.abc.Stream) -> bytes:
    """Return the first bytes of a connection, enough to say what it speaks; none at its end."""
    first = b""
    while len(first) < len(PREFACE):
        data = await stream.receive_some(_RECEIVE_BYTES)
        if not data:
            return b""
        first += data
        if not PREFACE.startswith(first[: len(PREFACE)]):
            break
    return first


def is_grpc(first: bytes) -> bool:
    """Whether a connection that begins so speaks HTTP/2."""
    return first.startswith(PREFACE)
