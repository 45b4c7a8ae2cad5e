"""Observe an election: a reply for each leader, and for each value that it proclaims."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import attrs

from ...codes import NO_REQUEST, EtcdError
from ...messages import rpc_pb2 as rpc
from ...watching.stream import WatchStream
from ..side_by_side import until_first
from ..watch import leader_lost
from .line import Line
from .without_codes import without_codes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from google.protobuf.message import Message

    from ..call import Call, Outlet

__all__ = ["observe"]

_PATH: Final = "/v3electionpb.Election/Observe"


async def observe(call: Call, requests: AsyncIterator[Message], outlet: Outlet) -> None:
    """Serve ``Observe``. It goes on until the client ends it.

    Raises:
        EtcdError: there is no request, the user may not read the election, or this member has lost
            its leader.
    """
    asked = await anext(requests, None)
    if asked is None:
        raise EtcdError(*NO_REQUEST)
    request = cast("rpc.LeaderRequest", asked)
    await call.backend.wait_for_leader()
    call = attrs.evolve(call, path=_PATH, message=request.SerializeToString())
    if call.users is not None:
        call.users.check(call.user, call.path, call.message)

    async def follow() -> None:
        with without_codes():
            await _follow(call, Line(call, request.name), outlet)

    async def lost() -> None:
        await leader_lost(call.backend)

    await until_first(follow, lost)


async def _follow(call: Call, line: Line, outlet: Outlet) -> None:
    while True:
        found = await line.oldest()
        if found.kvs:
            reply = rpc.LeaderResponse(header=found.header, kv=found.kvs[0])
            await outlet.send(reply.SerializeToString())
            request = rpc.WatchCreateRequest(key=found.kvs[0].key)
        else:
            # The first key that is put need not be the oldest one, but then it is read again.
            request = rpc.WatchCreateRequest(
                key=line.prefix, range_end=line.end, filters=[rpc.WatchCreateRequest.NODELETE]
            )
        request.start_revision = found.header.revision + 1
        await _until_over(call, request, outlet, forward=bool(found.kvs))


async def _until_over(
    call: Call, request: rpc.WatchCreateRequest, outlet: Outlet, *, forward: bool
) -> None:
    """Watch a leader's key, and forward its values, until it is gone; or wait for the first key."""
    with WatchStream(call.hub, call.backend.header) as stream:
        stream.handle(rpc.WatchRequest(create_request=request))
        async for raw in stream:
            response = rpc.WatchResponse.FromString(raw)
            if response.canceled:
                return
            for event in response.events:
                if not forward or event.type == rpc.Event.DELETE:
                    return
                reply = rpc.LeaderResponse(header=response.header, kv=event.kv)
                await outlet.send(reply.SerializeToString())
