"""What comes from the client, in frames of HTTP/2 (RFC 9113). No I/O.

What comes in is given back to the client's windows when it is used up (`credit`), in bulk, so that
a client can't fill our memory with requests that nobody takes.

A client that breaks the rules of one stream loses that stream; one that breaks those of the
connection gets the reason, and loses it. Frames that ask for nothing cost us time nevertheless:
a client may send as many of them as it earns by replies, and by time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import trio

from .frames import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADER,
    HEADERS,
    MAX_FRAME_BYTES,
    MAX_WINDOW,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PRIORITY_FLAG,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    STREAM_BITS,
    WINDOW_UPDATE,
    Fault,
    Http2Error,
    Setting,
    StreamError,
    content_untrusted,
    frame,
    settings_frame,
    settings_untrusted,
)
from .header_blocks import MAX_HEADER_BYTES, RequestDecoder
from .sending import BURST, Sending, Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from .header_blocks import HeaderBlock, Headers

__all__ = ["MAX_STREAMS", "Http2", "StreamEvents"]

MAX_STREAMS: Final = 1000
"""Calls of one connection at a time. Fewer, and a program with that many clients on one connection
has some wait for others; more, and one connection takes more of the member's memory."""

_WINDOW: Final = 16 << 20
"""What all calls of a connection may send before we have taken it. Smaller, and a stream that takes
nothing holds up the other ones; larger, and it is memory. One call alone has 64 KiB."""

_EARNED_PER_S: Final = 1000
"""Frames that ask for nothing, such as pings and resets, which a client may send for ever. They
take some 20 ms of this second. `BURST` is for those that come at once."""

_STREAMS_PER_FRAME: Final = 16
"""Streams whose windows are changed in the time that another frame takes."""

_OURS: Final = {
    Setting.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
    Setting.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
}


class StreamEvents(Protocol):
    """What a client does; it may do that."""

    def opened(self, stream_id: int, headers: Headers, *, ended: bool) -> None:
        """A stream begins; if it has ended, no data follow."""
        ...

    def received(self, stream_id: int, data: bytes, size: int, *, ended: bool) -> None:
        """Data came, which took `size` bytes of the windows."""
        ...

    def reset(self, stream_id: int) -> None:
        """The client has given up a stream, or has lost it by an error."""
        ...


