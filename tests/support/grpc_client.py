"""A client of gRPC over the package h2, for one stream of bytes; nothing of grpcio."""

from collections.abc import Sequence

import attrs
import trio
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingAckReceived,
    ResponseReceived,
    StreamReset,
    TrailersReceived,
)

from quorate.etcd.grpc.framing import MessageReader, framed

Pairs = Sequence[tuple[str, str]]


@attrs.define
class Answer:
    """What came for one call so far."""

    headers: dict[bytes, bytes] = attrs.field(factory=dict[bytes, bytes])
    trailers: dict[bytes, bytes] | None = None
    messages: list[bytes] = attrs.field(factory=list[bytes])
    reader: MessageReader = attrs.field(factory=MessageReader)
    reset: bool = False

    @property
    def over(self) -> bool:
        return self.trailers is not None or self.reset

    @property
    def status(self) -> int:
        assert self.trailers is not None, "the call goes on"
        return int(self.trailers[b"grpc-status"])

    @property
    def text(self) -> str:
        assert self.trailers is not None, "the call goes on"
        return self.trailers.get(b"grpc-message", b"").decode()


class GrpcClient:
    """Makes calls; `turn` exchanges bytes with the server."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self.h2.initiate_connection()
        self.answers: dict[int, Answer] = {}
        self.events: list[Event] = []
        self.closed = False
        self.credits = True

    def begin(self, path: str, extra: Pairs = (), *, content: str = "application/grpc") -> int:
        """Begin a call; return its stream."""
        stream_id = self.h2.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "test"),
            ("content-type", content),
            ("te", "trailers"),
            *extra,
        ]
        self.h2.send_headers(stream_id, headers)
        self.answers[stream_id] = Answer()
        return stream_id

    def send(self, stream_id: int, message: bytes, *, end: bool = False) -> None:
        """Send a message of a call."""
        self.h2.send_data(stream_id, framed(message), end_stream=end)

    def cancel(self, stream_id: int) -> None:
        self.h2.reset_stream(stream_id, ErrorCodes.CANCEL)

    async def flush(self) -> None:
        if data := self.h2.data_to_send():
            await self.stream.send_all(data)

    async def turn(self) -> None:
        """Send what there is, and take what comes until the server waits."""
        await self.flush()
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.001):
            while not self.closed:
                data = await self.stream.receive_some()
                self.closed = not data
                self.take(bytes(data))
                await self.flush()

    async def call(self, path: str, message: bytes = b"", extra: Pairs = ()) -> Answer:
        """Make a unary call, and return what it ended with."""
        stream_id = self.begin(path, extra)
        self.send(stream_id, message, end=True)
        await self.flush()
        answer = self.answers[stream_id]
        while not answer.over:
            data = await self.stream.receive_some()
            assert data, "the server has closed the connection"
            self.take(bytes(data))
            await self.flush()
        return answer

    def take(self, data: bytes) -> None:
        """Take bytes of the server."""
        for event in self.h2.receive_data(data):
            self.events.append(event)
            match event:
                case ResponseReceived():
                    found = dict(event.headers)
                    self.answers[event.stream_id].headers = found
                    if event.stream_ended is not None:
                        self.answers[event.stream_id].trailers = found
                case TrailersReceived():
                    self.answers[event.stream_id].trailers = dict(event.headers)
                case DataReceived():
                    answer = self.answers[event.stream_id]
                    answer.reader.feed(event.data)
                    while (message := answer.reader.next_untrusted()) is not None:
                        answer.messages.append(message)
                    if self.credits:
                        self.h2.acknowledge_received_data(
                            event.flow_controlled_length, event.stream_id
                        )
                case StreamReset():
                    self.answers[event.stream_id].reset = True
                case ConnectionTerminated() | PingAckReceived():
                    pass
                case _:
                    pass
