"""What a member reports of itself: rates and quantiles of the last seconds, and unknown figures."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
import trio.testing

from quorate.metrics import Histogram
from quorate.node.live.reporter import _Quantiles

if TYPE_CHECKING:
    Clock = trio.testing.MockClock


async def test_quantiles_are_right_after_counts_were_set_to_zero(autojump_clock: Clock) -> None:
    histogram = Histogram()
    quantiles = _Quantiles({"sync": lambda: histogram})
    quantiles.look()
    histogram.observe(0.001, 900)
    await trio.sleep(1)
    quantiles.look()
    before = quantiles.now()["sync"]
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
