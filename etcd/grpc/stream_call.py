"""A call whose replies are a stream, and perhaps its requests too. It has a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ..codes import EtcdError
from ..services.table import STREAMS
from .framing import MessageReader
from .server_call import ServerCall, decode_untrusted

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from ..methods import Method
    from .metadata import CallHead
    from .server_call import CallHost

__all__ = ["StreamCall"]


class StreamCall(ServerCall):
    """A call whose replies are a stream: an iterator of its requests, and an outlet for replies.

    Args:
        connection: its connection.
        stream_id: its stream there.
        head: what its headers say.
        method: that is called.
        half_closed: the client sends nothing at all.
    """

    def __init__(
        self,
        connection: CallHost,
        stream_id: int,
        head: CallHead,
        method: Method,
        *,
        half_closed: bool,
    ) -> None:
        super().__init__(connection, stream_id, half_closed=half_closed)
        self._head = head
        self._method = method
        self._reader = MessageReader()
        self._uncredited = 0
        self._came = trio.lowlevel.ParkingLot()
        self._scope = trio.CancelScope()

    def receive(self, data: bytes, size: int, *, ended: bool) -> None:
        """See `ServerCall`."""
        self.half_closed = ended
        self._reader.feed(data)
        self._uncredited += size
        try:
            self.connection.hold(self, len(data))
            # A client that sends more than we take is held up by its window. A message that is
            # longer than the window must come in nevertheless.
            if ended or not self._reader.is_whole_untrusted():
                self._credit()
        except EtcdError as error:
            self.fail(error)
            self.cancel()
        self._came.unpark_all()

    def cancel(self) -> None:
        """See `ServerCall`."""
        super().cancel()
        self._scope.cancel()

    # --- the task

    async def run(self) -> None:
        """Run the method until it is done, or the call is over."""
        with self._scope:
            try:
                call = await self.connection.admit_when_known(self._head, None)
                await STREAMS[self._method.path](call, self, self)
            except EtcdError as error:
                self.fail(error)
            except trio.BrokenResourceError:
                assert self.ended, "only `send` raises that, after the end"
            else:
                self.end()

    async def send(self, reply: bytes) -> None:
        """Send a reply once the replies before it are out; see `services.call.Outlet`."""
        await self.connection.room_for(self)
        if self.ended:
            raise trio.BrokenResourceError("the client has ended the call")
        self.reply(reply)

    def __aiter__(self) -> StreamCall:
        """Return this: it iterates over the requests."""
        return self

    async def __anext__(self) -> Message:
        """Return the next request of the client.

        Raises:
            EtcdError: it is malformed.
        """
        while (message := self._reader.next_untrusted()) is None:
            self._credit()
            if self.half_closed:
                raise StopAsyncIteration
            await self._came.park()
        self.connection.release(self)
        return decode_untrusted(self._method, message)

    def _credit(self) -> None:
        size, self._uncredited = self._uncredited, 0
        self.connection.http2.credit(self.stream_id, size)
