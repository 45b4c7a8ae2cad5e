"""Runs a method whose replies are a stream, as both protocols do it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ..codes import NO_LEADER, EtcdError
from .table import STREAMS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from google.protobuf.message import Message

    from .call import Call, Outlet

__all__ = ["run_stream"]


async def run_stream(
    path: str, call: Call, requests: AsyncIterator[Message], outlet: Outlet
) -> None:
    """Run a method until it is done, or the member has been without a leader for too long.

    A member that is cut off must not look alive to those who watch: it would show them nothing new.

    Args:
        path: of gRPC; one of `STREAMS`.
        call: what the method gets.
        requests: of the client.
        outlet: for the replies.

    Raises:
        EtcdError: of the method, or there is no leader.
        trio.BrokenResourceError: the client is gone.
    """
    ends: list[EtcdError | trio.BrokenResourceError] = []

    async def watch_leader() -> None:
        await call.backend.wait_without_leader()
        ends.append(EtcdError(*NO_LEADER))
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_leader)
        # An error that passes a nursery would be in a group.
        try:
            await STREAMS[path](call, requests, outlet)
        except (EtcdError, trio.BrokenResourceError) as error:
            ends.append(error)
        nursery.cancel_scope.cancel()
    if ends:
        raise ends[0]
