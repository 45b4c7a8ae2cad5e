"""The key-value store from Python within a session: every write is done exactly once.

The way of `SessionRedis` (docs/sessions.md) for a program that has a member inside. What is unknown
is sent again, through that member, until the cluster has answered or patience is over.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

import trio

from ...errors import (
    ConfigurationError,
    KeyValueError,
    NoLeaderError,
    RefusedError,
    RequestError,
    UnknownOutcomeError,
)
from ..commands.table import Kind
from ..limits import MAX_SESSION_MS, MIN_SESSION_MS
from ..protocol import resp
from ..protocol.payload import RESP3
from .client import KeyValue

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from ..commands.spec import CommandSpec
    from .client import Endpoint

__all__ = ["SessionKeyValue", "open_session"]

_IN_FLIGHT: Final = 100
"""Fewer than the replies that a session keeps: a slow task's command must stay in the window."""

_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 1.0


class _Session:
    """A session, and which of its commands are not answered."""

    def __init__(self, session_id: int) -> None:
        self.id = session_id
        self._last = 0
        self._in_flight: set[int] = set()
        self._turn = trio.lowlevel.ParkingLot()

    @asynccontextmanager
    async def sequence(self) -> AsyncGenerator[int]:
        """Give a number for the length of the block, in which its command is answered."""
        while self._in_flight and self._last - min(self._in_flight) >= _IN_FLIGHT:
            await self._turn.park()
        self._last = number = self._last + 1
        self._in_flight.add(number)
        try:
            yield number
        finally:
            self._in_flight.remove(number)
            self._turn.unpark_all()


class SessionKeyValue(KeyValue):
    """The store with writes that are done once; made by :func:`open_session`.

    A write raises :class:`~quorate.errors.UnknownOutcomeError` if it was not answered in all that
    time, or if its session ended before. One that is cancelled may be done or not.
    """

    def __init__(self, endpoint: Endpoint, *, timeout_s: float, patience_s: float) -> None:
        super().__init__(endpoint)
        _check_session(timeout_s=timeout_s, patience_s=patience_s)
        self._timeout_ms = round(timeout_s * 1000)
        self._patience_s = patience_s
        self._session: _Session | None = None
        self._opening = trio.Lock()

    async def close(self) -> None:
        """Close the session, if the cluster answers; else it times out."""
        session, self._session = self._session, None
        if session is not None:
            words = resp.encode_command(["QUORATE.SESSION", "CLOSE", session.id])
            with suppress(RequestError):
                await self.endpoint.command(words)

    async def _send(self, spec: CommandSpec, payload: bytes) -> bytes:
        if spec.kind is not Kind.WRITE or spec.name == "quorate.session":
            return await super()._send(spec, payload)
        while True:
            session = await self._opened()
            async with session.sequence() as sequence:
                reply, sent_before = await self._surely(payload, session.id, sequence)
            if not reply.startswith(b"-NOSESSION "):
                return reply
            if self._session is session:
                self._session = None
            if sent_before:
                raise UnknownOutcomeError(
                    "the session ended before this write was answered; it may or may not take "
                    "effect"
                )

    async def _opened(self) -> _Session:
        async with self._opening:
            if self._session is None:
                words = resp.encode_command(["QUORATE.SESSION", "OPEN", self._timeout_ms])
                reply, _ = await self._surely(words, 0, 0)
                self._session = _Session(_integer(reply))
            return self._session

    async def _surely(self, payload: bytes, session: int, sequence: int) -> tuple[bytes, bool]:
        """Send a command until it is answered; return the reply, and whether it may be a repeat.

        Raises:
            RequestError: it was not answered in time, or refused.
        """
        end, pause, sent = trio.current_time() + self._patience_s, _FIRST_PAUSE_S, False
        while True:
            try:
                return await self.endpoint.command(payload, RESP3, (session, sequence)), sent
            except (UnknownOutcomeError, NoLeaderError, RefusedError) as error:
                sent |= isinstance(error, UnknownOutcomeError)
                if isinstance(error, RefusedError) and not sent:
                    raise
                if trio.current_time() + pause > end:
                    _give_up(error, sent=sent)
            await trio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)


@asynccontextmanager
async def open_session(
    endpoint: Endpoint, *, timeout_s: float = 300.0, patience_s: float = 60.0
) -> AsyncGenerator[SessionKeyValue]:
    """Give the store with writes that are done once, for the length of the block.

    Args:
        endpoint: a node or a member.
        timeout_s: how long the session lives without a write, in seconds: 1 to 86,400. An outage
            that lasts longer ends it.
        patience_s: for how long a write is sent again, in seconds.

    Raises:
        ConfigurationError: one of them is no such number.
    """
    store = SessionKeyValue(endpoint, timeout_s=timeout_s, patience_s=patience_s)
    try:
        yield store
    finally:
        await store.close()


def _check_session(*, timeout_s: Any, patience_s: Any) -> None:
    """Refuse what is no number of seconds for a session.

    Raises:
        ConfigurationError: it names the argument, its value and what was expected.
    """
    bounds = MIN_SESSION_MS / 1000, MAX_SESSION_MS / 1000
    for name, value, (least, most) in (
        ("timeout_s", timeout_s, bounds),
        ("patience_s", patience_s, (0.0, bounds[1])),
    ):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and least <= value <= most):
            raise ConfigurationError(
                f"{name} = {value!r:.60}: expected seconds, {least:g} to {most:g}"
            )


def _give_up(error: RequestError, *, sent: bool) -> NoReturn:
    """Raise the error; that nothing was done is true only of its own attempt."""
    if sent and not isinstance(error, UnknownOutcomeError):
        raise UnknownOutcomeError(f"an earlier attempt may or may not take effect: {error}")
    raise error


def _integer(reply: bytes) -> int:
    (found,) = resp.parse_replies_untrusted(reply)
    if isinstance(found, KeyValueError):
        raise found
    assert isinstance(found, int), f"expected an integer, got {found!r}"
    return found
