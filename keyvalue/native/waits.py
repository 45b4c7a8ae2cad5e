"""Tasks that wait for what becomes of their SETs, in C (``waits.c``).

`trio.lowlevel.wait_task_rescheduled` is two coroutines, and an object that tells trio what to call
if the task is cancelled: with hundreds of tasks that wait and go on in each turn of the loop, that
and what calls it are nearly half of what a wait costs. Here that object is made once, with a
callable that is told who waits, and both serve one task after the other.

So the same object is yielded to trio many times, of which trio's documentation says nothing. It is
looked at first: where it is not what it was, or where nothing was compiled, each wait is trio's.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import trio

from ..protocol.resp import encode_set

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any, TypeAlias

    from outcome import Outcome

    RaiseCancel: TypeAlias = Callable[[], Any]
    Withdraw: TypeAlias = Callable[[RaiseCancel], trio.lowlevel.Abort]

__all__ = ["NATIVE", "Waited", "Waits", "waiting"]

if TYPE_CHECKING:

    class Waits:
        """How tasks wait, in C.

        Args:
            pause: returns what a task yields to trio, for what trio is to call.
            current_task: returns the task that runs.
            done: an outcome that needs no `unwrap`.
            reply: what it stands for.
        """

        def __init__(
            self,
            pause: Callable[[Withdraw], object],
            current_task: Callable[[], trio.lowlevel.Task],
            done: Outcome[bytes],
            reply: bytes,
        ) -> None: ...

        def wait(self, waited: Waited, key: bytes, value: bytes) -> Awaitable[bytes]:
            """See :func:`waiting`."""
            ...

else:
    try:
        from ._waits import Waits
    except ImportError:
        Waits = None

NATIVE: Final = bool(Waits)
"""Whether it was compiled."""


class Waited(Protocol):
    """What several tasks wait for.

    Attributes:
        payloads: the SET of each, encoded.
        tasks: each at the place of its payload. Who has its outcome takes it out of there, or
            keeps in mind otherwise that it is not to be rescheduled again.
    """

    payloads: list[bytes]
    tasks: list[trio.lowlevel.Task | None]

    def withdraw(self, place: int, raise_cancel: RaiseCancel, /) -> trio.lowlevel.Abort:
        """The task at a place is cancelled."""
        ...


def waiting(done: Outcome[bytes]) -> Callable[[Waited, bytes, bytes], Awaitable[bytes]]:
    """Return a function that has the present task wait for a SET.

    It takes what the task is to wait for, the key and the value; puts the SET and the task in their
    places; and returns what must be awaited at once. That returns, or raises, the outcome with
    which the task is rescheduled. Who calls it must be protected from Ctrl-C until then
    (`trio.lowlevel.enable_ki_protection`), or the task may be rescheduled that never waited.

    Args:
        done: the usual outcome.
    """
    if not NATIVE or not _can_repeat():
        return _wait
    return Waits(_pause, trio.lowlevel.current_task, done, done.unwrap()).wait


def _wait(waited: Waited, key: bytes, value: bytes) -> Awaitable[bytes]:
    """Have the present task wait, as trio does."""
    task, withdraw = trio.lowlevel.current_task(), partial(waited.withdraw, len(waited.tasks))
    waited.payloads.append(encode_set(key, value))
    waited.tasks.append(task)
    return trio.lowlevel.wait_task_rescheduled(withdraw)  # noqa: ASYNC105 - by who calls this


def _pause(withdraw: Withdraw) -> object:
    """Return what a task yields to trio to wait; `withdraw` is called if it is cancelled."""
    wait = trio.lowlevel.wait_task_rescheduled(withdraw)  # noqa: ASYNC105 - it is taken apart
    try:
        return wait.send(None)
    finally:
        wait.close()


def _can_repeat() -> bool:
    """Whether what is yielded is but a frame around the callable."""

    def withdraw(_raise: RaiseCancel) -> trio.lowlevel.Abort:
        return trio.lowlevel.Abort.SUCCEEDED

    try:
        yielded = _pause(withdraw)
    except StopIteration:
        return False
    return getattr(yielded, "__dict__", None) == {"abort_func": withdraw}
