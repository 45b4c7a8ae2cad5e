"""Joins the short commands of many tasks into one request.

A request costs the client, the member and the log about the same whether it carries one command or
a hundred. A task that is alone must not wait for company, though, so there is no timer:

- While a worker is free, a command is sent at once, with those of the same turn of the event loop.
- While all workers are busy, commands gather. The next free worker takes what has gathered.

So a batch is as large as the cluster is slow, and a lone task has the latency of its request.

Cancellation
    The worker sends the batch, not the tasks. A task that is cancelled drops its wait: its command
    is left out if it was not sent yet, and else its outcome is unknown. The other tasks of the
    batch notice nothing.

Errors
    A command that fails is answered by its own error. If the whole batch is refused (one command of
    it may not be run by this user, or together they are too long), nothing was done, and each half
    of it is sent by itself. A command that failed since it had to share the bounds of one request
    with the others is sent alone.
"""

from __future__ import annotations

from collections import deque
from copy import copy
from typing import TYPE_CHECKING, Final, Never

import anyio
import anyio.lowlevel

from ..errors import (
    KeyValueError,
    OversizedRequestError,
    RefusedError,
    RequestError,
    UnknownOutcomeError,
    WireError,
)
from .lanes import CLOSED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from anyio.abc import TaskGroup

__all__ = ["BATCH_BYTES", "BATCH_COMMANDS", "Batches", "cut_untrusted"]

BATCH_COMMANDS: Final = 128
"""Their replies, errors among them, must stay below what a session keeps of one request (16 KiB).
Fewer, and many tasks need more requests."""

BATCH_BYTES: Final = 100 << 10
"""Of commands. Smaller, and larger values are sent alone. Larger, and a batch is a request that
takes long on a slow link, with all its tasks waiting."""

_SHARED_BOUNDS: Final = (b"-ERR too much work in one request", b"-ERR replies may have ")
"""Errors of a command that another command of the same request has left no room. As those with
long replies only read, none of them has changed anything."""

_NOT_HERE: Final = b"-NOTHERE "


class _Waiter:
    """A command, and the task that waits for its reply.

    Attributes:
        payload: the command, encoded; None once its task was cancelled before it was sent.
        result: the reply, or the error.
    """

    __slots__ = ("_event", "payload", "result")

    def __init__(self, payload: bytes) -> None:
        self.payload: bytes | None = payload
        self.result: bytes | Exception = b""
        self._event = anyio.Event()

    async def wait(self) -> bytes:
        """Wait for the reply.

        Raises:
            Exception: there is none.
        """
        try:
            await self._event.wait()
        except BaseException:
            self.payload = None
            raise
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def finish(self, result: bytes | Exception) -> None:
        """Wake the task, unless it was woken before."""
        if self._event.is_set():
            return
        # Raising an exception changes it (its traceback), so each task gets a copy.
        self.result = result if isinstance(result, bytes) else copy(result)
        self._event.set()


