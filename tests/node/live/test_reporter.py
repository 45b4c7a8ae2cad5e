"""What a member reports of itself: rates and quantiles of the last seconds, and unknown figures."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from quorate.metrics import Histogram
from quorate.node.live.loop_delay import watch_loop
from quorate.node.live.reporter import _Quantiles
from quorate.simulation.ledger import open_ledgers

if TYPE_CHECKING:
    from pathlib import Path

    Clock = trio.testing.MockClock


async def test_quantiles_are_right_after_counts_were_set_to_zero(autojump_clock: Clock) -> None:
    histogram = Histogram()
    quantiles = _Quantiles({"sync": lambda: histogram})
    quantiles.look()
    histogram.observe(0.001, 900)
    await trio.sleep(1)
    quantiles.look()
    before = pytest.approx(quantiles.now()["sync"])
    histogram.clear()
    assert quantiles.now()["sync"] is None
    histogram.observe(0.001, 10)
    assert quantiles.now()["sync"] == before
    quantiles.look()
    assert quantiles.now()["sync"] == before
    for _ in range(20):
        await trio.sleep(1)
        histogram.observe(0.001)
        quantiles.look()
        assert quantiles.now()["sync"] == before


async def test_a_delay_that_nobody_measures_is_not_known(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with open_ledgers(tmp_path, 1) as world:
        await world.start()
        await world.settled()
        reporter = world.hosts[0].running.reporter
        assert reporter.status_now()["loop_delay"] is None
        counts = world.hosts[0].running.state.counts
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_loop, counts, 2.0)
            await trio.sleep(2)
            assert reporter.status_now()["loop_delay"] == 0.0
            nursery.cancel_scope.cancel()
        counts.delays.append(0.25)
        assert reporter.status_now()["loop_delay"] == 0.25


async def test_steps_of_elections_are_kept_for_those_that_ask_now_and_then(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with open_ledgers(tmp_path, 1) as world:
        await world.start()
        await world.settled()
        await trio.sleep(2)
        reporter = world.hosts[0].running.reporter
        first = reporter.recent(0)
        count = first["step_count"]
        assert count == len(first["steps"]) > 2
        assert first["steps"][-1]["after"] == "CLOSED"
        assert first["steps"][-1]["reason"]
        assert first["steps"][0]["ago"] > first["steps"][-1]["ago"] > 2
        assert reporter.recent(count)["steps"] == []
        assert len(reporter.recent(count - 1)["steps"]) == 1
        # From a run with more steps, or from somebody who guesses.
        assert reporter.recent(count + 1)["steps"] == reporter.recent(-1)["steps"] != []


async def test_a_recorder_that_has_left_slows_nobody_down(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with open_ledgers(tmp_path, 1) as world:
        await world.start()
        await world.settled()
        reporter = world.hosts[0].running.reporter
        with reporter.subscribe(recorder=True):
            await trio.sleep(1)
        statuses = 0
        with reporter.subscribe() as events, trio.move_on_after(4):
            async for event in events:
                statuses += event.kind == "status"
        assert 16 <= statuses <= 20
