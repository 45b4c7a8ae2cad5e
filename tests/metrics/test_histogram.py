"""Each observation falls into its bucket, and quantiles are estimated within one."""

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


def test_quantiles_are_estimated_within_a_bucket() -> None:
    h = Histogram(1.0)
    assert h.quantile(0.5) is None
    h.observe(1.0, 90)
    h.observe(7.0, 9)
    h.observe(1e9)
    # 90 from 0 to 1, 9 from 4 to 8, one above all bounds.
    found = [h.quantile(share) for share in (0.0, 0.45, 0.9, 0.93, 0.99, 1.0)]
    assert found == pytest.approx([0.0, 0.5, 1.0, 4 + 4 * 3 / 9, 8.0, math.inf])
    then = tuple(h.counts)
    assert h.quantile(0.5, then) is None
    h.observe(3.0)
    assert h.quantile(0.5, then) == pytest.approx(3.0)


@given(
    st.lists(st.floats(0, 15, allow_nan=False), min_size=1, max_size=60),
    st.floats(0.01, 1),
)
def test_an_estimate_lies_in_the_bucket_of_the_true_quantile(
    values: list[float], share: float
) -> None:
    h = Histogram()
    for each in values:
        h.observe(each)
    true = sorted(values)[math.ceil(share * len(values)) - 1]
    estimate = h.quantile(share)
    assert estimate is not None
    bounds = [0.0, *h.bounds()]
    upper = next(bound for bound in bounds[1:] if true <= bound)
    lower = bounds[bounds.index(upper) - 1]
    slack = 1e-9 * upper
    assert lower - slack <= estimate <= upper + slack