class Batches:
    """Gathers the commands of tasks, and sends them in batches.

    Args:
        send: executes encoded commands and returns their replies, joined. `KeyValueError` and
            `OversizedRequestError` mean that none of them was executed, and none will be.
        workers: batches that may be under way at the same time.
        cut: raised for commands that are under way when the client is closed.
    """

    def __init__(
        self, send: Callable[[bytes], Awaitable[bytes]], workers: int, cut: RequestError
    ) -> None:
        self._send = send
        self._cut = cut
        self._workers = workers
        self._gathered: deque[_Waiter] = deque()
        self._free: list[anyio.Event] = []
        self._open = True

    def start(self, tasks: TaskGroup) -> None:
        """Start the workers; they end when their tasks are cancelled."""
        for _ in range(self._workers):
            tasks.start_soon(self._work)

    async def execute(self, payload: bytes) -> bytes:
        """Execute a command within a batch; return its reply.

        Args:
            payload: one encoded command, of `BATCH_BYTES` at most, whose reply is no list.

        Raises:
            RefusedError: the client is closed; nothing was done.
            RequestError: there is no reply.
        """
        await anyio.lowlevel.checkpoint_if_cancelled()  # or a free worker may send it at once
        if not self._open:
            raise RefusedError(CLOSED)
        waiter = _Waiter(payload)
        if not self._gathered:
            self._wake()
        self._gathered.append(waiter)
        return await waiter.wait()

    def close(self) -> None:
        """Answer the commands that are not sent yet with an error, and take no more."""
        self._open = False
        for waiter in self._gathered:
            waiter.finish(RefusedError(CLOSED))
        self._gathered.clear()

    def _wake(self) -> None:
        if self._free:
            self._free.pop().set()

    async def _work(self) -> Never:
        while True:
            while not self._gathered:
                event = anyio.Event()
                self._free.append(event)
                await event.wait()
            batch = self._take()
            if self._gathered:
                self._wake()
            if batch:
                await self._run(batch)

    def _take(self) -> list[_Waiter]:
        """Take the next batch out of what has gathered."""
        batch, size = list[_Waiter](), 0
        while self._gathered and len(batch) < BATCH_COMMANDS:
            payload = self._gathered[0].payload
            if payload is not None:
                size += len(payload)
                if batch and size > BATCH_BYTES:
                    break
                batch.append(self._gathered[0])
            self._gathered.popleft()
        return batch

    async def _run(self, batch: Sequence[_Waiter]) -> None:
        """Send a batch, and hand out its replies."""
        rest = deque(batch)
        try:
            replies = await self._replies([waiter.payload or b"" for waiter in batch])
            for waiter, reply in zip(batch, replies, strict=True):
                payload = waiter.payload
                if payload is not None and len(batch) > 1 and reply.startswith(_SHARED_BOUNDS):
                    await self._run([waiter])
                else:
                    waiter.finish(reply)
                rest.popleft()
        except (KeyValueError, OversizedRequestError) as error:
            if len(batch) == 1:
                batch[0].finish(error)
            else:
                await self._run_halves(batch)
            rest.clear()
        except RequestError as error:
            while rest:
                rest.popleft().finish(error)
        finally:
            for waiter in rest:  # closed in the middle, or a bug
                waiter.finish(self._cut)

    async def _run_halves(self, batch: Sequence[_Waiter]) -> None:
        # One by one, a task that repeats a denied command would slow down a hundred others.
        half = (len(batch) + 1) // 2
        for some in (batch[:half], batch[half:]):
            # Some may have been cancelled by now, also while the first half was sent.
            waiting = [waiter for waiter in some if waiter.payload is not None]
            if waiting:
                await self._run(waiting)

    async def _replies(self, payloads: Sequence[bytes]) -> list[bytes]:
        """Send commands; return the reply to each.

        Raises:
            RequestError: there is no reply.
        """
        joined = await self._send(b"".join(payloads))
        if len(payloads) == 1:
            return [joined]
        try:
            replies = cut_untrusted(joined)
        except WireError as error:
            raise UnknownOutcomeError(f"the replies to a batch can't be read: {error}") from None
        if len(replies) == len(payloads):
            return replies
        # A slot of it has moved, and a request of a session is done as a whole or not at all.
        if len(replies) == 1 and joined.startswith(_NOT_HERE):
            return replies * len(payloads)
        raise UnknownOutcomeError(f"{len(payloads)} commands were sent, {len(replies)} answered")


_SIMPLE: Final = frozenset(b"+-:_,#(")
_BULK: Final = frozenset(b"$=")
_NULL: Final = b"-1"
_LONGEST_LENGTH: Final = 10
_END: Final = b"\r\n"


def cut_untrusted(replies: bytes) -> list[bytes]:
    """Cut joined replies apart; none of them may be a list.

    Raises:
        WireError: they are not whole, or one is a list.
    """
    found: list[bytes] = []
    begin, end = 0, len(replies)
    while begin < end:
        after = replies.find(_END, begin)
        if after < 0:
            raise WireError(f"a reply ends in the middle, after {end - begin} bytes")
        kind, length = replies[begin], replies[begin + 1 : after]
        if kind in _BULK:
            if length != _NULL:
                if not length.isdigit() or len(length) > _LONGEST_LENGTH:
                    raise WireError(f"a reply has the length {length[:20]!r}: expected a number")
                after += len(_END) + int(length)
        elif kind not in _SIMPLE:
            raise WireError(f"a reply of the kind {chr(kind)!r}: expected a single value")
        if replies[after : after + len(_END)] != _END:
            raise WireError(f"a reply of {length!r:.20} bytes is not whole")
        after += len(_END)
        found.append(replies[begin:after])
        begin = after
    return found
