"""Calls back for descriptors that are readable, as `trio.lowlevel.wait_readable` in a loop would.

What a batch needs is a chain of such calls: clients, reports of followers, the word that a write is
durable. Each pass of trio's loop costs more than most of them, and so does waking a task. So one
system task has all these descriptors in an epoll of its own and, once it is woken, goes on for as
much as 50 ms if nothing else can: no task is runnable, nothing has come that trio waits for, no
deadline is due. To know that it looks into trio's loop. Meanwhile it waits on a second epoll, in
which there is also the one that trio waits on; the first is in trio's, and they can't be in each
other.

A callback must not block, and has to be done soon: it is everybody's time. It is called again for
what it leaves. It runs in the system task: Ctrl-C does not interrupt it. One that returns `IDLE`
says that nothing is likely to follow soon, since only a heartbeat came. After such ones alone the
task does not go on, nor stay awake: that would cost several times more than to hear them.
"""

from __future__ import annotations

import contextlib
import select
import time
from typing import TYPE_CHECKING, Final

import outcome
import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Sized
    from typing import Never

    def _look_out(epoll: int, seconds: float) -> tuple[list[tuple[int, int]], float]:
        """Return what is readable of an epoll, once something is or the time is over.

        And how many seconds it had the processor, or others whom it gave way to.

        Raises:
            OSError: it is no epoll.
            ValueError: it is not to be 0 to 1 second.
        """
        ...

    look_out: Callable[[int, float], tuple[list[tuple[int, int]], float]] | None = _look_out
else:
    try:
        from ._ready import look_out
    except ImportError:
        look_out = None

NATIVE: Final = look_out is not None
"""Whether it was compiled."""

_STAY_SECONDS: Final = 0.05
"""So long it goes on before trio has a look: nobody tells of a deadline that a callback has set."""

_AWAKE_SECONDS: Final = 0.0003
"""So long a wait is awake: a report, or the word of a disk that is fast, has come by then."""

_LATE_SECONDS: Final = 0.001
"""Who gives way and has the processor back later than that shares it with somebody busy."""

_LATE_SHARE: Final = 1 / 30
"""Of all time so much may be lost by that,"""

_LATE_CREDIT: Final = 0.002
"""and so much besides, at one time;"""

_LATE_MOST: Final = 0.02
"""what took longer, such as a stop of the process, counts as that."""


IDLE: Final = object()
"""Returned by a callback: nothing is likely to follow."""


async def whenever_readable(file: int, heed: Callable[[], object]) -> Never:
    """Call `heed` whenever a descriptor is readable, until cancelled.

    A deadline of a cancel scope that `heed` itself sets may be heeded up to 50 ms late.

    Raises:
        BaseException: what `heed` raised; it is not called again.
        OSError: the descriptor can't be waited for.
        trio.ClosedResourceError: it was given to `forget`.
    """
    try:
        hub = _running.get()
    except LookupError:
        hub = Hub()
        trio.lowlevel.spawn_system_task(hub.run, name="quorate.ready")
        _running.set(hub)
    await hub.serve(file, heed)
    raise AssertionError("it ends by errors alone")  # pragma: no cover - never reached


def forget(file: int) -> None:
    """Wake who waits for a descriptor, if anybody; to be called before it is closed."""
    with contextlib.suppress(LookupError):
        _running.get().forget(file)


def stay_awake() -> None:
    """Something is likely to follow soon, although a callback says that it is idle."""
    try:
        hub = _running.get()
    except LookupError:  # no descriptors are waited for
        return
    hub.busy_until = time.perf_counter() + _STAY_SECONDS


class Lookout:
    """Waits on an epoll, at first without going to sleep.

    A process that sleeps gets its turn late when it is woken, and a batch has five such wake-ups
    one after the other. Awake it looks again and again, and gives way in between to whoever can
    run, of its control group at least. Beside a process that never rests it gets the processor back
    only when that one's slice is over, after milliseconds. What is lost by that is bounded: waits
    sleep at once then, for a while.

    Args:
        epoll: to wait on.
    """

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self._sleeps_until = 0.0

    def wait(self, seconds: float) -> Sequence[tuple[int, int]]:
        """Return what is readable, once something is or the time is over."""
        began = time.perf_counter()
        if look_out is None or began < self._sleeps_until:
            return self._epoll.poll(seconds)
        found, took = look_out(self._epoll.fileno(), min(seconds, _AWAKE_SECONDS))
        if took > _LATE_SECONDS:
            paid = max(self._sleeps_until, began - _LATE_CREDIT / _LATE_SHARE)
            self._sleeps_until = paid + min(took, _LATE_MOST) / _LATE_SHARE
        return found or self._epoll.poll(max(0.0, seconds - took))


