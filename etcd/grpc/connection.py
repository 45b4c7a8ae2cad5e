"""The calls of one connection: what its client opens, sends and gives up. No I/O."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Final

import trio

from ..codes import NO_LEADER, STOPPED, TOO_MANY_REQUESTS, Code, EtcdError
from ..methods import BY_GRPC_PATH
from ..services.table import DIRECT, STREAMS, UNARY
from .http2 import Http2
from .metadata import CallHead, NotGrpcError, parse_head_untrusted
from .server_call import ServerCall
from .stream_call import StreamCall
from .unary_call import UnaryCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..messages.requests import Op
    from ..methods import Method
    from ..services.call import Call
    from ..services.context import PortContext
    from .header_blocks import Headers

__all__ = ["Connection"]

_HELD_BYTES: Final = 64 << 20
"""Requests of one connection in memory, under way or not whole yet. Smaller, and large ones of many
clients that share a connection are refused; larger, and one connection takes that much."""

_WAITING_BYTES: Final = 64 << 20
"""Replies of one connection that its client does not take. From there on its calls are refused, and
replies to reads are left out: a client may have asked for all of them before the first one came."""

_OUT_BYTES: Final = 256 << 10
"""Bytes that the socket has not taken, from which on streams wait before they send more, and no
more is read. Smaller, and a reply takes more turns; larger, and it is memory of each connection."""

_REMEMBERED: Final = 64
"""Different headers that are parsed once; with a timeout that differs each time none is."""


class Connection:
    """The calls of one connection.

    Args:
        context: of the port.
        nursery: for the tasks of calls.

    Attributes:
        http2: what is sent and received.
        nursery: as given.
        sending: something was taken to be sent, and is not out yet.
        send_some: sends bytes as far as it can at once, and returns the rest; None if only the task
            that sends can.
    """

    def __init__(self, context: PortContext, nursery: trio.Nursery) -> None:
        self._context = context
        self.nursery = nursery
        self.sending = False
        self.send_some: Callable[[bytes], bytes] | None = None
        self.http2 = Http2(self)
        self._calls: dict[int, ServerCall] = {}
        self._held = 0
        self._heads: dict[Headers, CallHead] = {}
        self._to_send = trio.lowlevel.ParkingLot()
        self._rest = b""  # of what was taken to be sent
        self._waits_for_end = False  # of the turn
        self._room = trio.lowlevel.ParkingLot()
        self._finished = trio.lowlevel.ParkingLot()
        self._alarm = trio.CancelScope()

    # --- what the client does

    def receive_untrusted(self, data: bytes) -> bool:
        """Take what the client has sent; whether the connection goes on."""
        goes_on = self.http2.receive_untrusted(data)
        self.wake()
        if self._room:
            self._room.unpark_all()
        return goes_on

    def opened(self, stream_id: int, headers: Headers, *, ended: bool) -> None:
        """Begin a call."""
        try:
            head = self._parse_head_untrusted(headers)
            call = self._call(stream_id, head, half_closed=ended)
        except NotGrpcError as error:
            ServerCall(self, stream_id, half_closed=ended).refuse(error.status)
            return
        except EtcdError as error:
            ServerCall(self, stream_id, half_closed=ended).fail(error)
            return
        self._calls[stream_id] = call
        if head.timeout is not None:
            call.deadline = trio.current_time() + head.timeout
            self._alarm.deadline = min(self._alarm.deadline, call.deadline)
        if isinstance(call, StreamCall):
            self.nursery.start_soon(call.run)
        elif ended:
            call.receive(b"", 0, ended=True)

    def received(self, stream_id: int, data: bytes, size: int, *, ended: bool) -> None:
        """Give data to their call."""
        call = self._calls.get(stream_id)
        if call is None:
            self.http2.credit(stream_id, size)
        else:
            call.receive(data, size, ended=ended)

    def reset(self, stream_id: int) -> None:
        """Cancel a call that the client has given up."""
        call = self._calls.get(stream_id)
        if call is not None:
            call.cancel()
            self.finish(call)

    # --- for calls

    def admit(self, head: CallHead, message: bytes) -> Call | None:
        """Return what a method gets; None if `admit_when_known` must find out whether it may.

        Raises:
            EtcdError: the caller may not call it, or the member can't now.
        """
        self._check(head)
        return self._context.admit(head.token, head.path, message)

    async def admit_when_known(self, head: CallHead, message: bytes | None) -> Call:
        """Return what a method gets; ask the leader if the user's rights hang on that.

        Raises:
            EtcdError: see `admit`.
        """
        self._check(head)
        return await self._context.admit_when_known(head.token, head.path, message)

    async def call_direct(self, op: Op, head: CallHead, message: bytes, deadline: float) -> bytes:
        """Make a call of a method that is one request of the state machine; return the reply.

        Raises:
            EtcdError: see `admit`, or the reply is an error.
        """
        self._check(head)
        return await self._context.call_direct(op, head.token, head.path, message, deadline)

    def is_full(self, size: int) -> bool:
        """Whether too much waits for the client to send a reply of so many bytes, too."""
        return self.http2.waiting_bytes + self.http2.out_bytes + size > _WAITING_BYTES

    def count(self, method: Method, code: Code, began: float) -> None:
        """Count the end of a call with one reply; see `PortContext.count`."""
        self._context.count(method, code, began)

    def hold(self, call: ServerCall, size: int) -> None:
        """Count bytes of a request as in memory.

        Raises:
            EtcdError: the connection has too many.
        """
        call.held_bytes += size
        self._held += size
        if self._held > _HELD_BYTES:
            raise EtcdError(*TOO_MANY_REQUESTS)

    def release(self, call: ServerCall) -> None:
        """Count the bytes of a call as taken."""
        self._held -= call.held_bytes
        call.held_bytes = 0

    def finish(self, call: ServerCall) -> None:
        """Forget a call, which is over."""
        self._calls.pop(call.stream_id, None)
        self.release(call)
        if self._finished:
            self._finished.unpark_all()
        self.wake()

    def wake(self) -> None:
        """Have sent what there is to send, after this turn of the event loop."""
        if not self._to_send:
            return  # the task that sends looks again
        if self.send_some is None:
            self._to_send.unpark_all()
        elif not self._waits_for_end:
            self._waits_for_end = True
            self._context.backend.turn_end.add(self._send_at_once)

    async def room_for(self, call: ServerCall) -> None:
        """Wait until the client has taken what a call has sent."""
        # No checkpoint if there is room: the replies of one turn go out in one piece.
        while not call.ended and (
            self.http2.is_waiting(call.stream_id) or self.http2.out_bytes > _OUT_BYTES
        ):
            await self._room.park()

    # --- for the tasks of the connection

    async def next_bytes(self) -> bytes:
        """Wait for something to send, and take it; what was taken before is sent."""
        self.sending = False
        if self._room:
            self._room.unpark_all()
        while not (data := self._rest or self.http2.take()):
            await self._to_send.park()
        self._rest = b""
        self.sending = True
        return data

    async def all_sent(self) -> None:
        """Wait until there is nothing to send."""
        while self.sending or self.http2.out_bytes:
            await self._room.park()

    async def room_to_read(self) -> None:
        """Wait until the client has read enough of what there is for it."""
        while self.http2.out_bytes > _OUT_BYTES:
            await self._room.park()

    async def finish_unary_calls(self) -> None:
        """End the streams, and wait until the other calls have ended by themselves."""
        for call in [*self._calls.values()]:
            if isinstance(call, StreamCall):
                call.fail(EtcdError(*STOPPED))
                call.cancel()
        while self._calls:
            await self._finished.park()

    async def expire_calls(self) -> None:
        """End calls whose time is over, for ever."""
        while True:
            with self._alarm:
                await trio.sleep_forever()
            now = trio.current_time()
            for call in [*self._calls.values()]:
                if call.deadline <= now:
                    call.expire()
            nearest = min((call.deadline for call in self._calls.values()), default=math.inf)
            self._alarm = trio.CancelScope(deadline=nearest)

    def withdraw_requests(self) -> None:
        """Withdraw the requests of all calls: nothing is done for them any more."""
        for call in self._calls.values():
            call.withdraw()

    def go_away(self) -> None:
        """End all calls, and say that the server stops."""
        for call in [*self._calls.values()]:
            call.fail(EtcdError(*STOPPED))
        self.http2.go_away()

    # --- parts

    def _send_at_once(self) -> None:
        """Send what there is to send; leave to the task what is not taken at once."""
        self._waits_for_end = False
        # If the task does not wait, it sends by itself, or the connection is over.
        if self._to_send and self.send_some is not None and (data := self.http2.take()):
            self._rest = self.send_some(data)
            if self._rest:
                self.sending = True
                self._to_send.unpark_all()
            elif self._room:
                self._room.unpark_all()

    def _check(self, head: CallHead) -> None:
        if head.needs_leader and not self._context.backend.has_leader:
            raise EtcdError(*NO_LEADER)
        if self.is_full(0):
            raise EtcdError(*TOO_MANY_REQUESTS)

    def _parse_head_untrusted(self, headers: Headers) -> CallHead:
        head = self._heads.get(headers)
        if head is None:
            head = parse_head_untrusted(headers)
            if len(self._heads) >= _REMEMBERED:
                self._heads.clear()
            self._heads[headers] = head
        return head

    def _call(self, stream_id: int, head: CallHead, *, half_closed: bool) -> ServerCall:
        method = _method(head.path)
        if method.path in STREAMS:
            return StreamCall(self, stream_id, head, method, half_closed=half_closed)
        return UnaryCall(self, stream_id, head, method)


@functools.lru_cache(256)
def _method(path: str) -> Method:
    method = BY_GRPC_PATH.get(path)
    if method is not None and any(path in table for table in (DIRECT, UNARY, STREAMS)):
        return method
    service, slash, name = path.removeprefix("/").rpartition("/")
    if not slash:
        raise EtcdError(Code.UNIMPLEMENTED, f'malformed method name: "{path[:200]}"')
    if any(each.service == service for each in BY_GRPC_PATH.values()):
        text = f"unknown method {name[:200]} for service {service}"
        raise EtcdError(Code.UNIMPLEMENTED, text)
    raise EtcdError(Code.UNIMPLEMENTED, f"unknown service {service[:200]}")
