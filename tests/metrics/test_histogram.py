"""Each observation falls into the bucket whose bound it does not exceed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.metrics import Histogram


@given(st.floats(0, 1e6, allow_nan=False), st.integers(1, 1000))
def test_an_observation_is_above_the_bound_before_its_bucket(value: float, weight: int) -> None:
    h = Histogram()
    h.observe(value, weight)
    (bucket,) = [n for n, count in enumerate(h.counts) if count]
    bounds = [*h.bounds(), math.inf]
    assert value <= bounds[bucket]
    assert bucket == 0 or value > bounds[bucket - 1]
    assert h.count == weight
    assert h.total == value * weight


def test_a_bound_belongs_to_its_own_bucket() -> None:
    for n, bound in enumerate(Histogram().bounds()):
        h = Histogram()
        h.observe(bound)
        assert h.counts[n] == 1


def test_quantiles_are_bounds_of_buckets() -> None:
    h = Histogram(1.0)
    assert h.quantile(0.5) is None
    h.observe(1.0, 90)
    h.observe(7.0, 9)
    h.observe(1e9)
    assert [h.quantile(share) for share in (0.5, 0.9, 0.99, 1.0)] == [1.0, 1.0, 8.0, math.inf]
    then = tuple(h.counts)
    assert h.quantile(0.5, then) is None
    h.observe(3.0)
    assert h.quantile(0.5, then) == pytest.approx(4.0)