class Passes(trio.abc.Instrument):
    """Sees the passes of trio's loop, as long as there are any.

    Args:
        runnable: the tasks whose turn comes in the next pass.

    Attributes:
        alone: a single task goes on in this pass, or those too whose deadline has come.
        due: the next deadline, on trio's clock, as it was when trio last waited.
    """

    def __init__(self, runnable: Sized) -> None:
        self.runnable = runnable
        self.alone = False
        self.due = 0.0

    def before_io_wait(self, timeout: float) -> None:
        """See `trio.abc.Instrument`."""
        self.due = trio.current_time() + timeout

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002 - trio's
        """See `trio.abc.Instrument`."""
        self.alone = len(self.runnable) == 1


class Hub:
    """The task of one run of trio, and what it calls back."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._heeded: dict[int, tuple[Callable[[], object], trio.lowlevel.Task]] = {}
        self._called = -1  # the descriptor whose callback is being called,
        self._result: outcome.Outcome[object] | None = None  # and what its waiter is to get for it
        self._passes: Passes | None = None
        self._both = select.epoll()  # the same descriptors, and what trio waits on
        self._lookout = Lookout(self._both)
        self.busy_until = 0.0
        self._now = trio.lowlevel.current_clock().current_time
        if (loop := look_into_trio()) is not None:
            epoll, runnable = loop
            self._both.register(epoll, select.EPOLLIN)
            self._passes = Passes(runnable)
            trio.lowlevel.add_instrument(self._passes)

    # Ctrl-C before it waits would leave a task here that may be rescheduled though it never waited.
    @trio.lowlevel.enable_ki_protection
    async def serve(self, file: int, heed: Callable[[], object]) -> None:
        """Have a callback called; see `whenever_readable`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        assert file not in self._heeded, f"descriptor {file} is waited for already"
        try:
            for epoll in (self._epoll, self._both):
                epoll.register(file, select.EPOLLIN)
        except OSError:  # the system has room for so many
            self._unregister(file)
            raise
        self._heeded[file] = heed, trio.lowlevel.current_task()

        def abort(cancel: Callable[[], Never]) -> trio.lowlevel.Abort:
            if file == self._called:
                self._end(file, outcome.capture(cancel))
                return trio.lowlevel.Abort.FAILED
            self._drop(file)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def forget(self, file: int) -> None:
        """Wake who waits for a descriptor."""
        if file in self._heeded:
            self._end(file, outcome.Error(trio.ClosedResourceError("another task closed this")))

    def _end(self, file: int, result: outcome.Outcome[object]) -> None:
        """Wake who waits for a descriptor; if that is being called back, then after that."""
        if file == self._called:
            self._result = result
            self._unregister(file)
        else:
            trio.lowlevel.reschedule(self._drop(file), result)

    def _drop(self, file: int) -> trio.lowlevel.Task:
        self._unregister(file)
        return self._heeded.pop(file)[1]

    def _unregister(self, file: int) -> None:
        for epoll in (self._epoll, self._both):
            with contextlib.suppress(OSError, ValueError):  # closed already, or the whole run ends
                epoll.unregister(file)

    async def run(self) -> Never:
        """Call back until the run of trio ends."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._epoll)
                passes, ends = self._passes, time.perf_counter() + _STAY_SECONDS
                goes_on = self._heed_all(self._epoll.poll(0))
                while goes_on and passes is not None and passes.alone and not passes.runnable:
                    wait = min(ends - time.perf_counter(), passes.due - self._now())
                    if time.perf_counter() > self.busy_until:
                        break
                    goes_on = wait > 0 and self._heed_all(self._lookout.wait(wait))
        finally:
            self._epoll.close()
            self._both.close()

    def _heed_all(self, readable: Sequence[tuple[int, int]]) -> bool:
        """Call back for what is readable; false if that is nothing, or also something of trio's."""
        ours, busy = len(readable) > 0, False
        for file, _ in readable:
            if (found := self._heeded.get(file)) is None:  # trio's, or dropped a moment ago
                ours = False
            else:
                self._called = file
                try:
                    busy |= found[0]() is not IDLE
                except BaseException as error:  # noqa: BLE001 - for who waits
                    self._result = outcome.Error(error)
                self._called = -1
                if (result := self._result) is not None:
                    self._result = None
                    self._end(file, result)
        if busy:
            self.busy_until = time.perf_counter() + _STAY_SECONDS
        return ours


_running: Final[trio.lowlevel.RunVar[Hub]] = trio.lowlevel.RunVar("quorate.ready")


def look_into_trio() -> tuple[select.epoll, Sized] | None:
    """Return what trio waits on, and its tasks whose turn is to come.

    There is no public way to know the first, and that to the second costs more than all that is
    done here. None if they are not where they are known to be, or if trio is the guest of another
    loop, which would have to wait: then there is a pass of trio's loop each time, as usual.
    """
    try:
        from trio._core._run import GLOBAL_RUN_CONTEXT  # noqa: PLC0415

        runner = GLOBAL_RUN_CONTEXT.runner
        guest, epoll = runner.is_guest, getattr(runner.io_manager, "_epoll", None)
        runnable = runner.runq
    except (ImportError, AttributeError):
        return None
    return (epoll, runnable) if isinstance(epoll, select.epoll) and not guest else None
