"""Virtual time and a seeded scheduler: with them a run is a function of its seed.

trio runs ready tasks in an order of its own choosing. When every task waits, it asks its clock how
long to sleep; our clock jumps to the next deadline instead (:class:`Jumping`). The order of tasks
is drawn from a seeded generator, and there is no other source of chance. So one seed gives one run,
in every process and whatever ``PYTHONHASHSEED`` is. trio has a switch for this (its Hypothesis
plugin uses it), but under private names. Only this module uses them, and a canary test fails when a
release of trio changes them.

Some things would break this, so a simulated program must not use them: a real thread (a task that
waits for one looks idle, so the clock jumps), the wall clock, the randomness of the system or of
the module `random`, the order of a set, and the name of the host or the number of the process.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import random
from typing import TYPE_CHECKING, Final, TypeVar

import trio
from trio._core import _run as trio_run  # pyright: ignore[reportPrivateUsage]

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Mapping
    from typing import TypeVarTuple, Unpack

    P = TypeVarTuple("P")

T = TypeVar("T")

GARBAGE_THRESHOLDS: Final = (100_000, 50, 100)
"""Of Python's collector: a run makes much garbage, and little of it in cycles (measured: 15 %)."""

NEVER: Final = float("inf")
LOOK_SECONDS: Final = 0.01
MAX_IDLE_LOOKS: Final = 100


class Jumping(trio.abc.Clock):
    """Virtual time: it stands still while a task is ready, and then is the next deadline.

    That is what `trio.testing.MockClock` does with ``autojump_threshold=0``, without a look at the
    sockets of the machine before each jump. When nothing is due, ever, it ends the run.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._idle = 0

    def start_clock(self) -> None:
        """See `trio.abc.Clock`."""

    def current_time(self) -> float:
        """Return the virtual time, in seconds since the beginning."""
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Jump; trio asks this only when no task is ready.

        Raises:
            RuntimeError: all tasks wait for each other.
        """
        if deadline < NEVER:
            self.now, self._idle = max(self.now, deadline), 0
            return 0.0
        self._idle += 1  # trio wakes itself by a socket when a run begins and when it ends
        if self._idle > MAX_IDLE_LOOKS:
            raise RuntimeError("all tasks wait, and nothing will ever happen again")
        return LOOK_SECONDS

    def jump(self, seconds: float) -> None:
        """Let time go on."""
        self.now += seconds


def run(main: Callable[[Unpack[P]], Awaitable[T]], *args: *P, seed: object) -> T:
    """Run an async function from its beginning to its end in virtual time; return what it returns.

    Args:
        main: the function, called with `args`.
        args: its arguments.
        seed: of the scheduler; its text counts.

    Raises:
        trio.TrioInternalError: all tasks wait for each other, for ever.
    """
    with seeded_scheduler(seed), _seldom_collected():
        return trio.run(functools.partial(main, *args), clock=Jumping())


@contextlib.contextmanager
def _seldom_collected() -> Generator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextlib.contextmanager
def seeded_scheduler(seed: object) -> Generator[None]:
    """Have trio run ready tasks in an order that the seed gives, until the block ends.

    Also inside of a trio run, from its next step on.
    """
    wanted = {
        "_ALLOW_DETERMINISTIC_SCHEDULING": True,
        "_r": random.Random(f"{seed}/scheduler"),
    }
    before = {name: getattr(trio_run, name) for name in wanted}
    _set(wanted)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, object]) -> None:
    for name, value in values.items():
        setattr(trio_run, name, value)
