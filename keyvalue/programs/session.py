"""The embedded key-value store within a replicated session: every write happens exactly once.

This is `SessionRedis` (docs/sessions.md) for a program that embeds a member. A write of unknown
outcome is sent again, through that member, until the cluster has answered or time is up. The state
machine's side is :mod:`..state.sessions`.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn

import anyio
import anyio.lowlevel

from ...errors import (
    KeyValueError,
    NoLeaderError,
    RefusedError,
    RequestError,
    UnknownOutcomeError,
)
from ...node.requests.request import UNSTAMPED
from ..commands.table import Kind
from ..limits import MAX_SESSION_MS, MIN_SESSION_MS
from ..protocol import resp
from ..protocol.payload import RESP3, TRANSACTION
from ..retry import Retry, SessionWindow, check_seconds
from .client import KeyValue
from .encoding import decoded, integer_in

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from random import Random

    from ...node.requests.request import Stamp
    from ..commands.spec import CommandSpec
    from .client import Endpoint
    from .watch import WatchSource

__all__ = ["SessionKeyValue", "open_session"]


_UNSENT: Final = "were not answered in time; this one was not sent, and nothing was done"


class _OpenSession(SessionWindow):
    """A session whose commands wait for each other."""

    def __init__(self, session_id: int) -> None:
        super().__init__(session_id)
        self._ended: anyio.Event | None = None  # while somebody waits

    async def begin_in_turn(self, deadline: float) -> int:
        """Return the number of the next command, once there is room for it.

        Raises:
            NoLeaderError: there was none until the deadline.
        """
        while self.is_full:
            self._ended = self._ended or anyio.Event()
            with anyio.CancelScope(deadline=deadline) as scope:
                await self._ended.wait()
            if scope.cancelled_caught:
                raise NoLeaderError(f"older writes {_UNSENT}")
        return self.begin()

    def end(self, number: int, reply_bytes: int = 0) -> None:
        """Take a number, and wake those who wait for room."""
        super().end(number, reply_bytes)
        if self._ended is not None:
            self._ended.set()
            self._ended = None


class SessionKeyValue(KeyValue):
    """The store with writes that happen exactly once; made by :func:`open_session`.

    A write raises :class:`~quorate.errors.UnknownOutcomeError` if it was not answered within
    `patience_s`, or if its session ended before that. A cancelled write may or may not take effect.
    `rng` draws the pauses between attempts; None for pauses that are always the same.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        timeout_s: float,
        patience_s: float,
        watches: WatchSource | None = None,
        rng: Random | None = None,
    ) -> None:
        super().__init__(endpoint, watches=watches)
        _check_session(timeout_s=timeout_s, patience_s=patience_s)
        self._timeout_ms = round(timeout_s * 1000)
        self._patience_s = patience_s
        self._session: _OpenSession | None = None
        self._opening = anyio.Lock()
        self._closed = False
        self._rng = rng

    async def close(self) -> None:
        """Take no more writes; close the session if the cluster answers, or else it times out."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            words = resp.encode_command(["QUORATE.SESSION", "CLOSE", session.session_id])
            with suppress(RequestError):
                await self.endpoint.command(words)

    async def _send(self, spec: CommandSpec, payload: bytes) -> bytes:
        if spec.kind is not Kind.WRITE or spec.name == "quorate.session":
            return await super()._send(spec, payload)
        return await self._send_once(payload, RESP3)

    async def _commit(self, payload: bytes, *, writes: bool) -> bytes:
        if not writes:
            return await super()._commit(payload, writes=False)
        return await self._send_once(payload, RESP3 | TRANSACTION)

    async def _send_once(self, payload: bytes, flags: int) -> bytes:
        """Send a request within the session until it is answered, or until time is up."""
        await anyio.lowlevel.checkpoint_if_cancelled()  # a cancelled task sends nothing new
        deadline = anyio.current_time() + self._patience_s
        while True:
            session = await self._opened(deadline)
            sequence, size = await session.begin_in_turn(deadline), 0
            try:
                stamp = session.session_id, sequence
                reply, sent_before = await self._send_until_answered(
                    payload, flags, stamp, deadline
                )
                size = len(reply)
            finally:
                session.end(sequence, size)
            if reply.startswith(b"-FORGOTTEN "):
                text = reply[1:].decode("utf-8", "replace").rstrip()
                raise UnknownOutcomeError(f"this write was sent, and its reply is lost: {text}")
            if not reply.startswith(b"-NOSESSION "):
                return reply
            if self._session is session:
                self._session = None
            if sent_before:
                raise UnknownOutcomeError(
                    "the session ended before this write was answered; it may or may not take "
                    "effect"
                )

    async def _opened(self, deadline: float) -> _OpenSession:
        """Return the session; open it first if there is none.

        Raises:
            NoLeaderError: another task did not manage to open it until the deadline.
            RequestError: it can't be opened.
        """
        if self._session is not None:
            return self._session
        if self._closed:
            raise RefusedError("the client is closed; nothing was done")
        await self._take_turn(deadline)
        try:
            if self._session is None:
                self._session = _OpenSession(await self._open(deadline))
            return self._session
        finally:
            self._opening.release()

    async def _take_turn(self, deadline: float) -> None:
        if not self._opening.locked():  # also if there is no patience at all
            self._opening.acquire_nowait()
            return
        with anyio.CancelScope(deadline=deadline) as scope:
            await self._opening.acquire()
        if scope.cancelled_caught:
            raise NoLeaderError("no session could be opened in time; nothing was done")

    async def _open(self, deadline: float) -> int:
        words = resp.encode_command(["QUORATE.SESSION", "OPEN", self._timeout_ms])
        retry = self._retry(deadline)
        while True:
            reply, _ = await self._send_until_answered(words, RESP3, UNSTAMPED, deadline)
            if not reply.startswith(b"-SESSIONLIMIT "):
                return integer_in(decoded(reply))
            pause = retry.pause_s()  # sessions of others time out
            if pause is None:
                text = reply[1:].decode("utf-8", "replace").rstrip()
                raise KeyValueError(f"{text}. connect(..., exactly_once=False) needs no session")
            await anyio.sleep(pause)

    def _retry(self, deadline: float) -> Retry:
        return Retry(anyio.current_time, deadline, rng=self._rng)

    async def _send_until_answered(
        self, payload: bytes, flags: int, stamp: Stamp, deadline: float
    ) -> tuple[bytes, bool]:
        """Send a command until it is answered; return the reply, and whether it was sent before.

        Raises:
            UnknownOutcomeError: it was sent, and not answered in time.
            RequestError: it was refused, by the first attempt that may have reached the cluster.
        """
        retry, sent = self._retry(deadline), False
        while True:
            try:
                return await self.endpoint.command(payload, flags, stamp), sent
            except (UnknownOutcomeError, NoLeaderError, RefusedError) as error:
                sent |= isinstance(error, UnknownOutcomeError)
                if isinstance(error, RefusedError) and not sent:
                    raise
                pause = retry.pause_s()
                if pause is None:
                    _give_up(error, sent=sent)
            except RequestError as error:  # of the request as a whole: nothing of it was executed
                _give_up(error, sent=sent)
            await anyio.sleep(pause)


@asynccontextmanager
async def open_session(
    endpoint: Endpoint,
    *,
    timeout_s: float = 300.0,
    patience_s: float = 60.0,
    watches: WatchSource | None = None,
) -> AsyncGenerator[SessionKeyValue]:
    """Open a session for the length of the block; yield the store with exactly-once writes.

    Args:
        endpoint: a node or a member.
        timeout_s: how long the session lives without a write, in seconds: 1 to 86,400. An outage
            that lasts longer ends it.
        patience_s: how long an unanswered write is sent again, in seconds.
        watches: makes watches; None if there are none.

    Raises:
        ConfigurationError: one of these numbers is out of range.
    """
    store = SessionKeyValue(endpoint, timeout_s=timeout_s, patience_s=patience_s, watches=watches)
    try:
        yield store
    finally:
        await store.close()


def _check_session(*, timeout_s: Any, patience_s: Any) -> None:
    longest = MAX_SESSION_MS / 1000
    check_seconds("timeout_s", timeout_s, MIN_SESSION_MS / 1000, longest)
    check_seconds("patience_s", patience_s, 0.0, longest)


def _give_up(error: RequestError, *, sent: bool) -> NoReturn:
    """Raise the last error, or "unknown" if an earlier attempt may have succeeded."""
    # Most errors say that nothing happened. That is true of their own attempt only.
    if sent and not isinstance(error, UnknownOutcomeError):
        raise UnknownOutcomeError(f"an earlier attempt may or may not take effect: {error}")
    raise error
