"""Sends the calls of one program: in order, many at a time, each exactly once.

The calls that tasks make while a batch is under way gather in the next one. One batch is under way
at a time, so calls of one program are applied in the order in which they were made. A batch is sent
again, with the same number, until it is answered or its time is up.

When a call returns, this member has applied it, too: local reads see it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

import attrs
import trio

from ..errors import (
    CallError,
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

__all__ = ["Caller", "Endpoint", "Waiting", "result_of"]

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


class Local(Protocol):
    """This member's own state machine: :class:`.machine.ObjectsMachine`."""

    applied: int

    def moved(self) -> trio.Event: ...


@attrs.define(eq=False)
class Waiting:
    """A call that waits for its outcome.

    Args:
        call: the call.
        done: called once with the outcome, on trio's thread; it must not raise.
        gone: nobody waits for it any more.
    """

    call: wire.Call
    done: Callable[[wire.Outcome | RequestError], object]
    gone: bool = False


class Caller:
    """The calls of one program; :meth:`run` sends them.

    Args:
        patience_s: how long a call is sent again, in seconds.

    Raises:
        ConfigurationError: it is not positive.

    Attributes:
        local: the state machine of this member.
    """

    def __init__(self, patience_s: float) -> None:
        if isinstance(patience_s, bool) or not 0 < patience_s < float("inf"):
            raise ConfigurationError(f"patience_s = {patience_s!r}: expected seconds, more than 0")
        self._patience_s = patience_s
        self._endpoint: Endpoint | None = None
        self._waiting: deque[Waiting] = deque()
        self._wanted = trio.Event()
        self._session = 0
        self._sequence = 0
        self.local: Local | None = None

    def moved(self) -> trio.Event:
        """Return an event that is set once this member has applied more."""
        assert self.local is not None, "set with the machine"
        return self.local.moved()

    async def send(self, target: str, method: str, version: int, arguments: bytes) -> bytes:
        """Record and apply a call; see :class:`.base.Home`."""
        event = trio.Event()
        outcomes: list[wire.Outcome | RequestError] = []

        def note(outcome: wire.Outcome | RequestError) -> None:
            outcomes.append(outcome)
            event.set()

        waiting = Waiting(wire.Call(target, method, version, arguments), note)
        self.submit(waiting)
        try:
            await event.wait()
        finally:
            waiting.gone = True
        return result_of(waiting.call, outcomes[0])

    def submit(self, waiting: Waiting) -> None:
        """Have a call sent, after those that were submitted before.

        Raises:
            ConfigurationError: `run` does not run.
        """
        if self._endpoint is None:
            raise ConfigurationError(f"{waiting.call.target} is not open: its block has ended")
        self._waiting.append(waiting)
        self._wanted.set()

    async def ask(self, target: str, method: str, version: int, arguments: bytes) -> bytes:
        """Ask a query; see :class:`.base.Home`."""
        if self._endpoint is None:
            raise ConfigurationError(f"{target} is not open: its block has ended")
        call = wire.Call(target, method, version, arguments)
        payload = wire.encode(call)
        retry = Retry(trio.current_time, trio.current_time() + self._patience_s)
        data, _ = await _until_answered(self._endpoint.query, payload, retry)
        match wire.reply_untrusted(data):
            case wire.Done(_, (outcome,)):
                return result_of(call, outcome)
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
                waiting.done(error)

    def _next(self) -> list[Waiting]:
        """Take the calls of the next batch; those whose tasks are gone are never sent."""
        batch: list[Waiting] = []
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

    async def _send_batch(self, endpoint: Endpoint, batch: list[Waiting]) -> None:
        try:
            outcomes = await self._outcomes(endpoint, tuple(each.call for each in batch))
        except RequestError as error:
            for waiting in batch:
                waiting.done(error)
            return
        except trio.Cancelled:
            self._waiting.extendleft(reversed(batch))
            raise
        # A reply with long results has outcomes for the first calls alone.
        self._waiting.extendleft(reversed(batch[len(outcomes) :]))
        for waiting, outcome in zip(batch, outcomes, strict=False):
            waiting.done(outcome)

    async def _outcomes(
        self, endpoint: Endpoint, calls: tuple[wire.Call, ...]
    ) -> tuple[wire.Outcome, ...]:
        """Send a batch until it is answered.

        Raises:
            RequestError: it was not answered in time, or refused.
        """
        deadline = trio.current_time() + self._patience_s
        retry = Retry(trio.current_time, deadline)
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
                case wire.Done(position, outcomes) if 0 < len(outcomes) <= len(calls):
                    self._sequence = number
                    await self._wait_applied(position, deadline)
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

    async def _wait_applied(self, position: int, deadline: float) -> None:
        """Wait until this member has applied a call, too: the caller may read locally now."""
        with trio.move_on_at(deadline):
            while self.local is not None and self.local.applied <= position:
                await self.local.moved().wait()

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


def result_of(call: wire.Call, outcome: wire.Outcome | RequestError) -> bytes:
    """Return the bytes of a result, or raise what came in its place."""
    match outcome:
        case wire.Result(data):
            return data
        case wire.Failure(kind, text):
            raise CallError(f"{call.target}.{call.method}", kind, text)
        case RequestError():
            # One for each task: a raised error gets a traceback of its own.
            raise type(outcome)(*outcome.args)
