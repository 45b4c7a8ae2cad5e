"""What goes to the client: frames, as far as its windows take them. No I/O.

What goes out of a stream waits here while the client's windows do not take it, and its trailers
wait behind it. Streams that wait take turns when the window of the connection opens.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import attrs

from .frames import (
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    MAX_FRAME_BYTES,
    RST_STREAM,
    Fault,
    frame,
)
from .header_blocks import NO_TABLE, encoded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .header_blocks import Headers

__all__ = ["BURST", "Sending", "Stream"]

BURST: Final = 10_000
"""Frames that ask for nothing, such as pings and resets, which a client may send at once. A
program with a thousand calls on a connection may give up all of them, a few times."""

_EARNED: Final = 2
"""Of these frames, for each piece of data: the client opens two windows again for it."""


@attrs.define(eq=False)
class Stream:
    """A stream that is not over for both sides.

    Attributes:
        window: bytes that its client takes, apart from the window of the connection.
        room: bytes that its client may send.
        held: bytes that came and were not given back to the client.
        used: bytes to be given back, of the stream's own window.
        left: bytes that the client has to send; None if it has not said how many.
        ended: the client sends nothing more.
        chunks: what can't be sent yet; None if all could be so far, as is usual.
        trailers: what ends it, behind that.
    """

    id: int
    window: int
    left: int | None
    ended: bool
    room: int = DEFAULT_WINDOW
    held: int = 0
    used: int = 0
    chunks: deque[bytes] | None = None
    trailers: Headers | None = None


class Sending:
    """One direction of a connection; what a client sends is in `http2.Http2`.

    Attributes:
        waiting_bytes: of all streams, that the client's windows do not take yet.
    """

    def __init__(self) -> None:
        self._over = False  # nothing is sent any more
        self._out = bytearray()
        self._streams: dict[int, Stream] = {}
        self._waiting: dict[int, Stream] = {}
        self._window = self._stream_window = DEFAULT_WINDOW
        self._frame_bytes = MAX_FRAME_BYTES
        self._table_changed = False
        self._spare = float(BURST)
        self.waiting_bytes = 0

    def send_headers(self, stream_id: int, headers: Headers) -> None:
        """Send headers, which nothing waits in front of."""
        if stream_id in self._streams and not self._over:
            self._out += self._headers(stream_id, headers, 0)

    def send(self, stream_id: int, data: bytes) -> None:
        """Send data of a stream, now or when the client takes it."""
        stream = self._streams.get(stream_id)
        if stream is None or self._over:
            return
        rest = data if stream.chunks else self._send_some(stream, data)
        if rest:
            if stream.chunks is None:
                stream.chunks = deque()
            stream.chunks.append(rest)
            self._waiting.setdefault(stream_id, stream)
            self.waiting_bytes += len(rest)

    def end(self, stream_id: int, trailers: Headers) -> None:
        """End a stream by trailers, behind the data that wait.

        Args:
            stream_id: of the stream.
            trailers: end it; the only headers, if there were none before.
        """
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.trailers = trailers
            if not stream.chunks:
                self._end(stream, trailers)

    def send_whole(self, stream_id: int, headers: Headers, data: bytes, trailers: Headers) -> bool:
        """Send all of a stream whose client has ended its half; whether it could be done at once.

        That is most replies.
        """
        stream = self._streams.get(stream_id)
        if stream is None or self._over or not stream.ended:
            return False
        size = len(data)
        if size > self._window or size > stream.window or size > self._frame_bytes:
            return False
        self._window -= size
        self._out += b"".join((
            self._headers(stream_id, headers, 0),
            frame(DATA, 0, stream_id, data),
            self._headers(stream_id, trailers, END_STREAM),
        ))  # fmt: skip
        self._earn()
        self._forget(stream)
        return True

    def is_waiting(self, stream_id: int) -> bool:
        """Whether data of a stream wait for the client."""
        return stream_id in self._waiting

    def take(self) -> bytes:
        """Take what is to be sent."""
        out, self._out = self._out, bytearray()
        return bytes(out)

    @property
    def out_bytes(self) -> int:
        """How many bytes are to be sent."""
        return len(self._out)

    # --- for `Http2`

    def _forget(self, stream: Stream) -> None:
        """Forget a stream, which is over for us."""
        del self._streams[stream.id]
        if self._waiting.pop(stream.id, None) is not None and stream.chunks:
            self.waiting_bytes -= sum(map(len, stream.chunks))
            stream.chunks.clear()

    def _send_waiting(self, streams: Sequence[Stream]) -> None:
        for stream in streams:
            if self._window <= 0:
                break
            while stream.chunks:
                chunk = stream.chunks.popleft()
                rest = self._send_some(stream, chunk)
                self.waiting_bytes += len(rest) - len(chunk)
                if rest:
                    stream.chunks.appendleft(rest)
                    # To the end: another one is first when the window opens again.
                    self._waiting[stream.id] = self._waiting.pop(stream.id)
                    break
            else:
                if self._waiting.pop(stream.id, None) and stream.trailers is not None:
                    self._end(stream, stream.trailers)

    # --- parts

    def _headers(self, stream_id: int, headers: Headers, flags: int) -> bytes:
        block = encoded(headers)
        if self._table_changed:
            self._table_changed = False
            block = NO_TABLE + block
        if len(block) <= MAX_FRAME_BYTES:
            return frame(HEADERS, END_HEADERS | flags, stream_id, block)
        pieces = [block[at : at + MAX_FRAME_BYTES] for at in range(0, len(block), MAX_FRAME_BYTES)]
        return b"".join((
            frame(HEADERS, flags, stream_id, pieces[0]),
            *(frame(CONTINUATION, 0, stream_id, piece) for piece in pieces[1:-1]),
            frame(CONTINUATION, END_HEADERS, stream_id, pieces[-1]),
        ))  # fmt: skip

    def _send_some(self, stream: Stream, data: bytes) -> bytes:
        """Send what the windows take; return the rest."""
        end = max(min(self._window, stream.window, len(data)), 0)
        for at in range(0, end, self._frame_bytes):
            self._out += frame(DATA, 0, stream.id, data[at : min(at + self._frame_bytes, end)])
            self._earn()
        self._window -= end
        stream.window -= end
        return data[end:]

    def _end(self, stream: Stream, trailers: Headers) -> None:
        if self._over:
            return
        self._out += self._headers(stream.id, trailers, END_STREAM)
        if not stream.ended:
            # The client is asked not to send the rest.
            self._out += frame(RST_STREAM, 0, stream.id, Fault.NO_ERROR.to_bytes(4))
        self._forget(stream)

    def _earn(self) -> None:
        if self._spare < BURST:
            self._spare += _EARNED
