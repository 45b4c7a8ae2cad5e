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

from .drawing import AREA, INK, MEMBERS, PAPER, STYLE, WARN, dark_css, drawing, svg
from .report import growth

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.axes import Axes
    from pyspark.sql import Row

    from .report import Report, WholeReport

__all__ = ["render", "render_whole"]


@attrs.frozen
class _Shape:
    """How large plots are; a page has them for narrow and for wide screens.

    Args:
        name: the class of CSS.
        width: inches, as the height.
        margins: the same for all plots, so that a moment has the same place in each of them.
        ticks: the fewest moments that are named, and the most. Each unit of time begins where the
            fewest fit; so a lower most, such as (3, 5), would have spans without any interval.
        columns: of the legend.
    """

    name: str
    width: float
    height: float
    margins: dict[str, float]
    ticks: tuple[int, int]
    columns: int


_SHAPES: Final = (
    _Shape(
        "on-wide", 11, 2.9, {"left": 0.07, "right": 0.97, "bottom": 0.18, "top": 0.86}, (3, 9), 6
    ),
    _Shape(
        "on-narrow", 4.4, 3.4, {"left": 0.16, "right": 0.93, "bottom": 0.15, "top": 0.74}, (2, 5), 2
    ),
)
_CELL: Final = 120
"""Longer keys are cut to this many characters."""
_BAND: Final = 10
"""How high the band of leaders is, in points. Lower: no number fits. Higher: no legend fits."""
_DIGIT: Final = 0.1
"""How wide a digit in it is, in inches."""
_NEW_TERM: Final = "a new term begins"
_UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")

