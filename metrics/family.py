"""A family of figures: one name, one unit, one meaning, and a sample for each set of labels."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .histogram import Histogram


class Kind(enum.Enum):
    """What Prometheus calls the type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@attrs.frozen
class Sample:
    """One figure of a family.

    Args:
        value: a number, or a histogram.
        labels: name and value of each label; the values come from small, bounded sets.
    """

    value: float | Histogram
    labels: tuple[tuple[str, str], ...] = ()


@attrs.frozen
class Family:
    """Figures of one name.

    Args:
        name: with the unit at its end, and ``_total`` if it is a counter.
        kind: the type.
        meaning: in one sentence, without a line break.
        samples: one for each set of labels.
    """

    name: str
    kind: Kind
    meaning: str
    samples: tuple[Sample, ...]


def labelled(
    label: str, values: Mapping[str, float] | Mapping[str, Histogram]
) -> tuple[Sample, ...]:
    """Make a sample for each value of one label."""
    return tuple(Sample(value, ((label, name),)) for name, value in values.items())


def counter(name: str, meaning: str, samples: float | tuple[Sample, ...]) -> Family:
    """Make a family that counts; a number is its only sample."""
    assert name.endswith("_total"), name
    return Family(name, Kind.COUNTER, meaning, _listed(samples))


def gauge(name: str, meaning: str, samples: float | tuple[Sample, ...]) -> Family:
    """Make a family of figures that rise and fall; a number is its only sample."""
    return Family(name, Kind.GAUGE, meaning, _listed(samples))


def histogram(name: str, meaning: str, samples: Histogram | tuple[Sample, ...]) -> Family:
    """Make a family of histograms; a histogram is its only sample."""
    return Family(name, Kind.HISTOGRAM, meaning, _listed(samples))


def _listed(samples: float | Histogram | tuple[Sample, ...]) -> tuple[Sample, ...]:
    return samples if isinstance(samples, tuple) else (Sample(samples),)
