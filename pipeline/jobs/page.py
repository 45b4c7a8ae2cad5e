"""Renders a report as one page of HTML with its plots inside; the page loads no other file."""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

import html
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import attrs
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure

from .drawing import DARK, FAINT, INK, PAPER, TEXT, WARN, dark_css, drawing, svg
from .report import growth

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.axes import Axes
    from pyspark.sql import Row

    from .report import Report

__all__ = ["render"]

_WIDTH: Final = 11.0
_HEIGHT: Final = 2.8
_MARGINS: Final = {"left": 0.07, "right": 0.99, "bottom": 0.18, "top": 0.84}
"""The same for all plots, so that a moment has the same place in each of them."""
_CELL: Final = 120
"""Longer keys are cut to this many characters."""
_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")

_TERMS: Final = {
    "Term": "term",
    "Leader": "leader",
    "Why it was elected": "reason",
    "Began (UTC)": "began",
    "Wrote for\N{NO-BREAK SPACE}(s)": "seconds",
    "Election\N{NO-BREAK SPACE}(s)": "election_seconds",
    "Pause before\N{NO-BREAK SPACE}(s)": "pause_seconds",
    "Without a leader\N{NO-BREAK SPACE}(s)": "without_leader_seconds",
    "Entries": "entries",
    "Bytes": "bytes",
}
_OPERATIONS: Final = {
    "Command": "operation",
    "How many": "commands",
    "Bytes": "bytes",
    "Different keys": "keys",
}
_KEYS: Final = {"Key": "name", "Commands": "commands", "Bytes": "bytes"}
_PREFIXES: Final = {"Prefix": "name", "Commands": "commands", "Bytes": "bytes"}

_CLOCKS: Final = (
    "A pause is log time: from the last batch of a term to the first of the next, even if nobody "
    "wrote. An election is the winner's own time: from when it left its role to the first entry of "
    "its term. Without a leader: the shorter of the two. The time until a member noticed that the "
    "leader was lost, up to a heartbeat timeout, is in no election."
)

_PAGE: Final = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{css}
</style>
<h1>{title}</h1>
{body}
</html>
"""


_CSS: Final = f"""\
:root {{ color-scheme: light dark; --text: {TEXT}; --paper: {PAPER}; --line: {FAINT}; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --text: {DARK[TEXT]}; --paper: {DARK[PAPER]}; --line: {DARK[FAINT]}; }}
}}
body {{ font: 15px/1.5 sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
  color: var(--text); background: var(--paper); overflow-wrap: anywhere; }}
p {{ max-width: 48rem; }}
.wide {{ overflow-x: auto; margin: 1rem 0; }}
table {{ border-collapse: collapse; overflow-wrap: normal; }}
th, td {{ padding: .15rem .9rem .15rem 0; text-align: left; vertical-align: top; }}
th {{ border-bottom: 1px solid var(--line); vertical-align: bottom; }}
td.number, th.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
th.number {{ min-width: 4rem; }}
td.time {{ white-space: nowrap; }}
td.name {{ overflow-wrap: anywhere; min-width: 10rem; max-width: 40rem; }}
svg {{ display: block; width: 100%; min-width: 48rem; height: auto; }}
{dark_css()}"""


def render(report: Report) -> str:
    """Return a report as a page of HTML; this call computes the report's tables."""
    facts = report.facts
    terms, load, written = (
        frame.collect() for frame in (report.terms, report.load, report.written)
    )
    grown = growth(report.load)
    summary = [
        ("log", f"{facts.start:,} to {facts.committed:,}, committed"),
        ("commands", f"{sum(row['commands'] for row in written):,}"),
        ("entries", f"{sum(row['entries'] for row in load):,}"),
        ("terms", f"{len(terms):,}"),
        *_between_terms(terms),
        ("growth", _growth(grown.bytes_per_day, grown.days)),
    ]
    body = [
        _table((), summary),
        *_plots(written, load, report.bucket_s, terms),
        "<h2>Terms</h2>",
        f"<p>{html.escape(_CLOCKS)}</p>",
        _rows(_TERMS, terms),
        "<h2>Commands</h2>",
        _rows(_OPERATIONS, report.operations.collect()),
        "<h2>Keys that are written most</h2>",
        _rows(_KEYS, report.keys.collect()),
        "<h2>Prefixes that are written most</h2>",
        _rows(_PREFIXES, report.prefixes.collect()),
    ]
    title = html.escape(f"Cluster {facts.cluster}: the log of {facts.whose}")
    return _PAGE.format(title=title, css=_CSS, body="\n".join(body))


def _between_terms(terms: Sequence[Row]) -> list[tuple[str, str]]:
    """Summarize the elections, and the time without a leader."""
    columns = {
        "longest pause between terms": "pause_seconds",
        "longest election": "election_seconds",
        "without a leader, in total": "without_leader_seconds",
    }
    found: list[tuple[str, str]] = []
    for words, column in columns.items():
        seconds = [row[column] for row in terms[1:] if row[column] is not None]
        number = sum(seconds) if column.startswith("without") else max(seconds, default=0)
        found.append((words, f"{number:.3f} s" if seconds else "none"))
    return found


def _growth(bytes_per_day: float | None, days: float) -> str:
    if bytes_per_day is None or days * 24 < 1:
        return "too little data"
    mib = bytes_per_day / (1 << 20)
    hours = days * 24
    return (
        f"{mib:,.1f} MiB a day ({30 * mib:,.0f} in 30 days), by a line through {hours:,.1f} hours"
    )


