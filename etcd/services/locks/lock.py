"""The service Lock: a lock that belongs to a lease."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import trio

from ...codes import Code, EtcdError
from ...messages import rpc_pb2 as rpc
from ...messages.requests import Op
from .line import Line
from .without_codes import without_codes

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from ..call import Call

__all__ = ["lock", "unlock"]

_EXPIRED: Final = "mutex: session is expired"


async def lock(call: Call, message: Message) -> bytes:
    """Serve ``Lock``: wait until the lock is free, and take it for a lease.

    A client that gives up leaves the line.

    Raises:
        EtcdError: there is no such lease, it has ended during the wait, or there is no leader.
    """
    request = cast("rpc.LockRequest", message)
    line = Line(call, request.name)
    with without_codes():
        place = await line.join(request.lease, b"")
        header = place.header
        if not place.first:
            try:
                await line.wait_turn(place)
                mine = await line.read(rpc.RangeRequest(key=place.key))
            except (EtcdError, trio.Cancelled):
                line.leave(place)
                raise
            if not mine.kvs:
                raise EtcdError(Code.UNKNOWN, _EXPIRED)
            header = mine.header
    return rpc.LockResponse(header=header, key=place.key).SerializeToString()


async def unlock(call: Call, message: Message) -> bytes:
    """Serve ``Unlock``: give a lock back.

    Raises:
        EtcdError: there is no leader, or no key.
    """
    request = cast("rpc.UnlockRequest", message)
    delete = rpc.DeleteRangeRequest(key=request.key).SerializeToString()
    with without_codes():
        raw = await call.ask(Op.DELETE_RANGE, delete)
    reply = rpc.DeleteRangeResponse.FromString(raw)
    return rpc.UnlockResponse(header=reply.header).SerializeToString()
