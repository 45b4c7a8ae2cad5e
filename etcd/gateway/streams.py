"""Calls whose replies are a stream: each reply is a line, in a chunk of its own.

How a stream ends
-----------------
The end of the request's body ends no watch: most clients send one request and no more. But the end
of the connection does.

etcd leaves the response open after a watch was cancelled, and older Patronis then wait for ever for
what never comes. So a response ends here once all of its watches are cancelled.

An error before the first reply is the status of the response, and one after it is its last line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ..codes import STOPPED, Code, EtcdError
from ..messages import rpc_pb2 as rpc
from ..methods import Streaming
from ..services.table import STREAMS
from .answers import JSON_HEADERS, Answer, error_answer, error_line, status_of
from .json_messages import decode_untrusted
from .json_replies import encode_in_turns
from .requests import Requests
from .unary import not_implemented

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from google.protobuf.message import Message

    from ..methods import Method
    from ..services.call import Call, StreamMethod
    from ..services.context import PortContext
    from .talk import Talk

__all__ = ["answer_stream"]


async def answer_stream(
    talk: Talk, context: PortContext, method: Method, token: str
) -> Answer | None:
    """Make a call and send its replies; return an answer if it ends before the first one.

    Raises:
        trio.BrokenResourceError: the client is gone.
    """
    requests = Requests(talk, method.request)
    try:
        function = STREAMS.get(method.path)
        if function is None:
            raise not_implemented(method)
        if method.streaming is Streaming.REPLIES:
            first: Message | None = decode_untrusted(method.request, await talk.body())
        else:
            first = await requests.next_untrusted()
    except EtcdError as error:
        return error_answer(error)
    stream = _Stream(talk, method, requests, first)
    try:
        call = await context.admit_when_known(token, method.path, None)
    except EtcdError as error:
        # In chunks, as all answers here: Patroni reads no other ones.
        await stream.end(error)
    else:
        await stream.run(function, call, context)
    return None


class _Stream:
    """One call.

    Args:
        talk: the connection.
        method: that is called.
        requests: further ones.
        first: request; None if there is none.
    """

    def __init__(
        self, talk: Talk, method: Method, requests: Requests, first: Message | None
    ) -> None:
        self._talk = talk
        self._method = method
        self._requests = requests
        self._first = first
        self._begun = False
        self._gone = False
        self._watches = 0
        self._scope = trio.CancelScope()

    async def run(self, function: StreamMethod, call: Call, context: PortContext) -> None:
        """Run the method, and send its replies, until one side ends it."""
        error: EtcdError | None = None
        inbox, requests = trio.open_memory_channel["Message"](0)
        with context.stopping.interrupts(), self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, inbox)
                # An error that leaves a nursery comes out in a group.
                try:
                    await function(call, _each(requests), self)
                except EtcdError as caught:
                    error = caught
                except trio.BrokenResourceError:
                    self._gone = True
                nursery.cancel_scope.cancel()
        if self._gone:
            raise trio.BrokenResourceError("the client closed before the end of the answer")
        if context.stopping.begun and error is None:
            error = EtcdError(*STOPPED)
        await self.end(error)

    async def send(self, reply: bytes) -> None:
        """See `Outlet`."""
        message = self._method.response.FromString(reply)
        text = await encode_in_turns(message)
        await self._begin(200)
        await self._talk.send_piece(b'{"result":' + text + b"}\n")
        if isinstance(message, rpc.WatchResponse):
            self._watches += message.created - message.canceled
            if message.canceled and self._watches <= 0:
                self._scope.cancel()

    async def _begin(self, status: int) -> None:
        if not self._begun:
            self._begun = True
            await self._talk.begin(status, JSON_HEADERS)

    async def end(self, error: EtcdError | None) -> None:
        """End the answer, with an error if there is one."""
        await self._begin(status_of(error.code if error is not None else Code.OK))
        if error is not None:
            await self._talk.send_piece(error_line(error))
        await self._talk.end()

    async def _read(self, inbox: trio.MemorySendChannel[Message]) -> None:
        """Pass on the requests, and wait for the client's end; then cancel the method."""
        try:
            async with inbox:
                await self._pass_on(inbox)
            await self._talk.until_gone()
        except trio.BrokenResourceError:
            pass
        self._gone = True
        self._scope.cancel()

    async def _pass_on(self, inbox: trio.MemorySendChannel[Message]) -> None:
        message = self._first
        while message is not None:
            try:
                await inbox.send(message)
            except trio.BrokenResourceError:
                return  # the method takes no more; that is not the client's end
            if self._method.streaming is Streaming.REPLIES:
                return
            try:
                message = await self._requests.next_untrusted()
            except EtcdError:
                return  # etcd takes what is no request for the end, too


async def _each(requests: trio.MemoryReceiveChannel[Message]) -> AsyncIterator[Message]:
    async with requests:
        async for message in requests:
            yield message
