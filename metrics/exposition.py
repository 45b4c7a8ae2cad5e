"""The text in which Prometheus reads families of figures.

Two forms exist, and a scraper names the one that it wants in its ``Accept`` header: Prometheus'
text format 0.0.4, and OpenMetrics 1.0. They differ in the name of a counter's family, in what a
help text escapes, and in the last line.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from .family import Kind, Sample
from .histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .family import Family

__all__ = ["CONTENT_TYPE", "OPENMETRICS_CONTENT_TYPE", "exposition", "wants_openmetrics"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_TOTAL: Final = "_total"


def wants_openmetrics(accept: str) -> bool:
    """Whether an ``Accept`` header names OpenMetrics."""
    # Whoever names it can read it. Weights are not compared: Prometheus gives it the highest.
    return "application/openmetrics-text" in accept.lower()


def exposition(families: Iterable[Family], *, openmetrics: bool = False) -> str:
    """Return families as text, in the order in which their names come first.

    Args:
        families: several of one name become one, since a name may stand there only once.
        openmetrics: in that form, not in Prometheus' own.
    """
    by_name: dict[str, list[Family]] = {}
    for family in families:
        by_name.setdefault(family.name, []).append(family)
    lines = [line for same in by_name.values() for line in _lines(same, openmetrics=openmetrics)]
    if openmetrics:
        lines.append("# EOF")
    return "".join(f"{line}\n" for line in lines)


def _lines(same: list[Family], *, openmetrics: bool) -> Iterator[str]:
    """Yield the lines of the families of one name."""
    first = same[0]
    samples = [sample for family in same for sample in family.samples]
    # A family without samples says nothing, not even that there is none.
    if not samples:
        return
    # In OpenMetrics the family of a counter is named without the suffix of its samples.
    counts = openmetrics and first.kind is Kind.COUNTER
    title = first.name.removesuffix(_TOTAL) if counts else first.name
    yield f"# HELP {title} {_escaped(first.meaning, quotes=openmetrics)}"
    yield f"# TYPE {title} {first.kind.value}"
    for sample in samples:
        yield from _sample(first.name, sample)


def _sample(name: str, sample: Sample) -> Iterator[str]:
    if not isinstance(sample.value, Histogram):
        yield f"{name}{_labels(sample.labels)} {_number(sample.value)}"
        return
    seen, counts = 0, sample.value.counts
    for bound, count in zip([*sample.value.bounds(), math.inf], counts, strict=True):
        seen += count
        # Cumulative: each bucket holds all observations up to its bound.
        labels = _labels((*sample.labels, ("le", _number(float(bound)))))
        yield f"{name}_bucket{labels} {seen}"
    yield f"{name}_sum{_labels(sample.labels)} {_number(sample.value.total)}"
    yield f"{name}_count{_labels(sample.labels)} {seen}"


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_escaped(value, quotes=True)}"' for name, value in labels)
    return "{" + ",".join(pairs) + "}"


def _escaped(text: str, *, quotes: bool) -> str:
    # The backslash first, or it would escape the escapes.
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quotes else text


def _number(value: float) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)
