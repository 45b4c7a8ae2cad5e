"""Ctrl-C while a task is about to wait for a descriptor."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from quorate.ready import forget, whenever_readable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator


@pytest.fixture
def file() -> Generator[int]:
    made = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    yield made
    os.close(made)


@pytest.fixture(autouse=True)
def usual_ctrl_c() -> Generator[None]:
    """As in a program of its own: where Spark has been Ctrl-C is Spark's, and trio leaves it so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_before_it_waits_it_leaves_nothing_behind(
    file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait, interrupted = trio.lowlevel.wait_task_rescheduled, list[bool]()

    def interrupt(abort: Callable[..., trio.lowlevel.Abort]) -> Awaitable[object]:
        signal.raise_signal(signal.SIGINT)
        return wait(abort)

    async def main() -> None:
        try:
            with monkeypatch.context() as patch:
                patch.setattr(trio.lowlevel, "wait_task_rescheduled", interrupt)
                await whenever_readable(file, lambda: os.eventfd_read(file))
        except KeyboardInterrupt:
            interrupted.append(True)
        forget(file)
        await trio.testing.wait_all_tasks_blocked()

    trio.run(main)
    assert interrupted == [True]
