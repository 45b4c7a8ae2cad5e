"""A member that lacks log takes it no faster than it may, and gets there however much comes."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

import pytest
import trio

from quorate.node.follower.catchup_rate import CatchupRate
from quorate.node.state_machine.applier import Applier

if TYPE_CHECKING:
    from trio.testing import MockClock

SPEED = 1_000_000
PIECE = 100_000


def backlog() -> CatchupRate:
    return CatchupRate(mock.create_autospec(Applier, instance=True, service=None), SPEED)


async def fetch(
    one: CatchupRate, distance: int, *, begin: int = 0, written: int = 0, each: int = 1
) -> float:
    """Come to a distance of 0 piece by piece; give how long it took.

    Args:
        begin: where that is;
        written: bytes that the leader writes for each piece,
        each: and tells of once in so many pieces.
    """
    began, position, end = trio.current_time(), begin, begin + distance
    told, pieces = end, 0
    while position < end:
        await one.throttle(position, told)
        position, end, pieces = position + PIECE, end + written, pieces + 1
        if not pieces % each:
            told = end
    await one.throttle(position, end)
    return trio.current_time() - began


async def test_the_distance_shrinks_by_so_much_a_second(autojump_clock: MockClock) -> None:
    with (one := backlog()).active():
        assert await fetch(one, 10 * SPEED) == pytest.approx(10, abs=0.06)


async def test_what_the_leader_writes_meanwhile_is_free(autojump_clock: MockClock) -> None:
    for each in (1, 50):  # heard of with each piece, or once in five seconds
        with (one := backlog()).active():
            took = await fetch(one, 20 * SPEED, written=PIECE // 2, each=each)
        assert took == pytest.approx(20, rel=0.15)


async def test_who_was_held_up_goes_on_faster_but_not_for_long(autojump_clock: MockClock) -> None:
    with (one := backlog()).active():
        await fetch(one, 3 * SPEED)
        await trio.sleep(60)
        took = await fetch(one, 3 * SPEED, begin=3 * SPEED)
        assert took == pytest.approx(3 - 0.25, abs=0.06)
    await trio.sleep(60)
    with one.active():
        assert await fetch(one, 3 * SPEED) == pytest.approx(3, abs=0.06)


async def test_who_is_slow_by_himself_is_not_slowed_down(autojump_clock: MockClock) -> None:
    """A link twice as fast as is allowed, and a leader that writes as much as is allowed."""
    position, end, began = 0, 20 * SPEED, trio.current_time()
    with (one := backlog()).active():
        while position < end:
            await one.throttle(position, end)
            before = trio.current_time()
            await trio.sleep(0.5)
            position += SPEED
            end = 20 * SPEED + round((trio.current_time() - began) * SPEED)
            assert trio.current_time() - before < 1
            assert trio.current_time() - began < 60, "it never gets there"


async def test_a_debt_stays_when_another_stream_begins(autojump_clock: MockClock) -> None:
    one = backlog()
    with one.active():
        await one.throttle(0, 10 * SPEED)
        with trio.move_on_after(1):
            await one.throttle(5 * SPEED, 10 * SPEED)
    with one.active(), one.active():
        assert await fetch(one, SPEED) == pytest.approx(4 + 1, abs=0.06)


async def test_a_rest_that_would_be_short_is_put_off(autojump_clock: MockClock) -> None:
    with (one := backlog()).active():
        now = trio.current_time()
        await one.throttle(0, SPEED)
        await one.throttle(PIECE // 3, SPEED)
        assert trio.current_time() == now
        await one.throttle(PIECE, SPEED)
        assert trio.current_time() == one.paused_until == pytest.approx(now + 0.1)
