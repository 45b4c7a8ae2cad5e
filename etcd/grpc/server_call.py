"""One call, from its headers to its trailers: what unary calls and streams have in common."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Protocol

from google.protobuf.message import DecodeError

from ..codes import Code, EtcdError
from .framing import framed
from .metadata import status_headers

if TYPE_CHECKING:
    import trio
    from google.protobuf.message import Message

    from ..messages.requests import Op
    from ..methods import Method
    from ..services.call import Call
    from .http2 import Http2
    from .metadata import CallHead

__all__ = ["CallHost", "ServerCall", "decode_untrusted"]

_DEADLINE_EXCEEDED: Final = (Code.DEADLINE_EXCEEDED, "context deadline exceeded")

_OPENING: Final = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_OK: Final = status_headers(Code.OK, "")


class CallHost(Protocol):
    """What a call asks of its connection; see `connection.Connection`."""

    http2: Http2
    nursery: trio.Nursery

    def admit(self, head: CallHead, message: bytes) -> Call | None:
        """Return what a method gets; None if `admit_when_known` must find out."""
        ...

    async def admit_when_known(self, head: CallHead, message: bytes | None) -> Call:
        """Return what a method gets; ask the leader if the user's rights hang on that."""
        ...

    async def call_direct(self, op: Op, head: CallHead, message: bytes, deadline: float) -> bytes:
        """Make a call of a method that is one request of the state machine."""
        ...

    def is_full(self, size: int) -> bool:
        """Whether too much waits for the client to send a reply of so many bytes, too."""
        ...

    def count(self, method: Method, code: Code, began: float) -> None:
        """Count the end of a call with one reply; see `PortContext.count`."""
        ...

    def hold(self, call: ServerCall, size: int) -> None:
        """Count bytes of a request as in memory."""
        ...

    def release(self, call: ServerCall) -> None:
        """Count the bytes of a call as taken."""
        ...

    def finish(self, call: ServerCall) -> None:
        """Forget a call, which is over."""
        ...

    def wake(self) -> None:
        """Have sent what there is to send."""
        ...

    async def room_for(self, call: ServerCall) -> None:
        """Wait until the client has taken what a call has sent."""
        ...


class ServerCall:
    """What all calls have in common: bytes come in, and there is one end.

    This class alone is a call whose headers are wrong already.

    Args:
        connection: its connection.
        stream_id: its stream there.
        half_closed: the client sends nothing more.

    Attributes:
        deadline: when it ends by itself (trio's clock).
        held_bytes: of its requests, in memory.
    """

    def __init__(self, connection: CallHost, stream_id: int, *, half_closed: bool) -> None:
        self.connection = connection
        self.stream_id = stream_id
        self.half_closed = half_closed
        self.deadline = math.inf
        self.held_bytes = 0
        self.ended = False
        self._opened = False

    # --- from the client

    def receive(self, data: bytes, size: int, *, ended: bool) -> None:
        """Take data, and perhaps the end of what the client sends.

        Args:
            data: of the stream.
            size: what they took of the client's windows.
            ended: nothing more comes.
        """
        raise NotImplementedError

    def cancel(self) -> None:
        """End without a reply: nobody waits for one."""
        self.ended = True

    def withdraw(self) -> None:
        """Withdraw what the call has asked for, if anything; its callback is not called then."""

    def expire(self) -> None:
        """End, since the time of the call is over."""
        error = EtcdError(*_DEADLINE_EXCEEDED)
        self.fail(error)
        self.cancel()

    # --- to the client

    def reply(self, message: bytes) -> None:
        """Send a message; does nothing after the end."""
        if not self.ended:
            self._open()
            self.connection.http2.send(self.stream_id, framed(message))
            self.connection.wake()

    def end(self) -> None:
        """End the call well; does nothing after the end."""
        if not self.ended:
            self._open()
            self._end(_OK)

    def reply_and_end(self, message: bytes) -> None:
        """Send the only message and end the call well; does nothing after the end."""
        if self.ended:
            return
        http2, data = self.connection.http2, framed(message)
        if http2.send_whole(self.stream_id, _OPENING, data, _OK):
            self.ended = True
            self.connection.finish(self)
        else:
            self.reply(message)
            self.end()

    def fail(self, error: EtcdError) -> None:
        """End the call by an error; does nothing after the end."""
        if not self.ended:
            trailers = status_headers(error.code, error.text)
            self._end(trailers if self._opened else (*_OPENING, *trailers))

    def refuse(self, status: int) -> None:
        """End what is no call of gRPC by a status of HTTP."""
        self._end(((b":status", b"%d" % status),))

    def _open(self) -> None:
        if not self._opened:
            self._opened = True
            self.connection.http2.send_headers(self.stream_id, _OPENING)

    def _end(self, trailers: tuple[tuple[bytes, bytes], ...]) -> None:
        self.ended = True
        self.connection.http2.end(self.stream_id, trailers)
        self.connection.finish(self)


def decode_untrusted(method: Method, message: bytes) -> Message:
    """Decode a request.

    Raises:
        EtcdError: it is not one of this method.
    """
    try:
        return method.request.FromString(message)
    except DecodeError as error:
        text = f"grpc: error unmarshalling request: {error}"
        raise EtcdError(Code.INTERNAL, text) from None
