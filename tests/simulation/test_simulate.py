"""Whole runs: fixed seeds, no violation."""

from __future__ import annotations

import pytest

from quorate.simulation import Plan, simulate


@pytest.mark.parametrize(
    ("members", "seed"), [*((3, seed) for seed in range(6)), *((5, seed) for seed in range(2))]
)
def test_a_storm_loses_nothing_and_passes(members: int, seed: int) -> None:
    outcome = simulate(Plan(seed, members, 0.005))
    assert outcome.violation is None, outcome.story
    assert outcome.acknowledged > 20
    assert outcome.faults
