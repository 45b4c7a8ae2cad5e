"""The service Lease, as far as it is a stream: renewals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import trio

from ..messages import rpc_pb2 as rpc
from .side_by_side import until_first

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from google.protobuf.message import Message

    from ..backend.keep_alives import Renewal
    from .call import Call, Outlet

__all__ = ["keep_alive"]

_IN_FLIGHT: Final = 1000
"""Renewals of one stream without a reply. If smaller, a client with many leases waits for round
trips; if larger, one that does not read costs more memory."""


async def keep_alive(call: Call, requests: AsyncIterator[Message], outlet: Outlet) -> None:
    """Serve ``LeaseKeepAlive`` until there are no more requests.

    A client may send all its leases through one stream, so renewals overlap. Replies keep the order
    of requests. The header is made before the renewal, as in etcd.

    Raises:
        EtcdError: no leader has taken a renewal.
    """
    begun, renewals = trio.open_memory_channel[tuple[int, int, "Renewal"]](_IN_FLIGHT)

    async def take_requests() -> None:
        async with begun:
            async for request in requests:
                lease = cast("rpc.LeaseKeepAliveRequest", request).ID
                renewal = call.backend.keep_alives.begin(lease)
                await begun.send((call.backend.state.revision, lease, renewal))
        await trio.sleep_forever()

    async def send() -> None:
        async for revision, lease, renewal in renewals:
            reply = rpc.LeaseKeepAliveResponse(ID=lease, TTL=await renewal.ttl())
            await outlet.send(call.backend.header(revision) + reply.SerializeToString())

    await until_first(send, take_requests)
