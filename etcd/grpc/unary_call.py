"""A call with one request and one reply.

A call is an object, and only some have a task: a method that is one request of the state machine
(`services.table.DIRECT`) is answered by a callback, in the turn in which its entry is applied.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import trio
from google.protobuf.message import DecodeError

from ...node.requests.request import QUERY
from ..codes import NO_REQUEST, TOO_MANY_REQUESTS, Code, EtcdError
from ..messages import rpc_pb2 as rpc
from ..messages.requests import Op, is_command
from ..services.table import DIRECT, READS, UNARY
from ..state.checks import only_reads
from .framing import MessageReader, only_message_untrusted
from .server_call import ServerCall, decode_untrusted

if TYPE_CHECKING:
    from ...node.requests.request import Request
    from ..methods import Method
    from .metadata import CallHead
    from .server_call import CallHost

__all__ = ["UnaryCall"]


class UnaryCall(ServerCall):
    """A call with one request and one reply.

    Args:
        connection: its connection.
        stream_id: its stream there.
        head: what its headers say.
        method: that is called.
    """

    def __init__(
        self, connection: CallHost, stream_id: int, head: CallHead, method: Method
    ) -> None:
        super().__init__(connection, stream_id, half_closed=False)
        self._head = head
        self._method = method
        self._began = trio.current_time()
        self._reader: MessageReader | None = None  # of a message that comes in pieces
        self._request: Request | None = None
        self._scope: trio.CancelScope | None = None

    def receive(self, data: bytes, size: int, *, ended: bool) -> None:
        """See `ServerCall`; with the end of the request, the work begins."""
        self.half_closed = ended
        self.connection.http2.credit(self.stream_id, size)
        try:
            self.connection.hold(self, len(data))
            message = self._message_untrusted(data, ended=ended)
            if ended:
                self._begin(message)
        except EtcdError as error:
            self.fail(error)

    def cancel(self) -> None:
        """See `ServerCall`."""
        super().cancel()
        if self._request is not None:
            self._request.cancel()
        if self._scope is not None:
            self._scope.cancel()

    def fail(self, error: EtcdError) -> None:
        """See `ServerCall`."""
        if not self.ended:
            self.connection.count(self._method, error.code, self._began)
        super().fail(error)

    def reply_and_end(self, message: bytes) -> None:
        """See `ServerCall`."""
        if not self.ended:
            self.connection.count(self._method, Code.OK, self._began)
        super().reply_and_end(message)

    def _message_untrusted(self, data: bytes, *, ended: bool) -> bytes | None:
        if ended and self._reader is None:
            message = only_message_untrusted(data)
            if message is not None:
                return message
        if self._reader is None:
            self._reader = MessageReader()
        self._reader.feed(data)
        # What is wrong need not come to its end.
        self._reader.is_whole_untrusted()
        return self._reader.next_untrusted() if ended else None

    def _begin(self, message: bytes | None) -> None:
        if message is None:
            raise EtcdError(*NO_REQUEST)
        op = DIRECT.get(self._method.path)
        call = None if op is None else self.connection.admit(self._head, message)
        if op is not None and call is not None and not call.backend.is_long(op, message):
            done = partial(self._done_direct, message)
            self._request = call.backend.submit(op, message, done, caller=call.caller)
        else:
            self._start(message)

    def _start(self, message: bytes) -> None:
        self._scope = trio.CancelScope()
        self.connection.nursery.start_soon(self._run, self._scope, message)

    def _done_direct(self, message: bytes, result: bytes | EtcdError) -> None:
        if isinstance(result, EtcdError) and result.code is Code.ABORTED:
            # The users have changed before it was sent: a task begins anew.
            self._start(message)
        else:
            self._done(result)

    def _done(self, result: bytes | EtcdError) -> None:
        # What is answered while it is being submitted is read from this member's own state.
        reads = self._request is None or self._request.kind is QUERY
        self._answer(result, reads=reads)

    def _answer(self, result: bytes | EtcdError, *, reads: bool) -> None:
        """End with a result.

        Args:
            result: of the call.
            reads: the reply may be left out, since nothing was done.
        """
        if isinstance(result, EtcdError):
            self.fail(result)
        elif reads and self.connection.is_full(len(result)):
            self.fail(EtcdError(*TOO_MANY_REQUESTS))
        else:
            self.reply_and_end(result)

    async def _run(self, scope: trio.CancelScope, message: bytes) -> None:
        with scope:
            try:
                result: bytes | EtcdError = await self._call(message)
            except EtcdError as error:
                result = error
            self._answer(result, reads=_only_reads(self._method.path, message))

    async def _call(self, message: bytes) -> bytes:
        path = self._method.path
        if (op := DIRECT.get(path)) is not None:
            return await self.connection.call_direct(op, self._head, message)
        call = await self.connection.admit_when_known(self._head, message)
        return await UNARY[path](call, decode_untrusted(self._method, message))


def _only_reads(path: str, message: bytes) -> bool:
    """Whether a call changes nothing. False for what is no request."""
    op = DIRECT.get(path)
    if op is not Op.TXN:
        return path in READS if op is None else not is_command(op)
    try:
        return only_reads(rpc.TxnRequest.FromString(message))
    except DecodeError:
        return False
