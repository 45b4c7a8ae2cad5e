"""Figures that a member keeps of itself, and the text in which Prometheus reads them.

A part that has something to count keeps plain integers and `Histogram` objects as attributes, and
changes them where the thing happens. Nothing is locked, named or formatted there. At a scrape the
part returns `Family` objects: the name, the unit and the meaning of each figure, made from those
attributes at that moment. ``exposition.py`` writes families as text.

This room knows no members and does no I/O, so every other room may use it. Read first:
``histogram.py``, then ``family.py``.
"""

from .exposition import (
    CONTENT_TYPE,
    OPENMETRICS_CONTENT_TYPE,
    exposition,
    wants_openmetrics,
)
from .family import Family, Kind, Sample, counter, gauge, histogram, labelled
from .histogram import Histogram

__all__ = [
    "CONTENT_TYPE",
    "OPENMETRICS_CONTENT_TYPE",
    "Family",
    "Histogram",
    "Kind",
    "Sample",
    "counter",
    "exposition",
    "gauge",
    "histogram",
    "labelled",
    "wants_openmetrics",
]