_TERMS: Final = {
    "Term": "term",
    "Leader": "leader",
    "Why it was elected": "reason",
    "Began": "began",
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

_OF_PART: Final = ("Log from", "to", "Terms")

_EXACT: Final = (
    "Counts and sizes are exact. What is estimated has the sign \N{ALMOST EQUAL TO}, and a note. "
    "Times are in UTC, by the clocks of the leaders that wrote the log."
)
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
{STYLE}
body {{ font-size: 14px; line-height: 1.5; margin: 0 auto; max-width: 78rem; padding: 1rem;
  overflow-wrap: anywhere; }}
h1 {{ font-size: 20px; font-weight: 650; line-height: 1.2; margin: 0 0 0.75rem; }}
h2 {{ font-size: 15px; font-weight: 650; margin: 0 0 0.25rem; }}
p {{ color: var(--ink2); margin: 0.25rem 0 0.5rem; max-width: 52rem; }}
section, .facts div {{ background: var(--panel); border: 1px solid var(--line);
  border-radius: 8px; padding: 0.5rem 0.75rem; }}
section {{ margin: 0.75rem 0; }}
.facts {{ display: grid; gap: 0.5rem; margin: 0 0 0.75rem;
  grid-template-columns: repeat(auto-fit, minmax(min(16rem, 45%), 1fr)); }}
dt, small, figcaption {{ color: var(--ink2); font-size: 12px; }}
dd {{ font-size: 16px; font-weight: 600; margin: 0; }}
dd small {{ display: block; font-weight: 400; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; overflow-wrap: normal; }}
th, td {{ padding: 0.2rem 1rem 0.2rem 0; text-align: left; vertical-align: top; }}
th {{ border-bottom: 1px solid var(--ink3); color: var(--ink2); font-weight: 600;
  vertical-align: bottom; }}
tr > :first-child {{ background: var(--panel); left: 0; position: sticky; }}
tr > * + .number {{ min-width: 4rem; text-align: right; }}
tbody tr:hover > * {{ background: var(--lead-soft); }}
.time {{ white-space: nowrap; }}
.name {{ max-width: 40rem; min-width: 10rem; overflow-wrap: anywhere; }}
figure {{ margin: 0; }}
svg {{ display: block; height: auto; width: 100%; }}
.on-narrow {{ display: none; max-width: 34rem; }}
@media (max-width: 44rem) {{
  .on-narrow {{ display: block; }} .on-wide {{ display: none; }}
  th, td {{ padding-right: 0.6rem; }} .name {{ min-width: 8rem; }}
}}
{dark_css()}"""


def render(report: Report) -> str:
    """Return a report as a page of HTML; this call computes the report's tables."""
    facts = report.facts
    terms, load, written = (
        frame.collect() for frame in (report.terms, report.load, report.written)
    )
    grown = growth(report.load)
    summary: list[tuple[str, ...]] = [
        ("log, committed", f"{facts.start:,} to {facts.committed:,}", "positions, in bytes"),
        ("commands", f"{sum(row['commands'] for row in written):,}"),
        ("entries", f"{sum(row['entries'] for row in load):,}"),
        ("terms", f"{len(terms):,}"),
        *_between_terms(terms),
        ("growth", *_growth(grown.bytes_per_day, grown.days)),
    ]
    body = [
        _facts(summary),
        f"<p>{_EXACT}</p>",
        *_plots(written, load, report.bucket_s, terms),
        _section("Terms", f"<p>{html.escape(_CLOCKS)}</p>", _rows(_TERMS, terms)),
        *_of_commands(report),
    ]
    title = html.escape(f"Cluster {facts.cluster}: the log of {facts.whose}")
    return _PAGE.format(title=title, css=_CSS, body="\n".join(body))


def render_whole(report: WholeReport) -> str:
    """Return a report on all partitions as a page, with links to ``NAME/report.html`` of each.

    This call computes the tables that the parts do not have.
    """
    written = report.written.collect()
    rows = [
        (part.facts.partition, part.facts.start, part.facts.committed, part.terms.count())
        for part in report.parts.values()
    ]
    parts = _table(
        ["<th>Partition</th>", *(f'<th class="number">{head}</th>' for head in _OF_PART)],
        [(str(number), *figures) for number, *figures in rows],
    )
    links = " ".join(
        f'<a href="{html.escape(name)}/report.html">{html.escape(name)}</a>'
        for name in report.parts
    )
    summary = [
        ("partitions", f"{len(rows):,}"),
        ("commands", f"{sum(row['commands'] for row in written):,}"),
    ]
    body = [
        _facts(summary),
        f"<p>{_EXACT}</p>",
        *_whole_load(written, report.bucket_s),
        _section("Partitions", f"<p>A page for each: {links}</p>", parts),
        *_of_commands(report),
    ]
    cluster = next(iter(report.parts)).rpartition(".")[0]
    title = html.escape(f"Cluster {cluster}: the logs of {len(rows)} partitions")
    return _PAGE.format(title=title, css=_CSS, body="\n".join(body))


def _whole_load(written: Sequence[Row], bucket_s: int) -> list[str]:
    if not written:
        return []
    with drawing():
        both = [_Buckets.of(written, bucket_s, [], shape) for shape in _SHAPES]
        loads = [_load_plot(buckets, written, bucket_s) for buckets in both]
    return [_load_figure(loads, bucket_s)]


def _of_commands(report: Report | WholeReport) -> list[str]:
    return [
        _section("Commands", _rows(_OPERATIONS, report.operations.collect())),
        _section("Keys that are written most", _rows(_KEYS, report.keys.collect())),
        _section("Prefixes that are written most", _rows(_PREFIXES, report.prefixes.collect())),
    ]


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


def _growth(bytes_per_day: float | None, days: float) -> tuple[str, str]:
    """Say how fast the log grows, and where that is from."""
    if bytes_per_day is None or days * 24 < 1:
        return "too little data", "less than an hour"
    about = "\N{ALMOST EQUAL TO}\N{NO-BREAK SPACE}"
    return (
        f"{about}{_size(bytes_per_day)} a day",
        f"{about}{_size(30 * bytes_per_day)} in 30 days; a line through {days * 24:,.1f} hours",
    )


def _power(size: float) -> int:
    """The unit of `_UNITS` in which a size is read best."""
    return min(max(int(size).bit_length() - 1, 0) // 10, len(_UNITS) - 1)


def _size(size: float) -> str:
    power = _power(size)
    return f"{size / (1 << 10 * power):,.1f}\N{NO-BREAK SPACE}{_UNITS[power]}"


def _facts(facts: Iterable[Sequence[str]]) -> str:
    """Show figures with their names, and some with a note."""
    boxes = [
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(figure)}"
        + "".join(f"<small>{html.escape(note)}</small>" for note in notes)
        + "</dd></div>"
        for name, figure, *notes in facts
    ]
    return f'<dl class="facts">{"".join(boxes)}</dl>'


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{title}</h2>{''.join(parts)}</section>"


def _table(heads: Iterable[str], rows: Iterable[Sequence[object]]) -> str:
    lines = ["".join(map(_cell, row)) for row in rows]
    text = "".join(f"<tr>{line}</tr>" for line in lines)
    head = f"<thead><tr>{''.join(heads)}</tr></thead>"
    return f'<div class="wide"><table>{head}<tbody>{text}</tbody></table></div>'


def _cell(value: object) -> str:
    match value:
        case None:
            return "<td></td>"
        case int():
            return f'<td class="number">{value:,}</td>'
        case float():
            return f'<td class="number">{value:,.3f}</td>'
        case bytes() | bytearray():
            text = repr(bytes(value))[2:-1] or "(empty)"
            short = text if len(text) <= _CELL else f"{text[: _CELL - 3]}..."
            return f'<td class="name">{html.escape(short)}</td>'
        case datetime():
            text = _utc(value).isoformat(sep=" ", timespec="milliseconds")
            return f'<td class="time">{text.removesuffix("+00:00")} UTC</td>'
        case _:
            return f"<td>{html.escape(str(value))}</td>"


def _rows(columns: dict[str, str], rows: Sequence[Row]) -> str:
    if not rows:
        return "<p>None.</p>"
    cells = [[_value(name, row[name]) for name in columns.values()] for row in rows]
    heads = [
        f'<th class="number">{head}</th>' if _numeric(column) else f"<th>{head}</th>"
        for head, column in zip(columns, zip(*cells, strict=True), strict=True)
    ]
    return _table(heads, cells)


def _value(name: str, value: object) -> object:
    """A number that counts nothing is a name: it has no separators."""
    return str(value) if name in {"term", "leader"} and value is not None else value


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
        reigns: member, first and last batch (in days) of each term of a known leader.
        shape: of the plots.
    """

    begins: list[datetime]
    edges: list[float]
    changes: list[float]
    reigns: list[tuple[int, float, float]]
    shape: _Shape

    @classmethod
    def of(
        cls, load: Sequence[Row], bucket_s: int, terms: Sequence[Row], shape: _Shape
    ) -> _Buckets:
        """Cover the time from the first batch to the last, including buckets without a batch."""
        first, last = (_utc(load[at]["time"]) for at in (0, -1))
        count = 1 + round((last - first).total_seconds() / bucket_s)
        edges = [first + timedelta(seconds=at * bucket_s) for at in range(count + 1)]
        changes = [_days(_utc(row["began"])) for row in terms[1:]]
        reigns = [
            (row["leader"], _days(_utc(row["began"])), _days(_utc(row["ended"])))
            for row in terms
            if row["leader"] is not None
        ]
        return cls(edges[:-1], [_days(edge) for edge in edges], changes, reigns, shape)

    def axes(self) -> tuple[Figure, Axes]:
        """Begin a plot that starts at zero, covers the whole time, and marks each new term."""
        figure = Figure(figsize=(self.shape.width, self.shape.height))
        figure.subplots_adjust(**self.shape.margins)
        axes = figure.add_subplot()
        axes.grid(visible=True)
        begins, ends = self.begins[0], self.begins[-1]
        # The axis itself names its last day.
        day = f", from {begins:%Y-%b-%d}" if begins.date() != ends.date() else ""
        axes.set_xlabel(f"time (UTC){day}", loc="left")
        axes.yaxis.set_major_formatter("{x:,.10g}")
        axes.set_xlim(self.edges[0], self.edges[-1])
        fewest, most = self.shape.ticks
        locator = AutoDateLocator(  # type: ignore[no-untyped-call]
            tz=UTC, minticks=fewest, maxticks=most
        )
        axes.xaxis.set_major_locator(locator)
        formatter = ConciseDateFormatter(locator, tz=UTC)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_formatter(formatter)
        for at, moment in enumerate(self.changes):
            label = None if at else _NEW_TERM
            axes.axvline(moment, color=WARN, linewidth=1, linestyle="--", label=label)
        return figure, axes

    def lanes(self, axes: Axes) -> None:
        """Show by a band above a plot which member led, and write its number there."""
        named: set[int] = set()
        across = self.edges[-1] - self.edges[0]
        for member, began, ended in sorted(self.reigns):
            axes.plot(
                (began, ended),
                (1.04, 1.04),
                transform=axes.get_xaxis_transform(),
                color=MEMBERS[member % len(MEMBERS)],
                linewidth=_BAND,
                solid_capstyle="butt",
                clip_on=False,
                label=None if member in named else f"member {member} leads",
            )
            named.add(member)
            # The legend's colours look alike to some readers.
            if (ended - began) / across * self.shape.width > _DIGIT * (1 + len(str(member))):
                axes.text(
                    (began + ended) / 2,
                    1.037,
                    str(member),
                    transform=axes.get_xaxis_transform(),
                    color=PAPER,
                    size=_BAND - 2,
                    weight="bold",
                    ha="center",
                    va="center",
                )

    def svg(self, figure: Figure, axes: Axes) -> str:
        """Finish a plot and return it as SVG."""
        axes.set_ylim(bottom=0)
        found = zip(*axes.get_legend_handles_labels(), strict=True)
        # What is drawn comes before the lines upon it.
        named = sorted(found, key=lambda one: one[1] == _NEW_TERM)
        axes.legend(
            *zip(*named, strict=True),
            loc="lower left",
            bbox_to_anchor=(0, 1.08),
            borderaxespad=0.1,
            fontsize=9,
            handlelength=1.5,
            columnspacing=1.5,
            ncols=self.shape.columns,
        )
        return f'<div class="{self.shape.name}">{svg(figure)}</div>'


def _plots(
    written: Sequence[Row], load: Sequence[Row], bucket_s: int, terms: Sequence[Row]
) -> list[str]:
    if not load:
        return []
    with drawing():
        both = [_Buckets.of(load, bucket_s, terms, shape) for shape in _SHAPES]
        loads = [_load_plot(buckets, written, bucket_s) for buckets in both]
        lengths = [_length_plot(buckets, load) for buckets in both]
    caption = f"Where the log ended after each {_span(bucket_s).removeprefix('a ')}."
    return [_load_figure(loads, bucket_s), _figure("Length of the log", lengths, caption)]


def _span(bucket_s: int) -> str:
    return "a second" if bucket_s == 1 else f"{bucket_s:,} seconds"


def _load_figure(plots: Sequence[str], bucket_s: int) -> str:
    caption = f"Each step is an average over {_span(bucket_s)}; the counts are exact."
    return _figure("Load", plots, caption)


def _figure(title: str, plots: Sequence[str], caption: str) -> str:
    drawn = f"<figure>{''.join(plots)}<figcaption>{caption}</figcaption></figure>"
    return _section(title, drawn)


def _load_plot(buckets: _Buckets, written: Sequence[Row], bucket_s: int) -> str:
    figure, axes = buckets.axes()
    counts = {_utc(row["time"]): row["commands"] for row in written}
    rates = [counts.get(begin, 0) / bucket_s for begin in buckets.begins]
    axes.stairs(
        rates,
        buckets.edges,
        fill=True,
        facecolor=AREA,
        edgecolor=INK,
        linewidth=1,
        label="commands a second",
    )
    buckets.lanes(axes)
    return buckets.svg(figure, axes)


def _length_plot(buckets: _Buckets, load: Sequence[Row]) -> str:
    ends = {_utc(row["time"]): row["end"] for row in load}
    lengths = [load[0]["end"] - load[0]["bytes"]]
    for begin in buckets.begins:  # the length stays the same in a bucket without writes
        lengths.append(ends.get(begin, lengths[-1]))
    power = _power(lengths[-1])
    figure, axes = buckets.axes()
    scaled = [length / (1 << 10 * power) for length in lengths]
    axes.plot(buckets.edges, scaled, color=INK, label=f"log position ({_UNITS[power]})")
    return buckets.svg(figure, axes)
