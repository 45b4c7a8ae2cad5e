"""Calls back for descriptors that are readable, as `trio.lowlevel.wait_readable` in a loop would.

What a batch needs is a chain of such calls: clients, reports of followers, the word that a write is
durable. Each pass of trio's loop costs more than most of them, and so does it to wake a task. So
one system task has all these descriptors in an epoll of its own and, once it is woken, goes on for
as long as nothing else can: no task is runnable, nothing has come that trio waits for, no deadline
is due. Then it returns to trio, which sees no difference.

A callback must not block, and has to be done soon: it is everybody's time. It is called again for
what it leaves.
"""

from __future__ import annotations

import contextlib
import select
from typing import TYPE_CHECKING, Final

import outcome
import trio

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Never

_MOST_WAIT_SECONDS: Final = 0.01
"""For a deadline that a callback has set, of which nobody tells."""


async def whenever_readable(file: int, heed: Callable[[], object]) -> Never:
    """Call `heed` whenever a descriptor is readable, until cancelled.

    Raises:
        BaseException: what `heed` raised; it is not called again.
        trio.ClosedResourceError: the descriptor was given to `forget`.
    """
    try:
        hub = _running.get()
    except LookupError:
        hub = Hub()
        _running.set(hub)
        trio.lowlevel.spawn_system_task(hub.run, name="quorate.ready")
    await hub.serve(file, heed)
    raise AssertionError("it ends by errors alone")  # pragma: no cover - never reached


def forget(file: int) -> None:
    """A descriptor is about to be closed, whether somebody waits for it or not."""
    with contextlib.suppress(LookupError):
        _running.get().forget(file)


class Others(trio.abc.Instrument):
    """Sees which tasks can go on, and when trio has to look again.

    Attributes:
        runnable: tasks whose turn is to come.
        due: the next deadline, on trio's clock, as it was when trio last waited.
    """

    def __init__(self) -> None:
        self.runnable = set[trio.lowlevel.Task]()
        self.due = 0.0

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        """See `trio.abc.Instrument`."""
        self.runnable.add(task)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """See `trio.abc.Instrument`."""
        self.runnable.discard(task)

    def before_io_wait(self, timeout: float) -> None:
        """See `trio.abc.Instrument`."""
        self.due = trio.current_time() + timeout


class Hub:
    """The task of one run of trio."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._heeded: dict[int, tuple[Callable[[], object], trio.lowlevel.Task]] = {}
        self._others: Others | None = None
        self._all = select.poll()
        self._all.register(self._epoll, select.POLLIN)
        if (epoll := epoll_of_trio()) is not None:
            self._all.register(epoll, select.POLLIN)
            self._others = Others()
            trio.lowlevel.add_instrument(self._others)

    async def serve(self, file: int, heed: Callable[[], object]) -> None:
        """Have a callback called; see `whenever_readable`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        assert file not in self._heeded, f"descriptor {file} is waited for already"
        self._epoll.register(file, select.EPOLLIN)
        self._heeded[file] = heed, trio.lowlevel.current_task()

        def abort(_raise: Callable[[], object]) -> trio.lowlevel.Abort:
            self._drop(file)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def forget(self, file: int) -> None:
        """Wake who waits for a descriptor."""
        if file in self._heeded:
            self._end(file, trio.ClosedResourceError("another task closed this"))

    def _end(self, file: int, error: BaseException) -> None:
        trio.lowlevel.reschedule(self._drop(file), outcome.Error(error))

    def _drop(self, file: int) -> trio.lowlevel.Task:
        self._epoll.unregister(file)
        return self._heeded.pop(file)[1]

    async def run(self) -> Never:
        """Call back until the run of trio ends."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._epoll)
                self._heed_all()
                while self._others and self._is_next(self._others):
                    self._heed_all()
        finally:
            self._epoll.close()

    def _heed_all(self) -> None:
        """Call back for all that is readable now."""
        for file, _ in self._epoll.poll(0):
            if (found := self._heeded.get(file)) is not None:  # else dropped a moment ago
                try:
                    found[0]()
                except BaseException as error:
                    if self._heeded.get(file) is not found:
                        raise  # nobody waits any more
                    self._end(file, error)

    def _is_next(self, others: Others) -> bool:
        """Wait for more; false as soon as trio has something to do."""
        if others.runnable:
            return False
        wait = others.due - trio.current_time()
        if wait <= 0:
            return False
        found = self._all.poll(1000 * min(wait, _MOST_WAIT_SECONDS))
        return len(found) == 1 and found[0][0] == self._epoll.fileno()


_running: Final[trio.lowlevel.RunVar[Hub]] = trio.lowlevel.RunVar("quorate.ready")


def epoll_of_trio() -> select.epoll | None:
    """Return what trio waits on; None if it is not where it is known to be.

    There is no public way to ask. Without it there is a pass of trio's loop each time, as usual.
    """
    try:
        from trio._core._run import GLOBAL_RUN_CONTEXT  # noqa: PLC0415

        epoll = getattr(GLOBAL_RUN_CONTEXT.runner.io_manager, "_epoll", None)
    except (ImportError, AttributeError):
        return None
    return epoll if isinstance(epoll, select.epoll) else None
