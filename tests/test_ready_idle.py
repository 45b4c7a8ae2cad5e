"""Callbacks that say that nothing is likely to follow: by them nobody stays awake."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import trio

from quorate import ready
from quorate.ready import IDLE, stay_awake, whenever_readable

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.parametrize("busy", [False, True])
async def test_it_does_not_stay_for_a_callback_that_says_that_it_is_idle(
    monkeypatch: pytest.MonkeyPatch, *, busy: bool
) -> None:
    bell, waits, wait = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC), 0, ready.Lookout.wait

    def counted(self: ready.Lookout, seconds: float) -> Sequence[tuple[int, int]]:
        nonlocal waits
        waits += 1
        return wait(self, seconds)

    def heed() -> object:
        os.eventfd_read(bell)
        if busy:
            stay_awake()
        return IDLE

    monkeypatch.setattr(ready.Lookout, "wait", counted)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(whenever_readable, bell, heed)
            for _ in range(5):
                os.eventfd_write(bell, 1)
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    finally:
        os.close(bell)
    assert bool(waits) == busy


async def test_to_stay_awake_where_nothing_is_waited_for_does_nothing() -> None:
    stay_awake()
