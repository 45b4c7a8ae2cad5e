"""A member that lacks log takes it no faster than it may, and gets there however much comes."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

import pytest
import trio

from quorate.node.applier import Applier
from quorate.node.backlog import Backlog

if TYPE_CHECKING:
    from trio.testing import MockClock

SPEED = 1_000_000
PIECE = 100_000


def backlog() -> Backlog:
    return Backlog(mock.create_autospec(Applier, instance=True, service=None), SPEED)


async def fetch(one: Backlog, distance: int, *, written: int = 0) -> float:
    """Come to a distance of 0 piece by piece; give how long it took."""
    began = trio.current_time()
    while distance > 0:
        await one.rest(distance)
        distance += written - PIECE
    await one.rest(distance)
    return trio.current_time() - began


async def test_the_distance_shrinks_by_so_much_a_second(autojump_clock: MockClock) -> None:
    with (one := backlog()).fetching():
        assert await fetch(one, 10 * SPEED) == pytest.approx(10, abs=0.06)


async def test_what_the_leader_writes_meanwhile_is_free(autojump_clock: MockClock) -> None:
    with (one := backlog()).fetching():
        assert await fetch(one, 4 * SPEED, written=PIECE // 2) == pytest.approx(4, abs=0.06)


async def test_who_was_held_up_goes_on_faster_but_not_for_long(autojump_clock: MockClock) -> None:
    with (one := backlog()).fetching():
        await fetch(one, 3 * SPEED)
        await trio.sleep(60)
        assert await fetch(one, 3 * SPEED) == pytest.approx(3 - 0.25, abs=0.06)
    with one.fetching():
        assert await fetch(one, 3 * SPEED) == pytest.approx(3, abs=0.06)


async def test_a_rest_that_would_be_short_is_put_off(autojump_clock: MockClock) -> None:
    one = backlog()
    await fetch(one, 2 * SPEED)
    now = one.rests_until = trio.current_time()
    await one.rest(-PIECE // 10)
    assert trio.current_time() == one.rests_until == now
    await one.rest(-PIECE)
    assert trio.current_time() == one.rests_until == pytest.approx(now + 0.1)
