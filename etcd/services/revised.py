"""Streams end when their user is changed.

A token is looked at when a stream begins. A watch then goes on for days, and would show its keys to
somebody whose password was taken away, or who may not read them any more. So the stream ends, and
the client comes again, as after the end of a member; then all is checked. Password changes are
rare, and watches go on where they were.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..codes import EtcdError
from .call import REVISED
from .side_by_side import until_first

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from google.protobuf.message import Message

    from .call import Call, Outlet, StreamMethod

__all__ = ["until_revised"]


def until_revised(method: StreamMethod) -> StreamMethod:
    """Return a method that serves a stream as this one does, until its user is changed."""

    async def served(call: Call, requests: AsyncIterator[Message], outlet: Outlet) -> None:
        users = call.users
        if users is None:
            await method(call, requests, outlet)
            return

        async def end() -> None:
            await users.wait_revised(call.user, call.state)
            raise EtcdError(*REVISED)

        await until_first(partial(method, call, requests, outlet), end)

    return served
