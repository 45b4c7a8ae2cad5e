"""A small RESP2 client on trio, for the command line, the demo and the torture.

Programs take a real Redis client; this one needs no dependency. One :class:`RespClient` is one
connection. A call fails in one of two ways: :class:`OSError` (the connection is lost, and the
outcome of what was sent is unknown) or :class:`RespError` (the member answered with an error).
"""

import errno
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Self, cast

import hiredis
import trio

from .secure import CA_VARIABLE, ClientTls, open_tls, tls_of_environment

__all__ = ["PASSWORD_VARIABLE", "USER_VARIABLE", "Reply", "RespClient", "RespError", "open_resp"]

USER_VARIABLE: Final = "QUORATE_USER"
PASSWORD_VARIABLE: Final = "QUORATE_PASSWORD"  # noqa: S105 - the name of one
"""Environment variables of the command line. Arguments would show in the list of processes."""

Reply = bytes | int | None | list["Reply"]

_CHUNK_BYTES: Final = 256 * 1024
_SLICE_BYTES: Final = 64 * 1024

# its stub says that a command has one part
_pack = cast(
    "Callable[[tuple[bytes | str, ...]], bytes]",
    hiredis.pack_command,  # pyright: ignore[reportUnknownMemberType]
)


class RespError(Exception):
    """An error reply. Its text is as the member sent it, with the code first."""

    @property
    def code(self) -> str:
        """The first word of the reply: ``ERR``, ``UNKNOWN``, ``CLUSTERDOWN``."""
        return str(self).partition(" ")[0]


class RespClient:
    """One connection to a member's client port.

    Args:
        stream: the connection; the client owns it.
        tls: what encrypts it, after the handshake; None for a plain connection.
    """

    def __init__(self, stream: trio.SocketStream, tls: trio.abc.Stream | None = None) -> None:
        self._plain = stream
        self._stream: trio.abc.Stream = tls or stream
        self._reader = hiredis.Reader(replyError=RespError)

    @classmethod
    async def connect(cls, host: str, port: int, tls: ClientTls | None = None) -> Self:
        """Open a connection.

        Args:
            host: of a member.
            port: for clients.
            tls: with TLS; None without.

        Raises:
            OSError: the connection is refused, the host is unknown, or it is no member's.
        """
        stream = await trio.open_tcp_stream(host, port)
        try:
            _check_other_end(stream)
            return cls(stream, await open_tls(stream, tls) if tls else None)
        except BaseException:  # also when cancelled: nobody else has it yet
            stream.socket.close()
            raise

    async def call(self, *command: bytes | str) -> Reply:
        """Send one command and return its reply.

        Raises:
            OSError: the connection is lost.
            RespError: the reply is an error.
        """
        (reply,) = await self.pipeline([command])
        if isinstance(reply, RespError):
            raise reply
        return reply

    async def pipeline(
        self, commands: Sequence[tuple[bytes | str, ...]]
    ) -> list[Reply | RespError]:
        """Send commands back to back, and return their replies. An error reply is a value here.

        Raises:
            OSError: the connection is lost.
        """
        replies: list[Reply | RespError] = []
        try:
            for data, count in _slices(commands):
                await self._stream.send_all(data)
                replies += await self._receive(count)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionResetError(str(error.__cause__ or error)) from error
        return replies

    async def _receive(self, count: int) -> list[Reply | RespError]:
        replies: list[Reply | RespError] = []
        while True:
            while len(replies) < count and (reply := self._next()) is not False:
                replies.append(cast("Reply | RespError", reply))
            if len(replies) == count:
                return replies
            data = await self._stream.receive_some(_CHUNK_BYTES)
            if not data:
                words = "is it a client port?"
                if self._stream is self._plain:
                    words += f" One with TLS needs {CA_VARIABLE}"
                raise ConnectionResetError(f"the connection was closed without an answer ({words})")
            self._reader.feed(bytes(data))

    def _next(self) -> object:
        """The next reply, or False if it is not complete yet (RESP2 has no booleans)."""
        try:
            return cast("object", self._reader.gets())
        except hiredis.ProtocolError as error:
            raise ConnectionAbortedError(f"not a RESP reply: {error}") from error

    def close(self) -> None:
        """Close the connection at once."""
        self._plain.socket.close()


def _check_other_end(stream: trio.SocketStream) -> None:
    """Check that a connection is not connected with itself.

    Raises:
        OSError: it is, or it was reset already.
    """
    # A connection to a free port of this machine may get that port as its own end. It would read
    # its own commands as replies.
    if stream.socket.getsockname() == stream.socket.getpeername():
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


def _slices(commands: Sequence[tuple[bytes | str, ...]]) -> Iterator[tuple[bytes, int]]:
    """Yield pieces of a pipeline, each with its number of commands.

    A piece is one command, or small enough for the buffers of the connection. A larger one could
    block both ends: this one waits to send while the member waits to reply.
    """
    waiting: list[bytes] = []
    size = 0
    for command in commands:
        data = _pack(command)
        if waiting and size + len(data) > _SLICE_BYTES:
            yield b"".join(waiting), len(waiting)
            waiting, size = [], 0
        waiting.append(data)
        size += len(data)
    if waiting:
        yield b"".join(waiting), len(waiting)


@asynccontextmanager
async def open_resp(host: str, port: int) -> AsyncGenerator[RespClient]:
    """Open a connection for the length of a block.

    If `PASSWORD_VARIABLE` is set, it logs in as the user of `USER_VARIABLE` first. If `CA_VARIABLE`
    is set, it is a TLS connection: see :mod:`.secure`.

    Raises:
        OSError: the connection is refused, the host is unknown, or it is no member's.
        RespError: the user or its password is wrong.
        ConfigurationError: a file of TLS is wrong.
    """
    client = await RespClient.connect(host, port, tls_of_environment())
    try:
        if (password := os.environ.get(PASSWORD_VARIABLE)) is not None:
            await client.call("AUTH", os.environ.get(USER_VARIABLE, "default"), password)
        yield client
    finally:
        client.close()
