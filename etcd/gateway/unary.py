"""Calls with one request and one reply."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from ..backend.caller import LEADER_WAIT_S
from ..codes import Code, EtcdError
from ..services.table import DIRECT, UNARY
from .answers import Answer, error_answer
from .json_messages import decode_untrusted
from .json_replies import encode_in_turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from google.protobuf.message import Message

    from ..messages.requests import Op
    from ..methods import Method
    from ..services.call import Call
    from ..services.context import PortContext
    from .talk import Talk

__all__ = ["MESSAGE_BYTES", "answer_unary", "not_implemented", "too_large"]

MESSAGE_BYTES: Final = 2 << 20
"""Longest request as protobuf, as etcd's; what it lets through may be too large for the log."""


async def answer_unary(
    talk: Talk, context: PortContext, method: Method, token: str, body: bytes
) -> Answer:
    """Make a call and return its answer.

    Raises:
        trio.BrokenResourceError: the client is gone.
    """
    began = trio.current_time()
    try:
        message = decode_untrusted(method.request, body)
        reply = await _reply(talk, context, method, token, message)
    except EtcdError as error:
        context.count(method, error.code, began)
        return error_answer(error)
    context.count(method, Code.OK, began)
    return Answer(200, await encode_in_turns(method.response.FromString(reply)))


async def _reply(
    talk: Talk, context: PortContext, method: Method, token: str, message: Message
) -> bytes:
    data = message.SerializeToString()
    if len(data) > MESSAGE_BYTES:
        raise too_large(len(data))
    deadline = trio.current_time() + LEADER_WAIT_S
    op = DIRECT.get(method.path)
    if op is not None:
        admitted = context.admit(token, method.path, data)
        if admitted is not None and not admitted.backend.is_long(op, data):
            try:
                return await _submitted(talk, admitted, op, data)
            except EtcdError as error:
                # Aborted: the users have changed before it was sent, and it begins anew.
                if error.code is not Code.ABORTED:
                    raise
        direct = partial(context.call_direct, op, token, method.path, data, deadline)
        return await _while_connected(talk, direct)
    call = await context.admit_when_known(token, method.path, data)
    function = UNARY.get(method.path)
    if function is None:
        raise not_implemented(method)
    return await _while_connected(talk, partial(function, call, message))


async def _submitted(talk: Talk, call: Call, op: Op, data: bytes) -> bytes:
    """Make a request of the state machine, and cancel it when the client goes."""
    replies: list[bytes | EtcdError] = []
    # Most calls come here. This task waits for the client, and the reply ends that: cheaper than a
    # task for each.
    with trio.CancelScope() as answered:

        def done(reply: bytes | EtcdError) -> None:
            replies.append(reply)
            answered.cancel()

        request = call.backend.submit(op, data, done, caller=call.caller)
        try:
            await talk.until_gone()
        finally:
            if request is not None and not replies:
                request.cancel()
    return _only(replies)


async def _while_connected(talk: Talk, function: Callable[[], Awaitable[bytes]]) -> bytes:
    """Call a function, which may take for ever, and cancel it when the client goes."""
    replies: list[bytes | EtcdError] = []
    async with trio.open_nursery() as nursery:

        async def cancel_when_gone() -> None:
            await talk.until_gone()
            nursery.cancel_scope.cancel()

        nursery.start_soon(cancel_when_gone)
        # An error that leaves a nursery comes out in a group.
        try:
            replies.append(await function())
        except EtcdError as error:
            replies.append(error)
        nursery.cancel_scope.cancel()
    return _only(replies)


def _only(replies: Sequence[bytes | EtcdError]) -> bytes:
    """Return or raise the reply, if the client has waited for it."""
    for reply in replies:
        if isinstance(reply, EtcdError):
            raise reply
        return reply
    raise trio.BrokenResourceError("the client closed before the answer")


def too_large(size: int) -> EtcdError:
    """Return the error for a request that is larger than any may be."""
    words = f"grpc: received message larger than max ({size} vs. {MESSAGE_BYTES})"
    return EtcdError(Code.RESOURCE_EXHAUSTED, words)


def not_implemented(method: Method) -> EtcdError:
    """Return the error for a method that is in no table."""
    words = f"unknown method {method.name} for service {method.service}"
    return EtcdError(Code.UNIMPLEMENTED, words)
