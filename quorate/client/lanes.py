"""Connections to one member, each with one request at a time.

A member serves the commands of one connection one after another. So what is to run at the same time
needs several connections, the lanes. They are opened when they are needed.

A lane whose reply has not been read is closed, whether its task was cancelled or its member went
silent: the next request would get the late reply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from ..errors import KeyValueError

if TYPE_CHECKING:
    from .dialling import Value, Wire
    from .routing import Routes

__all__ = ["LANES", "Lanes", "LostReplyError"]

LANES: Final = 8
"""Requests on their way at the same time. Fewer, and slow requests hold up the others. More, and
each member has more connections to serve; batches make up for that."""

_ANSWER_SECONDS: Final = 10.0
"""A member answers within 4 s, even a request that it cannot complete. Smaller: a slow answer looks
like a dead member. Larger: a dead machine holds up its clients for longer."""

_SLOWEST_BYTES: Final = 256 * 1024
"""Bytes of a request that a member takes in a second, at least, beyond the seconds above."""

_LAST_WORDS_SECONDS: Final = 1.0
"""For an error reply to a request that was not read to its end: the member has closed already."""


class LostReplyError(Exception):
    """A request was sent, at least in part, and its reply is lost.

    Args:
        error: of the connection.
        wire: the connection.
    """

    def __init__(self, error: OSError, wire: Wire) -> None:
        super().__init__(f"{wire.address}: {error}")


class Lanes:
    """The connections of one client.

    Args:
        routes: opens them.
    """

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._room = anyio.Semaphore(LANES, fast_acquire=True)
        self._idle: list[Wire] = []

    async def call(self, data: bytes) -> Value:
        """Send a command and return its reply; an error reply is returned, too.

        Raises:
            LostReplyError: the connection was lost after this.
            Exception: what `Routes.open` raises. Nothing was sent.
        """
        async with self._room:
            wire = await self._take()
            try:
                value = await self._exchange(wire, data)
            except OSError as error:
                await wire.aclose()
                self._routes.leave(wire.address)
                raise LostReplyError(error, wire) from None
            except BaseException:
                await wire.aclose()
                raise
            if isinstance(value, KeyValueError) and value.code == "CLUSTERDOWN":
                self._routes.leave(wire.address)
            self._idle.append(wire)
            return value

    async def _take(self) -> Wire:
        """Return a connection to the member that leads, as far as we know."""
        while self._idle:
            wire = self._idle.pop()
            if self._routes.fits(wire) and wire.usable:
                return wire
            await wire.aclose()
        return await self._routes.open()

    async def _exchange(self, wire: Wire, data: bytes) -> Value:
        if len(data) < _SLOWEST_BYTES:  # it fits into the buffers of the connection
            await wire.send(data)
            return await wire.receive(_ANSWER_SECONDS)
        try:
            with anyio.fail_after(_ANSWER_SECONDS + len(data) / _SLOWEST_BYTES):
                await wire.send(data)
        except OSError as error:
            value = await _last_words(wire)
            if not isinstance(value, KeyValueError):
                raise error from None
            await wire.aclose()
            return value
        return await wire.receive(_ANSWER_SECONDS)

    async def open(self) -> None:
        """Open the first connection.

        Raises:
            Exception: what `Routes.open` raises.
        """
        self._idle.append(await self._routes.open())

    async def aclose(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            await self._idle.pop().aclose()


async def _last_words(wire: Wire) -> Value:
    """Return why a member has closed the connection, None if it did not say."""
    try:
        return await wire.receive(_LAST_WORDS_SECONDS)
    except OSError:
        return None
