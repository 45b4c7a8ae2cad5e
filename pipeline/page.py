"""A report as one page of HTML with its plots inside: nothing is loaded from anywhere."""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Final

from matplotlib.figure import Figure

from .drawing import INK, WARN, svg
from .report import growth

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.axes import Axes
    from pyspark.sql import Row

    from .report import Report

__all__ = ["render"]

_WIDTH: Final = 9.0
_HEIGHT: Final = 2.6

_CLOCKS: Final = (
    "A pause is log time: from the last batch of a term to the first of the next, even if nobody "
    "wrote. An election is the winner's own time: from when it left its role to the first entry of "
    "its term. Without a leader: the shorter of the two. The time until somebody noticed that the "
    "leader was lost, up to a heartbeat timeout, is in no election."
)

_PAGE: Final = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; }}
th, td {{ padding: .15rem .8rem .15rem 0; text-align: left; vertical-align: top; }}
td.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
th {{ border-bottom: 1px solid #999; }}
svg {{ max-width: 100%; height: auto; }}
</style>
<h1>{title}</h1>
{body}
</html>
"""


def render(report: Report) -> str:
    """Return a report as a page of HTML; its tables are computed here."""
    facts = report.facts
    terms, load, written = (
        frame.collect() for frame in (report.terms, report.load, report.written)
    )
    grown = growth(report.load)
    summary = [
        ("log", f"{facts.start:,} to {facts.committed:,}, committed"),
        ("commands", f"{sum(row['count'] for row in written):,}"),
        ("entries", f"{sum(row['entries'] for row in load):,}"),
        ("terms", f"{len(terms):,}"),
        *_between_terms(terms),
        ("growth", _growth(grown.bytes_per_day, grown.days)),
    ]
    body = [
        _table(("", ""), summary),
        "<h2>Load</h2>",
        _plot(written, report.bucket_s, terms),
        "<h2>Length of the log</h2>",
        _length_plot(load),
        "<h2>Terms</h2>",
        f"<p>{html.escape(_CLOCKS)}</p>",
        _rows(terms),
        "<h2>Commands</h2>",
        _rows(report.operations.collect()),
        "<h2>Keys that are written most</h2>",
        _rows(report.keys.collect()),
        "<h2>Prefixes that are written most</h2>",
        _rows(report.prefixes.collect()),
    ]
    title = html.escape(f"Cluster {facts.cluster}: the log of {facts.whose}")
    return _PAGE.format(title=title, body="\n".join(body))


def _between_terms(terms: Sequence[Row]) -> list[tuple[str, str]]:
    """Sum up the elections, and the time without a leader."""
    columns = {
        "longest pause between terms": "pause_seconds",
        "longest election": "election_seconds",
        "without a leader, all in all": "without_leader_seconds",
    }
    found: list[tuple[str, str]] = []
    for words, column in columns.items():
        seconds = [row[column] for row in terms[1:] if row[column] is not None]
        number = sum(seconds) if column.startswith("without") else max(seconds, default=0)
        found.append((words, f"{number:.3f} s" if seconds else "none"))
    return found


def _growth(bytes_per_day: float | None, days: float) -> str:
    if bytes_per_day is None or days * 24 < 1:
        return "too little to tell"
    mib = bytes_per_day / (1 << 20)
    hours = days * 24
    return (
        f"{mib:,.1f} MiB a day ({30 * mib:,.0f} in 30 days), by a line through {hours:,.1f} hours"
    )


def _table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    lines = ["".join(map(_cell, row)) for row in rows]
    return (
        "<table><tr>" + head + "</tr>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
    )


def _cell(value: object) -> str:
    match value:
        case None:
            return "<td></td>"
        case bool() | str():
            return f"<td>{html.escape(str(value))}</td>"
        case int():
            return f'<td class="number">{value:,}</td>'
        case float():
            return f'<td class="number">{value:,.3f}</td>'
        case bytes() | bytearray():
            return f"<td>{html.escape(repr(bytes(value))[2:-1])}</td>"
        case _:
            return f"<td>{html.escape(str(value))}</td>"


def _rows(rows: Sequence[Row]) -> str:
    if not rows:
        return "<p>None.</p>"
    return _table(rows[0].asDict().keys(), rows)  # type: ignore[arg-type]


def _plot(written: Sequence[Row], bucket_s: int, terms: Sequence[Row]) -> str:
    figure, axes = _axes("commands a second")
    times = [row["time"] for row in written]
    rates = [row["count"] / bucket_s for row in written]
    axes.step(times, rates, where="post", color=INK)
    for row in terms[1:]:
        axes.axvline(row["began"], color=WARN, linewidth=0.8)
    return svg(figure)


def _length_plot(load: Sequence[Row]) -> str:
    figure, axes = _axes("MiB")
    axes.plot([row["time"] for row in load], [row["end"] / (1 << 20) for row in load], color=INK)
    return svg(figure)


def _axes(label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
    axes = figure.add_subplot()
    axes.set_ylabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes
