"""Connections to one member, each with one request at a time.

A member serves the commands of one connection one after another. So what is to run at the same time
needs several connections, the lanes. They are opened when they are needed.

A lane whose reply has not been read is closed, whether its task was cancelled or its member went
silent: the next request would get the late reply. So is one that has more than the reply.

A machine that loses its power says nothing, and neither does one that is slow. So a request that
waits has another member asked who leads. If that is somebody else by now, we go there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio

from ..errors import KeyValueError, NoLeaderError, RefusedError

if TYPE_CHECKING:
    from .dialling import Value, Wire
    from .routing import Routes

__all__ = ["CLOSED", "LANES", "Answer", "Lanes", "LostReplyError"]

LANES: Final = 8
"""Requests on their way at the same time. Fewer, and slow requests hold up the others. More, and
each member has more connections to serve; batches make up for that."""

_LOOK_SECONDS: Final = 2.0
"""Silence until we ask another member who leads. Smaller, and clients of a busy cluster load it by
asking. Larger, and a machine that loses its power holds up its clients for longer."""

_LOOKS: Final = 3
"""A silent member is left after this many times the seconds above, whoever leads. A member answers
within 4 s, even a request that it cannot complete. Fewer: a slow answer looks like a dead member.
More: a dead machine holds up its clients for longer if nobody says that another one leads."""

_DOUBT_SECONDS: Final = 0.5
"""A cancelled request whose member was silent for this long leaves it: requests with short times
would all go to a dead machine otherwise. Smaller, and slow members are left for nothing. Larger,
and leases of a few seconds end with the machine."""

_SEND_SECONDS: Final = 10.0
"""For a member to take a long request, beyond what its bytes need. Smaller: a busy member looks
dead. Larger: a dead machine holds up its clients for longer."""

_PROTOCOL: Final = "Protocol error"

_SLOWEST_BYTES: Final = 256 * 1024
"""Bytes of a request that a member takes in a second, at least, beyond the seconds above."""

_LAST_WORDS_SECONDS: Final = 1.0
"""For an error reply to a request that was not read to its end: the member has closed already."""

CLOSED: Final = "the client is closed; nothing was done"

Answer: TypeAlias = "bytes | int | dict[Value, Value] | KeyValueError | None"
"""The reply to one command."""


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
        self._closed = False

    async def call(self, data: bytes, deadline: float = math.inf) -> Answer:
        """Send a command and return its reply; an error reply is returned, too.

        Args:
            data: the command, encoded; its reply is no list.
            deadline: it is not sent later; on anyio's clock.

        Raises:
            LostReplyError: the connection was lost after this.
            NoLeaderError: the deadline came first. Nothing was sent.
            RefusedError: the lanes are closed. Nothing was sent.
            Exception: what `Routes.open` raises. Nothing was sent.
        """
        wire = await self._reserve(deadline)
        began = anyio.current_time()
        try:
            value = await self._exchange(wire, data)
        except OSError as error:
            self._routes.leave(wire.address, silent=isinstance(error, TimeoutError))
            await wire.aclose()
            raise LostReplyError(error, wire) from None
        except BaseException:
            if anyio.current_time() - began >= _DOUBT_SECONDS:
                self._routes.leave(wire.address, silent=True)
            await wire.aclose()  # the last step, as it raises in a cancelled task
            raise
        finally:
            self._room.release()
        if isinstance(value, KeyValueError) and value.code == "CLUSTERDOWN":
            self._routes.leave(wire.address)
        # After a protocol error the member closes the connection, too.
        if self._closed or (isinstance(value, KeyValueError) and _PROTOCOL in str(value)):
            await wire.aclose()
        else:
            self._idle.append(wire)
        return value

    async def _reserve(self, deadline: float) -> Wire:
        """Wait for room and a connection; the caller releases the room."""
        if (wire := self._at_once()) is not None:  # setting up a deadline costs more
            return wire
        with anyio.CancelScope(deadline=deadline) as waiting:
            await self._room.acquire()
        if waiting.cancelled_caught:
            raise NoLeaderError("no connection was free in time; nothing was sent")
        try:
            return await self._take(deadline)
        except BaseException:
            self._room.release()
            raise

    def _at_once(self) -> Wire | None:
        if not self._idle or not self._room.value or not self._fits(self._idle[-1]):
            return None
        self._room.acquire_nowait()
        return self._idle.pop()

    def _fits(self, wire: Wire) -> bool:
        return self._routes.fits(wire) and wire.usable

    async def _take(self, deadline: float) -> Wire:
        """Return a connection to the member that leads, as far as we know."""
        self._check_open()
        while self._idle:
            wire = self._idle.pop()
            if self._fits(wire):
                return wire
            await wire.aclose()
        wire = await self._routes.open(deadline)
        try:
            self._check_open()
        except RefusedError:
            await wire.aclose()
            raise
        return wire

    def _check_open(self) -> None:
        if self._closed:  # not an error that is worth another attempt
            raise RefusedError(CLOSED)

    async def _exchange(self, wire: Wire, data: bytes) -> Answer:
        """Send a command and return its reply.

        Raises:
            OSError: the connection is lost, the member is silent, or its reply is none.
        """
        if len(data) < _SLOWEST_BYTES:  # it fits into the buffers of the connection
            await wire.send(data)
            return _single(await self._reply(wire))
        try:
            with anyio.fail_after(_SEND_SECONDS + len(data) / _SLOWEST_BYTES):
                await wire.send(data)
        except OSError as error:
            value = await _last_words(wire)
            if not isinstance(value, KeyValueError):
                raise error from None
            await wire.aclose()
            return value
        return _single(await self._reply(wire))

    async def _reply(self, wire: Wire) -> Value:
        for look in range(_LOOKS):
            try:
                return await wire.receive(_LOOK_SECONDS)
            except TimeoutError:
                if look + 1 < _LOOKS and await self._routes.is_replaced(wire.address):
                    raise TimeoutError("no answer, and another member leads now") from None
        raise TimeoutError(f"no answer for {_LOOKS * _LOOK_SECONDS:g} s")

    async def open(self, deadline: float) -> None:
        """Open the first connection.

        Args:
            deadline: on anyio's clock.

        Raises:
            NoLeaderError: the deadline came first.
            Exception: what `Routes.open` raises.
        """
        self._idle.append(await self._reserve(deadline))
        self._room.release()

    async def aclose(self) -> None:
        """Close the connections: the idle ones now, those in use after their replies."""
        self._closed = True
        while self._idle:
            await self._idle.pop().aclose()


def _single(value: Value) -> Answer:
    if value is None or isinstance(value, bytes | int | dict | KeyValueError):
        return value
    raise ConnectionAbortedError(f"expected a single value, found {value!r:.60}")


async def _last_words(wire: Wire) -> Value:
    """Return why a member has closed the connection, None if it did not say."""
    try:
        return await wire.receive(_LAST_WORDS_SECONDS)
    except OSError:
        return None
