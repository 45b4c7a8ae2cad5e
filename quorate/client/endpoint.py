"""A cluster as an endpoint of the key-value store: requests go to its leader over connections.

What is repeated here
    Reads, until they are answered or `patience_s` is over. Writes without a stamp, as long as it is
    certain that nothing has happened. A stamped write is tried once: its session repeats it, and
    knows whether an earlier attempt may have succeeded (`keyvalue/programs/session.py`).

The errors
    `NoLeaderError`: nothing has happened, and nothing will. `UnknownOutcomeError`: it may or may
    not take effect. An error reply to one of the commands is returned, as from a member. One to the
    request as a whole, such as ``-NOPERM``, is raised as `KeyValueError`: this attempt did nothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import anyio
import anyio.lowlevel

from ..errors import (
    HandshakeError,
    KeyValueError,
    NoLeaderError,
    OversizedRequestError,
    RefusedError,
    UnknownOutcomeError,
)
from ..keyvalue.protocol import resp
from ..keyvalue.protocol.payload import TRANSACTION
from ..keyvalue.retry import REFUSALS, Fate, Retry, fate_of_code
from ..node.requests.request import UNSTAMPED, Stamp
from .lanes import LostReplyError
from .routing import moved_to_untrusted

if TYPE_CHECKING:
    from random import Random

    from .lanes import Answer, Lanes
    from .routing import Routes

__all__ = ["RemoteEndpoint"]

_MOST_HOPS: Final = 3
"""Members that one attempt is sent to, each by the one before. Fewer, and a change of leader costs
a pause. More, and members that disagree send it around."""


_LEAST_SECONDS: Final = 1.0
"""For the first attempt, with the connection that it needs. Smaller, and a client without patience
gives up busy members. Larger, and it waits for silent ones."""

_MOST_HANG_UPS: Final = 6
"""A port that closes each connection at our first word is none for clients. A member that ends does
it, too, for a moment: fewer, and it would be taken for that. More, and a wrong port is found late.
"""

_OVERSIZED: Final = (
    "ERR Protocol error: invalid bulk length",
    "ERR Protocol error: too big request",
    "ERR the request is too large",
    "ERR a request of ",
)
"""What members say of a request that is longer than their limit."""

_GET: Final = b"*2\r\n$3\r\nGET\r\n$"

_ASK_LIMIT: Final = resp.encode_command(["CONFIG", "GET", "proto-max-bulk-len"])

_SMALLEST_LIMIT: Final = 1024
"""Requests up to this length are taken by all members, however they are configured."""

_ANSWERS: Final = frozenset({"NOSESSION", "FORGOTTEN", "NOTHERE"})
"""Codes of errors that the store gives to a whole request; see `keyvalue/programs/session.py`, and
`partitioned/store.py` for NOTHERE."""

_SLOT_ERRORS: Final = ("CLUSTERDOWN Hash slot ", "TRYAGAIN slot ")
"""How errors begin that concern a slot, and not the members: the map may know more than they."""

_ASK_MAP: Final = resp.encode_command(["QUORATE.MAP"])


class RemoteEndpoint:
    """Sends requests to a cluster; see `keyvalue.programs.client.Endpoint`.

    Args:
        routes: where the leader is.
        lanes: connections to it.
        patience_s: how long a request is sent again.
        rng: draws the pauses between attempts.
    """

    def __init__(
        self, routes: Routes, lanes: Lanes, *, patience_s: float, rng: Random | None = None
    ) -> None:
        self._routes = routes
        self._lanes = lanes
        self._patience_s = patience_s
        self._rng = rng
        self._most: float = _SMALLEST_LIMIT  # no request is longer, as far as we know

    def __repr__(self) -> str:
        return f"<the cluster at {self._routes}>"

    async def command(self, payload: bytes, flags: int = 0, stamp: Stamp = UNSTAMPED) -> bytes:
        """Record, replicate and apply commands; return the reply.

        Raises:
            NoLeaderError: it was not sent.
            UnknownOutcomeError: it was sent, and may or may not take effect.
            RefusedError: writes are suspended, the user may not log in any more, or the client is
                closed.
            OversizedRequestError: it is larger than the members accept.
            KeyValueError: the request as a whole was answered with this error; it was not executed.
        """
        data = _encode(payload, flags, stamp)
        if stamp != UNSTAMPED:
            return _joined(await self._attempt(data, self._send_by()))
        return _joined(await self._patiently(data, NoLeaderError))

    async def command_by_itself(self, command: bytes) -> bytes:
        """Send a command that may not be part of a request; return its reply, encoded.

        Raises:
            RequestError: see `command`. It was not sent again after an unknown outcome.
        """
        match await self._patiently(command, NoLeaderError):
            case bytes(text):
                return resp.bulk(text)
            case int(number):
                return resp.integer(number)
            case reply:
                raise UnknownOutcomeError(f"expected a string or a number, found {reply!r:.60}")

    async def query(self, payload: bytes, flags: int = 0) -> bytes:
        """Answer a linearizable read.

        Raises:
            NoLeaderError: no member answered in time.
            RefusedError: the user may not log in any more, or the client is closed.
            OversizedRequestError: it is larger than the members accept.
            KeyValueError: the request as a whole was answered with this error.
        """
        lone = _is_lone_get(payload)
        data = payload if lone else _encode(payload, flags, UNSTAMPED)
        try:
            reply = await self._patiently(data, (NoLeaderError, UnknownOutcomeError))
        except UnknownOutcomeError as error:
            raise NoLeaderError(str(error)) from None
        if not lone:
            return _joined(reply)
        return resp.NULL[True] if reply is None else resp.bulk(_joined(reply))

    async def open(self) -> None:
        """Open the first connection; wait for a member.

        Raises:
            NoLeaderError: no member can be reached.
            HandshakeError: what answers is no member, or TLS does not fit.
            KeyValueError: the user or its password is wrong.
        """
        retry, send_by, foreign = self._retry(), self._send_by(), 0
        while True:
            try:
                return await self._lanes.open(send_by)
            except NoLeaderError as error:
                foreign = 0 if error.__cause__ is None else foreign + 1
                if foreign == _MOST_HANG_UPS:
                    raise HandshakeError(str(error)) from None
                await self._pause(retry, error)

    async def ask_map(self) -> bytes | None:
        """Ask for the map of a cluster with partitions; None if it has none.

        Raises:
            NoLeaderError: no member answered in time.
            RefusedError: the user may not log in any more.
        """
        try:
            reply = await self._patiently(_ASK_MAP, (NoLeaderError, UnknownOutcomeError))
        except UnknownOutcomeError as error:
            raise NoLeaderError(str(error)) from None
        except KeyValueError:  # a member of an older version does not know the command
            return None
        return reply if isinstance(reply, bytes) else None

    async def _patiently(
        self, data: bytes, again: type[Exception] | tuple[type[Exception], ...]
    ) -> Answer:
        retry, send_by = self._retry(), self._send_by()
        while True:
            try:
                return await self._attempt(data, send_by)
            except again as error:
                await self._pause(retry, error)

    def _retry(self) -> Retry:
        deadline = anyio.current_time() + self._patience_s
        return Retry(anyio.current_time, deadline, rng=self._rng)

    def _send_by(self) -> float:
        """Return until when a call may be sent: set once, it covers waiting for other calls, too.

        The first attempt has some time to open a connection, however short the patience is.
        """
        return anyio.current_time() + max(self._patience_s, _LEAST_SECONDS)

    async def _pause(self, retry: Retry, error: Exception) -> None:
        """Wait before the next attempt; raise the error if time is over."""
        pause = retry.pause_s()
        if pause is None:
            raise type(error)(f"no answer within {self._patience_s:g} s: {error}") from None
        await anyio.sleep(pause)

    async def _attempt(self, data: bytes, send_by: float) -> Answer:
        """Send a request to the leader, once, until a time on anyio's clock.

        Raises:
            RequestError: see `command`.
        """
        await anyio.lowlevel.checkpoint_if_cancelled()  # the way to the socket has no checkpoint
        for _ in range(_MOST_HOPS):
            try:
                if len(data) > self._most:
                    await self._check_size(len(data), send_by)
                reply = await self._lanes.call(data, send_by)
            except LostReplyError as error:
                raise UnknownOutcomeError(f"the reply is lost: {error}") from None
            except (HandshakeError, KeyValueError) as error:  # of a new connection
                raise RefusedError(f"no connection: {error}") from None
            if not isinstance(reply, KeyValueError):
                return reply
            moved = moved_to_untrusted(reply)
            if moved is None:
                return _answer(reply)
            if not self._routes.serves(moved):
                raise reply
            self._routes.follow(moved)
        raise NoLeaderError("members disagree about who leads; nothing was done")

    async def _check_size(self, size: int, send_by: float) -> None:
        """Ask for the longest request: a member closes the connection of one that is longer.

        Raises:
            OversizedRequestError: it is too long; nothing was sent.
            NoLeaderError: there is no answer; nothing was sent.
            Exception: of a new connection.
        """
        try:
            reply = await self._lanes.call(_ASK_LIMIT, send_by)
        except LostReplyError as error:
            raise NoLeaderError(f"nothing was done: {error}") from None
        self._most = _limit_untrusted(reply)
        if size > self._most:
            raise OversizedRequestError(
                f"a request of {size} bytes: the members accept {self._most:.0f}, their "
                "max_request_bytes; nothing was done"
            )


def _is_lone_get(payload: bytes) -> bool:
    """Whether a payload is one GET. As itself it costs a member less than as part of a request."""
    if not payload.startswith(_GET):
        return False
    end = payload.find(b"\r\n", len(_GET))
    return len(payload) == end + int(payload[len(_GET) : end]) + 2 * len(b"\r\n")


def _joined(reply: Answer) -> bytes:
    if isinstance(reply, bytes):
        return reply
    raise UnknownOutcomeError(f"expected a bulk string, found {reply!r:.60}")


def _limit_untrusted(reply: Answer) -> float:
    """Read the reply to CONFIG GET; without the right to ask, the members tell."""
    match reply:
        case {b"proto-max-bulk-len": bytes(number)} if number.isdigit():
            return float(number)
        case _:
            return math.inf


def _answer(error: KeyValueError) -> bytes:
    """Return an error reply that is an answer.

    Raises:
        RequestError: it is none.
    """
    text = str(error)
    if text.startswith(_OVERSIZED):
        raise OversizedRequestError(f"larger than the members accept ({text}); nothing was done")
    fate = fate_of_code(error.code)
    if text.startswith(_SLOT_ERRORS):
        raise error
    if fate is Fate.ANSWERED:
        if error.code in _ANSWERS:
            return resp.error(text)
        raise error
    if fate is Fate.UNKNOWN:
        raise UnknownOutcomeError(text)
    if error.code == "REFUSED":
        raise RefusedError(text.removeprefix("REFUSED "))
    if error.code in REFUSALS:
        raise RefusedError(text)
    raise NoLeaderError(text)


def _encode(payload: bytes, flags: int, stamp: Stamp) -> bytes:
    # The protocol of the reply is that of the connection, so only this flag is sent.
    words = b"%d %d %d" % (*stamp, flags & TRANSACTION)
    return resp.pack((b"QUORATE.REQUEST", *words.split(), payload))
