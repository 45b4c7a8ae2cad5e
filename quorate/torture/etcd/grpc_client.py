"""A client of etcd over gRPC, with one call at a time on a connection without TLS.

It has windows that are never full in a run: a member's replies come as they are, and requests are
small. So it neither waits for a window of its own, nor looks at those of the member.
"""

from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Final, Self, TypeVar
from urllib.parse import unquote

import trio
from google.protobuf.message import DecodeError
from hpack import Decoder, HPACKError

from ...errors import TransportError
from ...etcd.codes import EtcdError
from ...etcd.grpc.frames import (
    ACK,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADER,
    HEADERS,
    MAX_FRAME_BYTES,
    MAX_WINDOW,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Http2Error,
    Setting,
    content_untrusted,
    frame,
    settings_frame,
)
from ...etcd.grpc.framing import MessageReader, framed
from ...etcd.grpc.header_blocks import encoded
from ...etcd.methods import BY_GATEWAY_PATH
from ...local.etcd_client import EtcdRefusedError, basic_url

if TYPE_CHECKING:
    from types import TracebackType

    from google.protobuf.message import Message

    Reply = TypeVar("Reply", bound=Message)

__all__ = ["GrpcClient"]

PATIENCE_S: Final = 30.0
AGAIN_S: Final = 1.0
"""After how long the last request of a stream is sent again."""

_HELLO: Final = (
    PREFACE
    + settings_frame({Setting.ENABLE_PUSH: 0, Setting.INITIAL_WINDOW_SIZE: MAX_WINDOW})
    + frame(WINDOW_UPDATE, 0, 0, (MAX_WINDOW - DEFAULT_WINDOW).to_bytes(4, "big"))
)


class GrpcClient:
    """One connection; its calls have the paths of the gateway, as those of `GatewayClient`.

    Args:
        endpoint: a URL; see `basic_url`.
    """

    def __init__(self, endpoint: str) -> None:
        self._where = endpoint
        _, self._host, self._port = basic_url(endpoint)
        self._decoder = Decoder()
        self._in = bytearray()
        self._stream_id = -1

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            TransportError: that fails.
        """
        with self._telling_where("connecting"):
            with trio.fail_after(PATIENCE_S):
                self._stream = await trio.open_tcp_stream(self._host, self._port)
                await self._send(_HELLO)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: "TracebackType | None",
    ) -> None:
        """Close the connection."""
        await trio.aclose_forcefully(self._stream)

    async def __call__(self, path: str, request: "Message", kind: "type[Reply]", /) -> "Reply":
        """Make a call; see `GatewayCall`."""
        with self._telling_where(path):
            with trio.fail_after(PATIENCE_S):
                await self._begin(path)
                # The stream for keep-alives is left after one.
                await self._send_message(request, END_STREAM)
                async with aclosing(self._replies(path)) as replies:
                    found = [kind.FromString(each) async for each in replies]
        if len(found) != 1:
            raise TransportError(f"{self._where}: {len(found)} replies to {path}: expected one")
        return found[0]

    async def follow(
        self,
        path: str,
        requests: "Sequence[Message]",
        kind: "type[Reply]",
        take: "Callable[[Reply], bool]",
    ) -> None:
        """Make a call with a stream of replies; see `GatewayClient.follow`.

        The last request is sent again with replies that come later.
        """
        with self._telling_where(path):
            await self._begin(path)
            for request in requests:
                await self._send_message(request)
            again = trio.current_time() + AGAIN_S
            async with aclosing(self._replies(path)) as replies:
                async for each in replies:
                    if not take(kind.FromString(each)):
                        return
                    if trio.current_time() >= again:
                        await self._send_message(requests[-1])
                        again = trio.current_time() + AGAIN_S

    @contextmanager
    def _telling_where(self, path: str) -> Generator[None]:
        try:
            yield
        except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
            raise TransportError(f"{self._where}: no answer to {path}: {error}") from error
        except (Http2Error, HPACKError, EtcdError, DecodeError, ValueError) as error:
            raise TransportError(f"{self._where}: expected gRPC: {error}") from error

    # --- sending

    async def _send(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def _begin(self, path: str) -> None:
        self._stream_id += 2
        headers = (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", BY_GATEWAY_PATH[path.removeprefix("/v3")].path.encode()),
            (b":authority", f"{self._host}:{self._port}".encode()),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        )
        await self._send(frame(HEADERS, END_HEADERS, self._stream_id, encoded(headers)))

    async def _send_message(self, message: "Message", flags: int = 0) -> None:
        body = framed(message.SerializeToString())
        await self._send(frame(DATA, flags, self._stream_id, body))

    # --- replies

    async def _replies(self, path: str) -> AsyncGenerator[bytes]:
        """Yield the messages of the call, until it ends.

        Raises:
            EtcdRefusedError: it ends with an error.
        """
        reader = MessageReader()
        while True:
            kind, flags, body = await self._next_untrusted()
            if kind == DATA:
                reader.feed(content_untrusted(body, flags, headers=False))
                while (message := reader.next_untrusted()) is not None:
                    yield message
            elif kind == HEADERS:
                self._check_untrusted(path, content_untrusted(body, flags, headers=True))
            if flags & END_STREAM:
                return

    def _check_untrusted(self, path: str, block: bytes) -> None:
        found = {bytes(n): bytes(v) for n, v in self._decoder.decode(block, raw=True)}
        code = int(found.get(b"grpc-status", b"0"))
        if code:
            text = unquote(found.get(b"grpc-message", b"")[:500].decode(errors="replace"))
            raise EtcdRefusedError(code, f"{self._where}{path}: {text} (code {code})")

    async def _next_untrusted(self) -> tuple[int, int, bytes]:
        """Return the next frame of the present call: kind, flags and body."""
        while True:
            head = await self._take(HEADER.size)
            high, low, kind, flags, stream_id = HEADER.unpack(head)
            size = high << 8 | low
            if size > MAX_FRAME_BYTES:
                raise TransportError(f"{self._where}: a frame of {size} bytes")
            body = await self._take(size)
            if kind in {SETTINGS, PING} and not flags & ACK:
                await self._send(frame(kind, ACK, 0, body if kind == PING else b""))
            elif kind == GOAWAY or (kind == RST_STREAM and stream_id == self._stream_id):
                raise TransportError(f"{self._where}: the member ends the call: {body!r:.100}")
            elif kind in {DATA, HEADERS} and stream_id == self._stream_id:
                return kind, flags, body

    async def _take(self, size: int) -> bytes:
        while len(self._in) < size:
            data = await self._stream.receive_some()
            if not data:
                raise TransportError(f"{self._where}: the connection has ended")
            self._in += data
        taken = bytes(self._in[:size])
        del self._in[:size]
        return taken