def _table(heads: Iterable[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["".join(heads), *("".join(map(_cell, row)) for row in rows)]
    text = "".join(f"<tr>{line}</tr>" for line in lines if line)
    return f'<div class="wide"><table>{text}</table></div>'


def _cell(value: object) -> str:
    match value:
        case None:
            return "<td></td>"
        case int():
            return f'<td class="number">{value:,}</td>'
        case float():
            return f'<td class="number">{value:,.3f}</td>'
        case bytes() | bytearray():
            text = repr(bytes(value))[2:-1]
            short = text if len(text) <= _CELL else f"{text[: _CELL - 3]}..."
            return f'<td class="name">{html.escape(short)}</td>'
        case datetime():
            text = _utc(value).isoformat(sep=" ", timespec="milliseconds")
            return f'<td class="time">{text.removesuffix("+00:00")}</td>'
        case _:
            return f"<td>{html.escape(str(value))}</td>"


def _rows(columns: dict[str, str], rows: Sequence[Row]) -> str:
    if not rows:
        return "<p>None.</p>"
    cells = [[row[name] for name in columns.values()] for row in rows]
    heads = [
        f'<th class="number">{head}</th>' if _numeric(column) else f"<th>{head}</th>"
        for head, column in zip(columns, zip(*cells, strict=True), strict=True)
    ]
    return _table(heads, cells)


def _numeric(column: Iterable[object]) -> bool:
    return any(isinstance(value, int | float) for value in column)


def _utc(moment: datetime) -> datetime:
    """Return the time of a row in UTC; Spark has converted it to this machine's time zone."""
    return moment.astimezone(UTC)


def _days(moment: datetime) -> float:
    return float(date2num(moment))  # type: ignore[no-untyped-call]


@attrs.frozen
class _Buckets:
    """The plots' common axis.

    Args:
        begins: when each bucket begins.
        edges: the same in days, as matplotlib needs it, and the end of the last bucket.
        changes: when terms begin, in days.
    """

    begins: list[datetime]
    edges: list[float]
    changes: list[float]

    @classmethod
    def of(cls, load: Sequence[Row], bucket_s: int, terms: Sequence[Row]) -> _Buckets:
        """Cover the time from the first batch to the last, including buckets without a batch."""
        first, last = (_utc(load[at]["time"]) for at in (0, -1))
        count = 1 + round((last - first).total_seconds() / bucket_s)
        edges = [first + timedelta(seconds=at * bucket_s) for at in range(count + 1)]
        changes = [_days(_utc(row["began"])) for row in terms[1:]]
        return cls(edges[:-1], [_days(edge) for edge in edges], changes)

    def axes(self) -> tuple[Figure, Axes]:
        """Begin a plot that starts at zero, covers the whole time, and marks each new term."""
        figure = Figure(figsize=(_WIDTH, _HEIGHT))
        figure.subplots_adjust(**_MARGINS)
        axes = figure.add_subplot()
        axes.set_xlabel("UTC", loc="left")
        axes.yaxis.set_major_formatter("{x:,.10g}")
        axes.set_xlim(self.edges[0], self.edges[-1])
        locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        formatter = ConciseDateFormatter(locator, tz=UTC)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_formatter(formatter)
        for at, moment in enumerate(self.changes):
            label = None if at else "a new leadership term begins"
            axes.axvline(moment, color=WARN, linewidth=1, label=label)
        return figure, axes

    def svg(self, figure: Figure, axes: Axes) -> str:
        """Finish a plot and return it as SVG."""
        axes.set_ylim(bottom=0)
        lines, labels = axes.get_legend_handles_labels()  # the last one drawn comes first
        axes.legend(
            lines[::-1],
            labels[::-1],
            loc="lower left",
            bbox_to_anchor=(0, 1),
            borderaxespad=0.1,
            fontsize=9,
        )
        return f'<div class="wide">{svg(figure)}</div>'


def _plots(
    written: Sequence[Row], load: Sequence[Row], bucket_s: int, terms: Sequence[Row]
) -> list[str]:
    if not load:
        return []
    with drawing():
        buckets = _Buckets.of(load, bucket_s, terms)
        return [
            "<h2>Load</h2>",
            _load_plot(buckets, written, bucket_s),
            "<h2>Length of the log</h2>",
            _length_plot(buckets, load),
        ]


def _load_plot(buckets: _Buckets, written: Sequence[Row], bucket_s: int) -> str:
    figure, axes = buckets.axes()
    counts = {_utc(row["time"]): row["commands"] for row in written}
    rates = [counts.get(begin, 0) / bucket_s for begin in buckets.begins]
    axes.stairs(rates, buckets.edges, color=INK, fill=True, label="commands a second")
    return buckets.svg(figure, axes)


def _length_plot(buckets: _Buckets, load: Sequence[Row]) -> str:
    ends = {_utc(row["time"]): row["end"] for row in load}
    lengths = [load[0]["end"] - load[0]["bytes"]]
    for begin in buckets.begins:  # the length stays the same in a bucket without writes
        lengths.append(ends.get(begin, lengths[-1]))
    power = min((lengths[-1].bit_length() - 1) // 10, len(_UNITS) - 1)
    figure, axes = buckets.axes()
    scaled = [length / (1 << 10 * power) for length in lengths]
    axes.plot(buckets.edges, scaled, color=INK, label=f"log position ({_UNITS[power]})")
    return buckets.svg(figure, axes)
