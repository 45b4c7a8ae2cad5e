"""The log's time follows the leader's clock, and neither goes back nor stands still."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from quorate.node.leader.log_clock import LogClock

if TYPE_CHECKING:
    import pytest
    from trio.testing import MockClock

NOW_MS = 1_000_000


class Clock:
    """A clock that may be wrong."""

    def __init__(self) -> None:
        self.wrong_ms = 0

    def __call__(self) -> int:
        return NOW_MS + self.wrong_ms + round(trio.current_time() * 1000)


async def test_it_is_the_clocks_time(autojump_clock: MockClock) -> None:
    time = LogClock(Clock(), NOW_MS - 500)
    assert time.now_ms() == NOW_MS
    await trio.sleep(1.5)
    assert time.now_ms() == NOW_MS + 1500


async def test_behind_the_logs_time_it_goes_on_slowly_until_the_clock_has_caught_up(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        time = LogClock(Clock(), NOW_MS + 10_000)
    assert "the clock is 10 s behind the log's time" in caplog.text
    assert time.now_ms() == NOW_MS + 10_000
    seen: list[int] = []
    for _ in range(1000):  # asked often, it loses nothing by rounding
        await trio.sleep(0.01)
        seen.append(time.now_ms())
    assert seen == sorted(seen)
    assert seen[-1] in range(NOW_MS + 18_990, NOW_MS + 19_001)
    await trio.sleep(90)
    assert time.now_ms() == NOW_MS + 100_000
    await trio.sleep(1)
    assert time.now_ms() == NOW_MS + 101_000


async def test_it_does_not_go_back_with_the_clock(autojump_clock: MockClock) -> None:
    clock = Clock()
    time = LogClock(clock, 0)
    await trio.sleep(1)
    assert time.now_ms() == NOW_MS + 1000
    clock.wrong_ms = -3_600_000
    assert time.now_ms() == NOW_MS + 1000
    await trio.sleep(10)
    assert time.now_ms() == NOW_MS + 10_000
    clock.wrong_ms = 0
    assert time.now_ms() == NOW_MS + 11_000