class Http2(Sending):
    """The server's side of one connection.

    Args:
        events: learns what the client does.
        now: returns the time in seconds, which lets a client send pings and resets.
    """

    def __init__(self, events: StreamEvents, now: Callable[[], float] = trio.current_time) -> None:
        super().__init__()
        self._events = events
        self._now = now
        self._earned_at = now()
        self._greeted = False
        # The only frame that may come: kind and stream.
        self._expected: tuple[int, int] | None = (SETTINGS, 0)
        self._rest = b""
        self._decoder = RequestDecoder()
        self._block = bytearray()  # of headers that are not whole yet
        self._block_flags = 0
        self._last = 0  # the newest stream
        # Streams that are over for us, while the client did not know that. The oldest goes.
        self._given_up: dict[int, None] = {}
        self._room = _WINDOW
        self._used = 0  # bytes to be given back
        self._takers: Final = {
            DATA: self._data_untrusted,
            HEADERS: self._headers_untrusted,
            PRIORITY: self._priority_untrusted,
            RST_STREAM: self._reset_untrusted,
            SETTINGS: self._settings_untrusted,
            PUSH_PROMISE: self._push_untrusted,
            PING: self._ping_untrusted,
            GOAWAY: self._go_away_untrusted,
            WINDOW_UPDATE: self._window_untrusted,
            CONTINUATION: self._continuation_untrusted,
        }
        self._out += settings_frame(_OURS)
        self._out += frame(WINDOW_UPDATE, 0, 0, (_WINDOW - DEFAULT_WINDOW).to_bytes(4))

    def receive_untrusted(self, data: bytes) -> bool:
        """Take what the client has sent; whether the connection goes on after that.

        If not, what is left to send says why.
        """
        if self._over:
            return False
        data = self._rest + data
        try:
            self._rest = data[self._take_untrusted(data) :]
        except Http2Error as error:
            self._say_goodbye(error.fault, str(error).encode())
        return not self._over

    def credit(self, stream_id: int, size: int) -> None:
        """Let the client send as much again as it has sent."""
        stream = self._streams.get(stream_id)
        if stream is None or self._over:
            return  # it was given back with the end of the stream
        stream.held -= size
        self._give_back(size)
        stream.used += size
        # The window of a half that has ended matters to nobody.
        if not stream.ended and stream.used > DEFAULT_WINDOW // 2:
            self._out += frame(WINDOW_UPDATE, 0, stream_id, stream.used.to_bytes(4))
            stream.room += stream.used
            stream.used = 0

    def go_away(self) -> None:
        """Say that nothing more comes from here."""
        if not self._over:
            self._say_goodbye(Fault.NO_ERROR, b"")

    # --- frames

    def _take_untrusted(self, data: bytes) -> int:
        """Take all whole frames; return how many bytes they have."""
        at, end = 0, len(data)
        if not self._greeted:
            if not PREFACE.startswith(data[: len(PREFACE)]):
                raise Http2Error(Fault.PROTOCOL_ERROR, "this is no HTTP/2")
            if end < len(PREFACE):
                return 0
            at, self._greeted = len(PREFACE), True
        while end - at >= HEADER.size and not self._over:
            high, low, kind, flags, stream_id = HEADER.unpack_from(data, at)
            size = high << 8 | low
            if size > MAX_FRAME_BYTES:
                text = f"a frame of {size} bytes; it can have {MAX_FRAME_BYTES}"
                raise Http2Error(Fault.FRAME_SIZE_ERROR, text)
            start = at + HEADER.size
            if start + size > end:
                break
            at = start + size
            self._frame_untrusted(kind, flags, stream_id & STREAM_BITS, data[start:at])
        return at

    def _frame_untrusted(self, kind: int, flags: int, stream_id: int, body: bytes) -> None:
        if self._expected is not None and self._expected != (kind, stream_id):
            text = f"a frame of kind {kind}, not {self._expected[0]}"
            raise Http2Error(Fault.PROTOCOL_ERROR, text)
        if kind > HEADERS:
            self._spend(1)
        taker = self._takers.get(kind)
        if taker is None:
            return  # of an extension that we do not know
        try:
            taker(flags, stream_id, body)
        except StreamError as error:
            self._spend(1)
            self._out += frame(RST_STREAM, 0, stream_id, error.fault.to_bytes(4))
            self._drop(stream_id)

    def _data_untrusted(self, flags: int, stream_id: int, body: bytes) -> None:
        size = len(body)
        self._room -= size
        if self._room < 0:
            raise Http2Error(Fault.FLOW_CONTROL_ERROR, "more data than the window has")
        if flags & PADDED:
            body = content_untrusted(body, flags, headers=False)
        stream = self._streams.get(stream_id)
        if stream is None or stream.ended:
            self._check_not_idle(stream_id)
            self._give_back(size)
            if stream_id in self._given_up:
                return
            raise StreamError(Fault.STREAM_CLOSED)
        stream.room -= size
        stream.held += size
        if stream.room < 0:
            raise StreamError(Fault.FLOW_CONTROL_ERROR)
        if stream.left is not None:
            stream.left -= len(body)
        if flags & END_STREAM:
            self._end_half_untrusted(stream)
        elif not body:
            self._spend(1)
        self._events.received(stream_id, body, size, ended=stream.ended)

    def _headers_untrusted(self, flags: int, stream_id: int, body: bytes) -> None:
        if not stream_id & 1:
            raise Http2Error(Fault.PROTOCOL_ERROR, f"a client can't open stream {stream_id}")
        if flags & (PADDED | PRIORITY_FLAG):
            body = content_untrusted(body, flags, headers=True)
        if flags & END_HEADERS:
            self._block_untrusted(stream_id, body, ended=flags & END_STREAM != 0)
        else:
            self._block[:], self._block_flags = body, flags
            self._expected = CONTINUATION, stream_id

    def _continuation_untrusted(self, flags: int, stream_id: int, body: bytes) -> None:
        if self._expected is None:
            raise Http2Error(Fault.PROTOCOL_ERROR, "a continuation of no headers")
        self._block += body
        if len(self._block) > MAX_HEADER_BYTES:
            text = f"headers of more than {MAX_HEADER_BYTES} bytes"
            raise Http2Error(Fault.ENHANCE_YOUR_CALM, text)
        if flags & END_HEADERS:
            block, self._expected = bytes(self._block), None
            self._block.clear()
            self._block_untrusted(stream_id, block, ended=self._block_flags & END_STREAM != 0)

    def _block_untrusted(self, stream_id: int, data: bytes, *, ended: bool) -> None:
        # Also headers that concern nobody change the table.
        block = self._decoder.decode_untrusted(data)
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._trailers_untrusted(stream, block, ended=ended)
        elif stream_id > self._last:
            self._last = stream_id
            if len(self._streams) >= MAX_STREAMS:
                raise StreamError(Fault.REFUSED_STREAM)
            if not block.request or (ended and block.length):
                raise StreamError(Fault.PROTOCOL_ERROR)
            self._streams[stream_id] = Stream(stream_id, self._stream_window, block.length, ended)
            self._events.opened(stream_id, block.headers, ended=ended)
        elif stream_id not in self._given_up:
            text = f"headers of stream {stream_id}, which is over"
            raise Http2Error(Fault.STREAM_CLOSED, text)

    def _trailers_untrusted(self, stream: Stream, block: HeaderBlock, *, ended: bool) -> None:
        if stream.ended:
            raise StreamError(Fault.STREAM_CLOSED)
        if not ended or not block.trailers:
            raise StreamError(Fault.PROTOCOL_ERROR)
        self._end_half_untrusted(stream)
        self._events.received(stream.id, b"", 0, ended=True)

    def _priority_untrusted(self, _flags: int, stream_id: int, body: bytes) -> None:
        _check(stream_id != 0, "the priority of no stream")
        if len(body) != 5:  # noqa: PLR2004 - a stream and a weight
            raise StreamError(Fault.FRAME_SIZE_ERROR)

    def _reset_untrusted(self, _flags: int, stream_id: int, body: bytes) -> None:
        _check_size(body, 4)
        self._check_not_idle(stream_id)
        self._drop(stream_id)

    def _settings_untrusted(self, flags: int, stream_id: int, body: bytes) -> None:
        _check(stream_id == 0, "settings of a stream")
        if flags & ACK:
            _check_size(body, 0)
            _check(self._expected is None, "an acknowledgement in place of settings")
            return
        self._expected = None
        settings = settings_untrusted(body)
        self._table_changed |= Setting.HEADER_TABLE_SIZE in settings
        self._frame_bytes = settings.get(Setting.MAX_FRAME_SIZE, self._frame_bytes)
        self._out += frame(SETTINGS, ACK, 0)
        window = settings.get(Setting.INITIAL_WINDOW_SIZE, self._stream_window)
        if window != self._stream_window:
            self._spend(len(self._streams) // _STREAMS_PER_FRAME)
            more, self._stream_window = window - self._stream_window, window
            for stream in self._streams.values():
                stream.window += more
                if stream.window > MAX_WINDOW:
                    raise Http2Error(Fault.FLOW_CONTROL_ERROR, "a window is too large")
            self._send_waiting([*self._waiting.values()])

    def _push_untrusted(self, _flags: int, _stream_id: int, _body: bytes) -> None:
        _check(False, "a client can't push")

    def _ping_untrusted(self, flags: int, stream_id: int, body: bytes) -> None:
        _check(stream_id == 0, "a ping of a stream")
        _check_size(body, 8)
        if not flags & ACK:
            self._out += frame(PING, ACK, 0, body)

    def _go_away_untrusted(self, _flags: int, stream_id: int, body: bytes) -> None:
        _check(stream_id == 0, "the end of a stream in place of the connection")
        _check_size(body[:8], 8)
        # Without an error it only refuses streams of ours, and there are none.
        if int.from_bytes(body[4:8]) != Fault.NO_ERROR:
            self._over = True

    def _window_untrusted(self, _flags: int, stream_id: int, body: bytes) -> None:
        _check_size(body, 4)
        size = int.from_bytes(body) & MAX_WINDOW
        if stream_id == 0:
            _check(size != 0, "a window that opens by 0 bytes")
            self._window += size
            if self._window > MAX_WINDOW:
                raise Http2Error(Fault.FLOW_CONTROL_ERROR, "the window is too large")
            if self._waiting:
                self._spend(len(self._waiting) // _STREAMS_PER_FRAME)
                self._send_waiting([*self._waiting.values()])
            return
        self._check_not_idle(stream_id)
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if not size:
            raise StreamError(Fault.PROTOCOL_ERROR)
        stream.window += size
        if stream.window > MAX_WINDOW:
            raise StreamError(Fault.FLOW_CONTROL_ERROR)
        if stream.chunks:
            self._send_waiting([stream])

    # --- parts

    def _end_half_untrusted(self, stream: Stream) -> None:
        if stream.left:
            raise StreamError(Fault.PROTOCOL_ERROR)
        stream.ended = True

    def _check_not_idle(self, stream_id: int) -> None:
        begun = stream_id & 1 and stream_id <= self._last
        _check(bool(begun), f"stream {stream_id} has not begun")

    def _spend(self, frames: int) -> None:
        self._spare -= frames
        if self._spare < 0:
            now = self._now()
            self._spare = min(self._spare + (now - self._earned_at) * _EARNED_PER_S, BURST)
            self._earned_at = now
            if self._spare < 0:
                text = "too many frames that ask for nothing"
                raise Http2Error(Fault.ENHANCE_YOUR_CALM, text)

    def _drop(self, stream_id: int) -> None:
        """Forget a stream that ends by a reset."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._forget(stream)
            self._events.reset(stream_id)
        elif stream_id & 1 and stream_id == self._last:
            self._give_up(stream_id)  # it was refused

    def _forget(self, stream: Stream) -> None:
        super()._forget(stream)
        if stream.held:
            self._give_back(stream.held)
        if not stream.ended:
            self._give_up(stream.id)

    def _give_up(self, stream_id: int) -> None:
        self._given_up[stream_id] = None
        if len(self._given_up) > MAX_STREAMS:
            del self._given_up[next(iter(self._given_up))]

    def _give_back(self, size: int) -> None:
        self._used += size
        if self._used > _WINDOW // 2 and not self._over:
            self._out += frame(WINDOW_UPDATE, 0, 0, self._used.to_bytes(4))
            self._room += self._used
            self._used = 0

    def _say_goodbye(self, fault: Fault, text: bytes) -> None:
        self._over = True
        self._out += frame(GOAWAY, 0, 0, self._last.to_bytes(4) + fault.to_bytes(4) + text)


def _check(allowed: bool, text: str) -> None:  # noqa: FBT001 - what it is about
    if not allowed:
        raise Http2Error(Fault.PROTOCOL_ERROR, text)


def _check_size(body: bytes, size: int) -> None:
    if len(body) != size:
        text = f"{len(body)} bytes in a frame that has {size}"
        raise Http2Error(Fault.FRAME_SIZE_ERROR, text)
