"""Calls of this process's own tasks: submit a request, and wait until it is done.

Hundreds of calls may be made in one turn of the event loop, and answered in one later turn. So a
call has no event, lock or task of its own: its callback reschedules the waiting task with the
result.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import trio
from outcome import Error, Outcome

from .request import UNSTAMPED, Request

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from ...errors import RequestError
    from .request import RequestKind, Stamp

__all__ = ["Calls", "Reply"]


class Reply(Outcome[bytes]):
    """The outcome with which a task continues: like `outcome.Value`, at a third of its cost."""

    __slots__ = ("_reply",)

    def __init__(self, reply: bytes) -> None:
        self._reply = reply

    def unwrap(self) -> bytes:
        """Return the reply."""
        return self._reply

    def send(self, gen: Generator[Any, bytes, object]) -> Any:
        """Send the reply into a generator."""
        return gen.send(self._reply)

    async def asend(self, agen: AsyncGenerator[Any, bytes]) -> Any:
        """Send the reply into an asynchronous generator."""
        return await agen.asend(self._reply)


class Call(Request):
    """A request that a task waits for."""

    __slots__ = ()

    def withdraw(self, _raise: Callable[[], None]) -> trio.lowlevel.Abort:
        """Cancel it, because the task was cancelled."""
        self.cancel()
        return trio.lowlevel.Abort.SUCCEEDED


class Calls:
    """Lets tasks wait for the results of their requests.

    Args:
        submit: takes a request into the member.
    """

    def __init__(self, submit: Callable[[Request], None]) -> None:
        self._submit = submit
        # If `submit` finishes a request itself, no task waits yet. There is never more than one.
        self._at_once: list[bytes | RequestError] = []
        self._done_at_once = self._at_once.append

    # Without protection, Ctrl-C between `submit` and the wait would leave a callback that
    # reschedules a task which does not wait.
    @trio.lowlevel.enable_ki_protection
    async def ask(
        self,
        kind: RequestKind,
        payload: bytes,
        flags: int,
        stamp: Stamp = UNSTAMPED,
        principal: int = 0,
        *,
        sign: Callable[[Request], None] | None = None,
    ) -> bytes:
        """Submit a request and wait for its reply.

        Args:
            kind: of the request.
            payload: bytes-like; it is converted to bytes.
            flags: one byte whose meaning is the service's.
            stamp: session and sequence number.
            principal: who asks, see `Request`.
            sign: gives the request what else is known of who asks.

        Raises:
            TypeError: `payload` is not bytes-like.
            RequestError: it has no reply.
        """
        if type(payload) is not bytes:
            payload = _bytes_of(payload)
        call = Call(kind, payload, flags, self._done_at_once)
        if stamp is not UNSTAMPED:
            call.session, call.sequence = stamp
        call.principal = principal
        if sign is not None:
            sign(call)
        self._submit(call)
        if self._at_once:
            result = self._at_once.pop()
            await trio.lowlevel.checkpoint()
            if isinstance(result, bytes):
                return result
            raise result
        call.done = partial(_wake, trio.lowlevel.current_task())
        reply: bytes = await trio.lowlevel.wait_task_rescheduled(call.withdraw)
        return reply


def _bytes_of(payload: Any) -> bytes:
    # Not bytes(payload) for every type: bytes(5) would be five zeros.
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(cast("bytes", payload))
    found = type(payload).__name__
    raise TypeError(f"payload = {payload!r:.60}: expected bytes, found {found}")


def _wake(task: trio.lowlevel.Task, result: bytes | RequestError) -> None:
    """Reschedule a task with a result."""
    wrapped = Reply(result) if isinstance(result, bytes) else Error(result)
    trio.lowlevel.reschedule(task, wrapped)
