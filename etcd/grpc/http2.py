"""Frames and flow control of one connection, over the package h2. No I/O.

What goes out of a stream waits here while the client's windows do not take it, and its trailers
wait behind it. Streams that wait take turns when the window of the connection opens.

What comes in is credited to the client when it is used up (`credit`), so that a client can't fill
our memory with requests that nobody takes.
"""

from __future__ import annotations

import contextlib
import struct
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

import attrs
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    RemoteSettingsChanged,
    RequestReceived,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import ProtocolError, StreamClosedError
from h2.settings import SettingCodes, Settings
from h2.stream import StreamClosedBy

from .header_blocks import ReplyEncoder, RequestDecoder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from h2.events import Event

__all__ = ["MAX_STREAMS", "Http2", "StreamEvents"]

MAX_STREAMS: Final = 1000
"""Calls of one connection at a time. Fewer, and a program with that many clients on one connection
has some wait for others; more, and one connection takes more of the member's memory."""

_MAX_HEADER_BYTES: Final = 16 << 10
"""Headers of a call. A token is some 200 bytes."""

_WINDOW: Final = 16 << 20
"""What all calls of a connection may send before we have taken it. Smaller, and a stream that takes
nothing holds up the other ones; larger, and it is memory. One call alone has 64 KiB."""

_DEFAULT_WINDOW: Final = 65_535

_FRAME: Final = struct.Struct(">HBBBI")  # 24 bits of length, a kind, flags, the stream
_DATA: Final = 0
_HEADERS: Final = 1
_END_STREAM: Final = 1
_END_HEADERS: Final = 4


class StreamEvents(Protocol):
    """What a client does; h2 has checked that it may."""

    def opened(self, stream_id: int, headers: list[tuple[bytes, bytes]], *, ended: bool) -> None:
        """A stream begins; if it has ended, no data follow."""
        ...

    def received(self, stream_id: int, data: bytes, size: int, *, ended: bool) -> None:
        """Data came, which took `size` bytes of the windows."""
        ...

    def reset(self, stream_id: int) -> None:
        """The client has given up a stream."""
        ...


@attrs.define
class _Waiting:
    """What a stream can't send yet."""

    chunks: deque[bytes] = attrs.field(factory=deque[bytes])
    trailers: Sequence[tuple[bytes, bytes]] | None = None
    then_reset: bool = False


class _ServerConnection(H2Connection):
    """h2's connection; h2 counts all streams for each new one, which is slow if they are many."""

    _counted_at = 64

    @property
    def open_inbound_streams(self) -> int:
        """How many streams are open, or a bound of it below the limit."""
        # Counting forgets the streams that are closed.
        if len(self.streams) < self._counted_at:
            return len(self.streams)
        count = super().open_inbound_streams
        self._counted_at = min(2 * count + 64, MAX_STREAMS)
        return count

    def forget(self, stream_id: int) -> None:
        """Count a stream as closed: both halves have ended."""
        del self.streams[stream_id]
        self._closed_streams[stream_id] = StreamClosedBy.SEND_END_STREAM


def _frame(kind: int, flags: int, stream_id: int, body: bytes) -> bytes:
    return _FRAME.pack(len(body) >> 8, len(body) & 0xFF, kind, flags, stream_id) + body


