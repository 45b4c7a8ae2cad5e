"""Draws histories that are not linearizable: operations as bars, a row for each client.

Operations that no order explains are red, with bold words. Grey ones ran at the same time and do
not resolve the violation. Time runs from left to right, but not to scale: only which operation
ended before another one began matters. So the moments are as far apart as the words on the bars
need. A bar with a dashed edge is an operation of unknown outcome: it took effect at any time after
its start, or never.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from .drawing import FAINT, INK, ON_WARN, PAPER, TEXT, WARN, drawing, svg_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from pyspark.sql import DataFrame, Row

__all__ = ["MAX_KEYS", "Bar", "draw", "picture"]

MAX_KEYS: Final = 8
"""Keys drawn in one file; more would make the picture too long to look at."""
_MAX_WORDS: Final = 32
# inches
_ROW: Final = 0.36
_AROUND: Final = 1.5
_LETTER: Final = 0.084
_LEAST: Final = 0.12
_MARGIN: Final = 1.5
_LEAST_WIDTH: Final = 6.5
_SMALL: Final = 8
_LEGEND_LINES: Final = 3


@attrs.frozen
class Bar:
    """An operation as drawn.

    Args:
        client: number of the client.
        start_ns: when the client sent it.
        end_ns: when the client had the answer; None if the outcome is not known.
        text: the request and its answer.
        offending: no order explains it together with the other offending operations.
    """

    client: int
    start_ns: int
    end_ns: int | None
    text: str
    offending: bool


def picture(verdicts: DataFrame) -> str | None:
    """Draw the windows of the first :data:`MAX_KEYS` keys that are not linearizable.

    Args:
        verdicts: the result of `check.check_history`.

    Returns:
        The text of an SVG file; None if all keys are linearizable.
    """
    rows = verdicts.where(F.col("verdict") == "violated").orderBy("key").take(MAX_KEYS)
    return draw([(bytes(row["key"]), _bars(row["window"])) for row in rows]) if rows else None


def _bars(window: Sequence[Row]) -> list[Bar]:
    return [
        Bar(
            row["client"],
            row["start_ns"],
            row["end_ns"] if row["status"] == "ok" else None,
            row["text"],
            row["offending"],
        )
        for row in window
    ]


def draw(windows: Sequence[tuple[bytes, Sequence[Bar]]]) -> str:
    """Draw the windows of some keys below each other, as one SVG file."""
    heights = [_ROW * len({bar.client for bar in bars}) + _AROUND for _, bars in windows]
    places = [_places(bars) for _, bars in windows]
    widest = max(max(found.values()) for found in places) + _LEAST
    size = max(widest + _MARGIN, _LEAST_WIDTH), sum(heights) + _ROW * _LEGEND_LINES / 2
    with drawing():
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(len(windows), 1, squeeze=False, height_ratios=heights)
        for axes, (key, bars), found in zip(panels[:, 0], windows, places, strict=True):
            axes.set_xlim(0, widest)
            _panel(axes, key, bars, found)
        _legend(figure)
        return svg_file(figure)


def _legend(figure: Figure) -> None:
    kinds = [
        Patch(facecolor=WARN, edgecolor=INK, label="no order explains these operations (bold)"),
        Patch(facecolor=FAINT, edgecolor=INK, label="under way at that time, and does not help"),
        Patch(
            facecolor=PAPER,
            edgecolor=INK,
            linestyle="--",
            label="outcome unknown: at any time after its start, or never",
        ),
    ]
    figure.legend(handles=kinds, loc="outside upper left", fontsize=_SMALL + 1)


def _words(bar: Bar) -> str:
    return bar.text if len(bar.text) <= _MAX_WORDS else f"{bar.text[: _MAX_WORDS - 3]}..."


def _places(bars: Sequence[Bar]) -> dict[int | None, float]:
    """Return the place of each moment; None stands for the end of an unknown outcome."""
    moments = {at for bar in bars for at in (bar.start_ns, bar.end_ns) if at is not None}
    found: dict[int | None, float] = {}
    last = -_LEAST
    for at in [*sorted(moments), None]:
        last += _LEAST
        for bar in bars:
            if bar.end_ns == at and bar.start_ns in found:
                last = max(last, found[bar.start_ns] + _LETTER * len(_words(bar)) + _LEAST)
        found[at] = last
    return found


def _panel(axes: Axes, key: bytes, bars: Sequence[Bar], places: dict[int | None, float]) -> None:
    clients = sorted({bar.client for bar in bars})
    for bar in sorted(bars, key=lambda bar: (bar.end_ns is not None, bar.start_ns)):
        known = bar.end_ns is not None
        left, right = places[bar.start_ns], places[bar.end_ns]
        row = clients.index(bar.client)
        axes.barh(
            row,
            right - left,
            left=left,
            height=0.7,
            color=(WARN if bar.offending else FAINT) if known else PAPER,
            edgecolor=INK,
            linestyle="-" if known else "--",
            linewidth=0.6,
        )
        # a dollar sign in a history must not begin a formula
        axes.text(
            left + _LEAST / 2,
            row,
            _words(bar),
            color=ON_WARN if known and bar.offending else TEXT,
            fontsize=_SMALL,
            fontweight="bold" if bar.offending else "normal",
            va="center",
            parse_math=False,
        )
    axes.set_yticks(
        range(len(clients)), [f"client {client}" for client in clients], fontsize=_SMALL + 1
    )
    axes.set_ylim(len(clients) - 0.5, -0.5)
    zero = min(bar.start_ns for bar in bars)
    shown = {bar.start_ns for bar in bars if bar.offending}
    ticks = sorted(shown | {bar.end_ns for bar in bars if bar.offending and bar.end_ns is not None})
    labels = [f"{(at - zero) / 1e9:+.6f} s" for at in ticks]
    axes.set_xticks([places[at] for at in ticks], labels, rotation=60, ha="right", fontsize=_SMALL)
    axes.set_xlabel("since the first operation shown, not to scale", loc="left", fontsize=_SMALL)
    title = f"Key {repr(key)[2:-1]}: no order explains the bold operations"
    axes.set_title(title, loc="left", fontsize=10, parse_math=False)
