"""Calls of this process's own tasks: a request, and a task that waits until it is done.

A member may have hundreds of them in each turn of the event loop, all of which it answers in one
later turn. So a call has no event, no lock and no task of its own: `done` puts the caller straight
among the tasks that run next, with the result.
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
    """What tasks go on with: as `outcome.Value`, for a third of the cost, and for many of them."""

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
        """The task is cancelled, and waits no longer."""
        self.cancel()
        return trio.lowlevel.Abort.SUCCEEDED


class Calls:
    """Has tasks wait for what becomes of their requests.

    Args:
        submit: takes a request into the member.
    """

    def __init__(self, submit: Callable[[Request], None]) -> None:
        self._submit = submit
        # What is done within `submit` finds nobody waiting; it is never more than one request.
        self._at_once: list[bytes | RequestError] = []
        self._done_at_once = self._at_once.append

    # Ctrl-C between `submit` and the wait would have a task woken that never waited.
    @trio.lowlevel.enable_ki_protection
    async def ask(
        self, kind: RequestKind, payload: bytes, flags: int, stamp: Stamp = UNSTAMPED
    ) -> bytes:
        """Submit a request and wait for its reply; `payload` may be of a subclass.

        Raises:
            TypeError: `payload` is no bytes.
            RequestError: there is none.
        """
        if type(payload) is not bytes:
            payload = _bytes_of(payload)
        call = Call(kind, payload, flags, self._done_at_once)
        if stamp is not UNSTAMPED:
            call.session, call.sequence = stamp
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
    if isinstance(payload, bytes | bytearray | memoryview):  # bytes(5) would be five zeros
        return bytes(cast("bytes", payload))
    found = type(payload).__name__
    raise TypeError(f"payload = {payload!r:.60}: expected bytes, found {found}")


def _wake(task: trio.lowlevel.Task, result: bytes | RequestError) -> None:
    """Have a task go on with a result."""
    wrapped = Reply(result) if isinstance(result, bytes) else Error(result)
    trio.lowlevel.reschedule(task, wrapped)
