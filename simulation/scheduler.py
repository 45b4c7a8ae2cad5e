"""Virtual time and a seeded scheduler: with them a run is a function of its seed.

trio runs the tasks that are ready in an order of its own choosing, and lets a mock clock jump to
the next deadline when every task waits. With that order drawn from a seeded generator, and with no
other source of chance, the same seed gives the same run: across processes, and whatever
``PYTHONHASHSEED`` is. trio has the switch for it (its Hypothesis plugin turns it on), but under
private names. They are used in this module and nowhere else, and a canary test fails loudly when a
release of trio means something else by them.

What would break it, and must therefore not be in a simulated program: a real thread (a task that
waits for one looks idle, and the clock jumps on), the wall clock, the global random generator, and
the order of a set of objects or of text.
"""

from __future__ import annotations

import contextlib
import functools
import random
from typing import TYPE_CHECKING, TypeVar

import trio
from trio._core import _run as trio_run  # pyright: ignore[reportPrivateUsage]
from trio.testing import MockClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Mapping
    from typing import TypeVarTuple, Unpack

    P = TypeVarTuple("P")

T = TypeVar("T")


def run(main: Callable[[Unpack[P]], Awaitable[T]], *args: *P, seed: object) -> T:
    """Run an async function from its beginning to its end in virtual time; return what it returns.

    Args:
        main: the function, called with `args`.
        args: its arguments.
        seed: of the scheduler; its text counts.
    """
    with seeded_scheduler(seed):
        clock = MockClock(autojump_threshold=0.0)
        return trio.run(functools.partial(main, *args), clock=clock)


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
