"""Sends the calls of one program: in order, many at a time, each exactly once.

The calls that tasks make while a batch is under way gather in the next one. One batch is under way
at a time, so calls of one program are applied in the order in which they were made. A batch is sent
again, with the same number, until it is answered or its time is up.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs
import trio

from ..errors import (
    ConfigurationError,
    NoLeaderError,
    RefusedError,
    RequestError,
    UnknownOutcomeError,
)
from ..keyvalue.retry import Retry
from . import wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["Caller", "Endpoint"]

BATCH_BYTES: Final = 128 << 10
"""If smaller, busy programs need more round trips. If larger, a call waits longer for its batch."""

BATCH_CALLS: Final = 1000
"""If smaller, as above. If larger, a batch of slow methods holds up a member's heartbeats."""

_CALL_BYTES: Final = 32
_OPEN: Final = wire.Batch(0, 0, ())
_LOST: Final = "the session ended before this call was answered; it may or may not take effect"


class Endpoint(Protocol):
    """A node or a member."""

    def command(self, payload: bytes, flags: int = 0) -> Awaitable[bytes]: ...  # noqa: D102
    def query(self, payload: bytes, flags: int = 0) -> Awaitable[bytes]: ...  # noqa: D102


@attrs.define(eq=False)
class _Waiting:
    """A call that waits for its outcome."""

    call: wire.Call
    done: trio.Event = attrs.field(factory=trio.Event)
    outcome: wire.Outcome | RequestError | None = None
    gone: bool = False


class Caller:
    """The calls of one program; :meth:`run` sends them.

    Args:
        patience_s: how long a call is sent again, in seconds.

    Raises:
        ConfigurationError: it is not positive.
    """

    def __init__(self, patience_s: float) -> None:
        if isinstance(patience_s, bool) or not 0 < patience_s < float("inf"):
            raise ConfigurationError(f"patience_s = {patience_s!r}: expected seconds, more than 0")
        self._patience_s = patience_s
        self._endpoint: Endpoint | None = None
        self._waiting: deque[_Waiting] = deque()
        self._wanted = trio.Event()
        self._session = 0
        self._sequence = 0
        self.moved: Callable[[], trio.Event] = trio.Event

    async def send(self, target: str, method: str, version: int, arguments: bytes) -> bytes:
        """Record and apply a call; see :class:`.base.Home`."""
        if self._endpoint is None:
            raise ConfigurationError(f"{target} is not open any more: its block has ended")
        waiting = _Waiting(wire.Call(target, method, version, arguments))
        self._waiting.append(waiting)
        self._wanted.set()
        try:
            await waiting.done.wait()
        finally:
            waiting.gone = True
        return _result(waiting.call, waiting.outcome)

    async def ask(self, target: str, method: str, version: int, arguments: bytes) -> bytes:
        """Ask a query; see :class:`.base.Home`."""
        if self._endpoint is None:
            raise ConfigurationError(f"{target} is not open any more: its block has ended")
        call = wire.Call(target, method, version, arguments)
        payload = wire.encode(call)
        retry = Retry(trio.current_time, trio.current_time() + self._patience_s)
        data, _ = await _until_answered(self._endpoint.query, payload, retry)
        match wire.reply_untrusted(data):
            case wire.Done((outcome,)):
                return _result(call, outcome)
            case reply:
                raise RequestError(f"{target}.{method}: {getattr(reply, 'text', reply)}")

    async def run(
        self, endpoint: Endpoint, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Send the calls, until cancelled."""
        self._endpoint = endpoint
        task_status.started()
        try:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                while batch := self._next():
                    await self._send_batch(endpoint, batch)
        finally:
            self._endpoint = None
            error = UnknownOutcomeError("the member was stopped before this call was answered")
            for waiting in self._waiting:
                waiting.outcome = error
                waiting.done.set()

    def _next(self) -> list[_Waiting]:
        """Take the calls of the next batch; those whose tasks are gone are never sent."""
        batch: list[_Waiting] = []
        size = 0
        while self._waiting and len(batch) < BATCH_CALLS:
            first = self._waiting[0]
            size += len(first.call.arguments) + _CALL_BYTES
            if batch and size > BATCH_BYTES:
                break
            self._waiting.popleft()
            if not first.gone:
                batch.append(first)
        return batch

    async def _send_batch(self, endpoint: Endpoint, batch: list[_Waiting]) -> None:
        try:
            outcomes = await self._outcomes(endpoint, tuple(each.call for each in batch))
        except RequestError as error:
            for waiting in batch:
                waiting.outcome = error
                waiting.done.set()
            return
        except trio.Cancelled:
            self._waiting.extendleft(reversed(batch))
            raise
        for waiting, outcome in zip(batch, outcomes, strict=True):
            waiting.outcome = outcome
            waiting.done.set()

    async def _outcomes(
        self, endpoint: Endpoint, calls: tuple[wire.Call, ...]
    ) -> tuple[wire.Outcome, ...]:
        """Send a batch until it is answered.

        Raises:
            RequestError: it was not answered in time, or refused.
        """
        retry = Retry(trio.current_time, trio.current_time() + self._patience_s)
        while True:
            if not self._session:
                await self._open(endpoint, retry)
            number = self._sequence + 1
            payload = wire.encode(wire.Batch(self._session, number, calls))
            try:
                data, again = await _until_answered(endpoint.command, payload, retry)
            except UnknownOutcomeError:
                # The next batch must not take this number, nor leave it out.
                self._session = 0
                raise
            match wire.reply_untrusted(data):
                case wire.Done(outcomes) if len(outcomes) == len(calls):
                    self._sequence = number
                    return outcomes
                case wire.SessionLost():
                    self._session = 0
                    if again:
                        raise UnknownOutcomeError(_LOST)
                case wire.TooLong():
                    self._sequence = number
                    raise UnknownOutcomeError("it was done, once; its result was too long to keep")
                case reply:
                    raise RequestError(f"a reply to something else: {reply!r:.200}")

    async def _open(self, endpoint: Endpoint, retry: Retry) -> None:
        data, _ = await _until_answered(endpoint.command, wire.encode(_OPEN), retry)
        reply = wire.reply_untrusted(data)
        if not isinstance(reply, wire.Opened):
            raise RequestError(f"a reply to something else: {reply!r:.200}")
        self._session, self._sequence = reply.session, 0


async def _until_answered(
    send: Callable[[bytes], Awaitable[bytes]], payload: bytes, retry: Retry
) -> tuple[bytes, bool]:
    """Send a request until it is answered; return the reply, and whether it was sent before.

    Raises:
        RequestError: it was not answered in time, or refused.
    """
    sent = False
    while True:
        try:
            return await send(payload), sent
        except (NoLeaderError, UnknownOutcomeError, RefusedError) as error:
            sent |= isinstance(error, UnknownOutcomeError)
            if isinstance(error, RefusedError) and not sent:
                raise
            pause = retry.pause_s()
            if pause is None:
                if sent:
                    raise UnknownOutcomeError(str(error)) from error
                raise
        await trio.sleep(pause)


def _result(call: wire.Call, outcome: Any) -> bytes:
    """Return the bytes of a result, or raise what came in its place."""
    match outcome:
        case wire.Result(data):
            return data
        case wire.Failure(kind, text):
            raise wire.CallError(f"{call.target}.{call.method}", kind, text)
        case RequestError():
            # One for each task: a raised error gets a traceback of its own.
            raise type(outcome)(*outcome.args)
        case _:
            raise AssertionError(f"no outcome: {outcome!r}")
