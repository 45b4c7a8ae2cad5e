"""What a method of the API gets to work with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from google.protobuf.message import Message

    from ..backend.backend import Backend
    from ..watching.hub import WatchHub
    from .context import Users

__all__ = ["Call", "Outlet", "StreamMethod", "UnaryMethod"]


class Outlet(Protocol):
    """The stream of replies of one call."""

    async def send(self, reply: bytes) -> None:
        """Send an encoded reply; wait while the client does not read.

        Raises:
            trio.BrokenResourceError: the client is gone.
        """
        ...


@attrs.frozen
class Call:
    """One call of a client.

    Args:
        backend: reaches the cluster and the state.
        hub: watches the state.
        user: name of the user that calls; None without authentication.
        principal: number of that user, recorded with commands; 0 without authentication.
        users: judges callers.
    """

    backend: Backend
    hub: WatchHub
    user: str | None = None
    principal: int = 0
    users: Users | None = None


# A request comes decoded, a reply goes encoded, since most replies never were objects. Both raise
# `EtcdError`. A method that is called is cancelled when its client goes or its time is over.
UnaryMethod: TypeAlias = "Callable[[Call, Message], Awaitable[bytes]]"
StreamMethod: TypeAlias = "Callable[[Call, AsyncIterator[Message], Outlet], Awaitable[None]]"
