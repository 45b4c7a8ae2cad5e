"""Plain SETs of the tasks of this program, which travel together.

Of hundreds of tasks each may set a key in one turn of the event loop. To carry each of these SETs
through the gateway, the log and the state machine by itself costs more than all the rest. So those
of a turn gather: a payload with many of them, as of a pipeline, is one request, and the reply is
cut apart. Each task waits by nothing but its place among trio's tasks (:mod:`.waits`).
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
from ..native.waits import waiting
from ..port.routes import RUN_COMMANDS
from ..protocol import resp
from ..state.service import AT_ONCE_BYTES, RESP3

__all__ = ["Gathering"]

_DONE: Final = Reply(resp.OK)
_OTHERS: Final = UnknownOutcomeError("the replies are not those to what was sent")


class Member(Protocol):
    """Where requests go."""

    def command(self, payload: bytes, flags: int = 0) -> Coroutine[Any, Any, bytes]:
        """Have one command recorded, replicated and applied; return the reply."""
        ...

    def submit_all(self, requests: list[Request]) -> None:
        """Take requests that need not wait for others."""
        ...


class Gathered(Request):
    """SETs of several tasks, as one command.

    Attributes:
        payloads: the SETs; empty for one that was withdrawn before it was sent.
        tasks: who waits for each; None for one that does so no longer.
    """

    __slots__ = ("payloads", "tasks")

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.tasks: list[trio.lowlevel.Task | None] = []
        super().__init__(COMMAND, b"", RESP3, partial(_wake, self.payloads, self.tasks))

    def withdraw(self, place: int, _raise: Callable[[], Never]) -> trio.lowlevel.Abort:
        """A task is cancelled: if its SET was not sent yet it never will be."""
        self.tasks[place] = None
        self.cancelled = True
        return trio.lowlevel.Abort.SUCCEEDED

    def remaining(self) -> Sequence[Request]:
        """Return this, with the SETs for which tasks still wait; nothing if there are none."""
        self.cancelled = False
        for place, task in enumerate(self.tasks):
            if task is None:
                self.payloads[place] = b""
        self.payload = b"".join(self.payloads)
        self.commands = len(self.payloads)
        return (self,) if self.payload else ()


def _wake(
    payloads: list[bytes], tasks: list[trio.lowlevel.Task | None], result: bytes | RequestError
) -> None:
    """Have each task go on with what became of its SET."""
    reschedule = trio.lowlevel.reschedule
    if result == resp.OK * len(tasks):  # as nearly always
        for task in tasks:
            if task is not None:
                reschedule(task, _DONE)
        return
    sent = [task for task, payload in zip(tasks, payloads, strict=True) if payload]
    replies = result.splitlines(keepends=True) if isinstance(result, bytes) else []
    error = _OTHERS if isinstance(result, bytes) else result
    cut = len(replies) == len(sent)
    for place, task in enumerate(sent):
        if task is not None:  # an error that is raised is changed by that, so each gets its own
            reschedule(task, Reply(replies[place]) if cut else Error(copy(error)))


class Gathering:
    """Has tasks wait for what becomes of their SETs.

    Args:
        member: where they go.
        request_bytes: the longest request that it takes.
    """

    def __init__(self, member: Member, request_bytes: int) -> None:
        self._member = member
        self._most = min(AT_ONCE_BYTES, request_bytes)
        self._running = False
        self._full: list[Gathered] = []
        self._gathered = Gathered()
        self._room = 0
        self._begun = trio.lowlevel.ParkingLot()
        self._wait = waiting(_DONE)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Never:
        """Submit after each turn of the loop what has gathered in it, until cancelled."""
        self._running, self._room = True, self._most
        task_status.started()
        try:
            while True:
                await self._begun.park()
                self._submit()
        finally:
            self._submit()
            self._running, self._room = False, 0

    def send(self, key: bytes, value: bytes) -> Awaitable[bytes]:
        """Have ``SET key value`` done, and return the reply; it must be awaited at once.

        Until then Ctrl-C is to be kept away, as for `waits.waiting`. It is no coroutine function:
        each frame of one costs its callers twice a call.

        Raises:
            RequestError: there is no reply.
        """
        gathered, size = self._gathered, len(key) + len(value) + resp.SET_FRAME_BYTES
        place = len(gathered.tasks)
        if size > self._room or place == RUN_COMMANDS:
            if size > self._most or not self._running:
                return self._member.command(resp.encode_set(key, value), RESP3)
            self._full.append(gathered)
            self._gathered = gathered = Gathered()
            self._room, place = self._most, 0
        wait = self._wait(gathered, key, value)
        if not place:
            self._begun.unpark()
        self._room -= size
        return wait

    def _submit(self) -> None:
        """Submit what has gathered."""
        gathered = [*self._full, self._gathered]
        self._full, self._gathered, self._room = [], Gathered(), self._most
        if requests := [request for each in gathered for request in each.remaining()]:
            self._member.submit_all(requests)