class Http2:
    """The server's side of one connection.

    Args:
        events: learns what the client does.

    Attributes:
        waiting_bytes: of all streams, that the client's windows do not take yet.
    """

    def __init__(self, events: StreamEvents) -> None:
        self._events = events
        self._h2 = _ServerConnection(
            H2Configuration(
                client_side=False,
                header_encoding=None,
                # What we do not use need not be in order; what we use is checked where it is used.
                validate_inbound_headers=False,
                normalize_inbound_headers=False,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        self._h2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
                SettingCodes.MAX_HEADER_LIST_SIZE: _MAX_HEADER_BYTES,
            },
        )
        self._h2.encoder = ReplyEncoder()
        self._h2.decoder = RequestDecoder(_MAX_HEADER_BYTES)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_WINDOW - _DEFAULT_WINDOW)
        self._over = False  # h2 refuses everything
        self._used = 0  # bytes of streams that have ended, not credited yet
        self._waiting: dict[int, _Waiting] = {}
        self._out = bytearray(self._h2.data_to_send())
        self.waiting_bytes = 0

    # --- from the client

    def receive_untrusted(self, data: bytes) -> bool:
        """Take what the client has sent; whether the connection goes on after that.

        If not, what is left to send says why.
        """
        try:
            events = self._h2.receive_data(data)
        except ProtocolError:
            self._over = True  # h2 has a GOAWAY ready
            return False
        # h2 has seen all events of these bytes already, and refuses what is sent on a stream that
        # is reset by the last of them.
        gone = {event.stream_id for event in events if isinstance(event, StreamReset)}
        self._over = any(isinstance(event, ConnectionTerminated) for event in events)
        for stream_id in gone:
            self._drop(stream_id)
            self._events.reset(stream_id)
        for event in events:
            if self._over:
                break
            self._handle(event, gone)
        return not self._over

    def _handle(self, event: Event, gone: AbstractSet[int]) -> None:
        match event:
            case DataReceived() if event.stream_id in gone:
                self.credit(event.stream_id, event.flow_controlled_length, ended=True)
            case RequestReceived() | TrailersReceived() if event.stream_id in gone:
                pass
            case DataReceived():
                self._events.received(
                    event.stream_id,
                    event.data,
                    event.flow_controlled_length,
                    ended=event.stream_ended is not None,
                )
            case RequestReceived():
                headers = [(bytes(name), bytes(value)) for name, value in event.headers]
                ended = event.stream_ended is not None
                self._events.opened(event.stream_id, headers, ended=ended)
            case TrailersReceived():
                self._events.received(event.stream_id, b"", 0, ended=True)
            case WindowUpdated(stream_id=0):
                self._send_waiting([*self._waiting])
            case WindowUpdated():
                self._send_waiting([event.stream_id])
            case RemoteSettingsChanged():
                self._send_waiting([*self._waiting])
            case _:
                pass  # h2 answers pings and settings by itself

    def credit(self, stream_id: int, size: int, *, ended: bool) -> None:
        """Let the client send as much again as it has sent."""
        if ended:
            # The window of an ended stream matters to nobody, and that of the connection is large.
            self._used += size
            if self._used > _WINDOW // 2 and not self._over:
                self._h2.increment_flow_control_window(self._used)
                self._used = 0
        elif size and not self._over:
            self._h2.acknowledge_received_data(size, stream_id)

    # --- to the client

    def send_headers(
        self, stream_id: int, headers: Sequence[tuple[bytes, bytes]], *, end: bool = False
    ) -> None:
        """Send headers, which nothing waits in front of."""
        if not self._over:
            self._h2.send_headers(stream_id, headers, end_stream=end)

    def send(self, stream_id: int, data: bytes) -> None:
        """Send data of a stream, now or when the client takes it."""
        if self._over:
            return
        if stream_id in self._waiting:
            self._waiting[stream_id].chunks.append(data)
            self.waiting_bytes += len(data)
        elif rest := self._send_some(stream_id, data):
            self._waiting[stream_id] = _Waiting(deque((rest,)))
            self.waiting_bytes += len(rest)

    def end(
        self, stream_id: int, trailers: Sequence[tuple[bytes, bytes]], *, half_closed: bool
    ) -> None:
        """End a stream by trailers, behind the data that wait.

        Args:
            stream_id: of the stream.
            trailers: end it; the only headers, if there were none before.
            half_closed: the client sends nothing more. Otherwise it is asked not to.
        """
        if stream_id in self._waiting:
            waiting = self._waiting[stream_id]
            waiting.trailers, waiting.then_reset = trailers, not half_closed
        else:
            self._end(stream_id, trailers, then_reset=not half_closed)

    def send_whole(
        self,
        stream_id: int,
        headers: Sequence[tuple[bytes, bytes]],
        data: bytes,
        trailers: Sequence[tuple[bytes, bytes]],
    ) -> bool:
        """Send all of a stream whose client has ended its half; whether it could be done at once.

        That is most replies, and h2 takes three times as long for the same bytes.
        """
        h2 = self._h2
        stream = h2.streams.get(stream_id)
        if self._over or stream is None:
            return False
        window = min(h2.outbound_flow_control_window, stream.outbound_flow_control_window)
        if len(data) > min(window, h2.max_outbound_frame_size):
            return False
        encode = h2.encoder.encode
        self._collect()
        self._out += b"".join((
            _frame(_HEADERS, _END_HEADERS, stream_id, encode(headers)),
            _frame(_DATA, 0, stream_id, data),
            _frame(_HEADERS, _END_HEADERS | _END_STREAM, stream_id, encode(trailers)),
        ))  # fmt: skip
        h2.outbound_flow_control_window -= len(data)
        h2.forget(stream_id)
        return True

    def is_waiting(self, stream_id: int) -> bool:
        """Whether data of a stream wait for the client."""
        return stream_id in self._waiting

    def go_away(self) -> None:
        """Say that nothing more comes from here."""
        if not self._over:
            self._h2.close_connection()
            self._over = True

    def take(self) -> bytes:
        """Take what is to be sent."""
        self._collect()
        out, self._out = self._out, bytearray()
        return bytes(out)

    @property
    def out_bytes(self) -> int:
        """How many bytes are to be sent."""
        self._collect()
        return len(self._out)

    # --- parts

    def _collect(self) -> None:
        self._out += self._h2.data_to_send()

    def _send_waiting(self, stream_ids: Sequence[int]) -> None:
        for stream_id in stream_ids:
            if self._h2.outbound_flow_control_window <= 0:
                break
            waiting = self._waiting.get(stream_id)
            while waiting is not None and waiting.chunks:
                chunk = waiting.chunks.popleft()
                rest = self._send_some(stream_id, chunk)
                self.waiting_bytes += len(rest) - len(chunk)
                if rest:
                    waiting.chunks.appendleft(rest)
                    # To the end: another one is first when the window opens again.
                    self._waiting[stream_id] = self._waiting.pop(stream_id)
                    break
            else:
                if waiting is not None:
                    del self._waiting[stream_id]
                    if waiting.trailers is not None:
                        self._end(stream_id, waiting.trailers, then_reset=waiting.then_reset)

    def _send_some(self, stream_id: int, data: bytes) -> bytes:
        """Send what the windows take; return the rest."""
        window = self._h2.local_flow_control_window(stream_id)
        frame = self._h2.max_outbound_frame_size
        if len(data) <= min(window, frame):
            self._h2.send_data(stream_id, data)
            return b""
        view = memoryview(data)
        end = max(min(window, len(data)), 0)
        for at in range(0, end, frame):
            self._h2.send_data(stream_id, view[at : min(at + frame, end)])
        return data[end:]

    def _end(
        self, stream_id: int, trailers: Sequence[tuple[bytes, bytes]], *, then_reset: bool
    ) -> None:
        if self._over:
            return
        self._h2.send_headers(stream_id, trailers, end_stream=True)
        if then_reset:
            # h2 may have seen the end of the stream, which we have not been told of yet.
            with contextlib.suppress(StreamClosedError):
                self._h2.reset_stream(stream_id, ErrorCodes.NO_ERROR)

    def _drop(self, stream_id: int) -> None:
        waiting = self._waiting.pop(stream_id, None)
        if waiting is not None:
            self.waiting_bytes -= sum(map(len, waiting.chunks))
