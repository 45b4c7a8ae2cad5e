"""The service Watch: one stream with any number of watches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import trio

from ..codes import NO_LEADER, Code, EtcdError
from ..watching.stream import WatchStream
from .side_by_side import until_first

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from google.protobuf.message import Message

    from ..backend.backend import Backend
    from ..messages import rpc_pb2 as rpc
    from .call import Call, Outlet

__all__ = ["leader_lost", "watch"]

_PATH: Final = "/etcdserverpb.Watch/Watch"


async def watch(call: Call, requests: AsyncIterator[Message], outlet: Outlet) -> None:
    """Serve ``Watch``. It outlives the end of its requests, as in etcd.

    Raises:
        EtcdError: this member has lost its leader, so the client had better ask another one.
    """
    # Clients such as Patroni come again at once when they are refused. They wait here, as they do
    # with other requests, so that members without a quorum are not flooded.
    await call.backend.wait_for_leader()
    with WatchStream(call.hub, call.backend.header) as stream:

        async def take_requests() -> None:
            async for request in requests:
                await stream.room()
                _handle(call, stream, cast("rpc.WatchRequest", request))
            await trio.sleep_forever()

        async def send() -> None:
            async for reply in stream:
                await outlet.send(reply)

        async def end() -> None:
            await leader_lost(call.backend)

        await until_first(send, take_requests, end)


def _handle(call: Call, stream: WatchStream, request: rpc.WatchRequest) -> None:
    if call.users is not None and call.users.enabled:
        try:
            call.users.check(call.user, _PATH, request.SerializeToString())
        except EtcdError as error:
            if error.code is not Code.PERMISSION_DENIED:
                raise
            # One watch is refused; the other ones of the stream go on.
            stream.refuse(f"rpc error: code = PermissionDenied desc = {error.text}")
            return
    stream.handle(request)


async def leader_lost(backend: Backend) -> None:
    """Wait until this member has lost its leader.

    Raises:
        EtcdError: it has.
    """
    await backend.wait_without_leader()
    raise EtcdError(*NO_LEADER)
