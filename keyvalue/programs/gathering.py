"""Joins the plain SETs of this program's tasks into one request.

Hundreds of tasks may each set a key in one turn of the event loop. A request of its own for each
SET would cost more than all the rest: gateway, log and state machine handle every request
separately. So the SETs of one turn gather in one payload, like a pipeline. The reply is cut apart,
and each task is rescheduled with its own piece.
"""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from copy import copy
from functools import partial
from typing import Any, Final, Never, Protocol

import trio
from outcome import Error

from ...errors import RequestError, UnknownOutcomeError
from ...node.requests.request import COMMAND, Request
from ...node.requests.task_calls import Reply
from ..limits import AT_ONCE_BYTES, RUN_COMMANDS
from ..protocol import resp
from ..protocol.payload import RESP3

__all__ = ["Gathering"]

_DONE: Final = Reply(resp.OK)
_WRONG_REPLIES: Final = UnknownOutcomeError("the replies are not those to what was sent")


class RequestTarget(Protocol):
    """Executes requests."""

    def command(self, payload: bytes, flags: int = 0) -> Coroutine[Any, Any, bytes]:
        """Record, replicate and apply one command; return the reply."""
        ...

    def submit_all(self, requests: list[Request]) -> None:
        """Submit requests together."""
        ...


class Gathered(Request):
    """SETs of several tasks, as one request.

    Attributes:
        payloads: the encoded SETs; empty if one was withdrawn before it was sent.
        tasks: the task that waits for each SET; None once it was cancelled.
    """

    __slots__ = ("payloads", "tasks")

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.tasks: list[trio.lowlevel.Task | None] = []
        super().__init__(COMMAND, b"", RESP3, partial(_wake, self.payloads, self.tasks))

    def withdraw(self, place: int, _raise: Callable[[], Never]) -> trio.lowlevel.Abort:
        """Forget a cancelled task; its SET is dropped if it was not sent yet."""
        self.tasks[place] = None
        self.cancelled = True
        return trio.lowlevel.Abort.SUCCEEDED

    def remaining(self) -> Sequence[Request]:
        """Return this request with the SETs that tasks still wait for; nothing without any."""
        # Unlike a joined request it need not be split: the other tasks still share one reply.
        self.cancelled = False
        for place, task in enumerate(self.tasks):
            if task is None:
                self.payloads[place] = b""
        self.payload = b"".join(self.payloads)
        return (self,) if self.payload else ()


def _wake(
    payloads: list[bytes], tasks: list[trio.lowlevel.Task | None], result: bytes | RequestError
) -> None:
    """Reschedule each task with the reply to its SET, or with the error."""
    reschedule = trio.lowlevel.reschedule
    if result == resp.OK * len(tasks):  # the usual case: no reply has to be cut out
        for task in tasks:
            if task is not None:
                reschedule(task, _DONE)
        return
    sent = [task for task, payload in zip(tasks, payloads, strict=True) if payload]
    replies = result.splitlines(keepends=True) if isinstance(result, bytes) else []
    error = _WRONG_REPLIES if isinstance(result, bytes) else result
    cut = len(replies) == len(sent)
    for place, task in enumerate(sent):
        # Raising an exception changes it (its traceback), so each task gets a copy.
        if task is not None:
            reschedule(task, Reply(replies[place]) if cut else Error(copy(error)))


class Gathering:
    """Gathers the SETs of tasks, and submits them once a turn.

    Args:
        member: usually a member or a node; it executes the requests.
        request_bytes: the longest request that it accepts.
    """

    def __init__(self, member: RequestTarget, request_bytes: int) -> None:
        self._member = member
        self._most = min(AT_ONCE_BYTES, request_bytes)
        self._running = False
        self._full: list[Gathered] = []
        self._gathered = Gathered()
        self._room = 0
        self._begun = trio.lowlevel.ParkingLot()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Submit the gathered SETs after each turn of the event loop, until cancelled."""
        self._running, self._room = True, self._most
        task_status.started()
        try:
            while True:
                await self._begun.park()
                self._submit()
        finally:
            self._submit()
            self._running, self._room = False, 0

    @staticmethod
    def protect(function: Callable[..., object]) -> None:
        """Keep Ctrl-C away from a function that calls `send`, until it awaits the result."""
        trio.lowlevel.enable_ki_protection(function)

    def send(self, key: bytes, value: bytes) -> Awaitable[bytes]:
        """Execute ``SET key value``; the result must be awaited at once and is the reply.

        The caller is protected from Ctrl-C until it awaits (`protect`).
        Otherwise a task could be left in `tasks` that never waited, and rescheduling it would end
        the run. This is no coroutine function: one more frame costs a tenth of a SET.

        Raises:
            RequestError: there is no reply.
        """
        gathered, size = self._gathered, len(key) + len(value) + resp.SET_FRAME_BYTES
        place = len(gathered.tasks)
        if size > self._room or place == RUN_COMMANDS:
            # Too large to share a request, or `run` has ended and would not submit it.
            if size > self._most or not self._running:
                return self._member.command(resp.encode_set(key, value), RESP3)
            self._full.append(gathered)
            self._gathered = gathered = Gathered()
            self._room, place = self._most, 0
        # The first SET of a turn wakes `run`, which trio schedules after the tasks of this turn.
        if not place:
            self._begun.unpark()
        self._room -= size
        gathered.payloads.append(resp.encode_set(key, value))
        gathered.tasks.append(trio.lowlevel.current_task())
        withdraw = partial(gathered.withdraw, place)
        return trio.lowlevel.wait_task_rescheduled(withdraw)  # noqa: ASYNC105 - the caller awaits it

    def _submit(self) -> None:
        """Submit the gathered SETs."""
        gathered = [*self._full, self._gathered]
        self._full, self._gathered, self._room = [], Gathered(), self._most
        if requests := [request for each in gathered for request in each.remaining()]:
            self._member.submit_all(requests)
