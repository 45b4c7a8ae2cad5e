"""Draws the plots of NOTEBOOK.md, figures/*.svg, from the results of the benches.

    python -m bench.report.plots

A plot whose bench was never run stays unchanged. Equal results give equal files.
"""

# pyright: basic, reportMissingTypeStubs=false
# (the types of matplotlib have gaps; mypy is strict here as everywhere)

import io
import sys
from collections.abc import Callable, Sequence
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bench.report.results import FIGURES, Results, Row, read

WIDTH: Final = 9.0
HEIGHT: Final = 3.2
INK: Final = ("#1f4e79", "#b03a2e", "#3a7d44", "#8e6c1f", "#6c3a7d")


def panels(count: int, height: float = HEIGHT) -> tuple[Figure, list[Axes]]:
    """Return a figure with a number of plots side by side."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    found = [figure.add_subplot(1, count, 1 + i) for i in range(count)]
    for axes in found:
        axes.spines[["top", "right"]].set_visible(False)
    return figure, found


def lines(
    axes: Axes, rows: Sequence[Row], x: str, y: str, *, label: str = "", ink: str = INK[0]
) -> None:
    """Draw one field over another."""
    axes.plot(
        [row[x] for row in rows], [row[y] for row in rows], marker="o", color=ink, label=label
    )


def svg(figure: Figure) -> str:
    """Return a figure as SVG; equal figures give equal text."""
    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "quorate", "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def peers(results: Results) -> Figure:
    """Draw our rates next to those of other products."""
    figure, (axes,) = panels(1)
    kinds = [*dict.fromkeys((r["command"], r["clients"], r["pipeline"]) for r in results.rows)]
    names = [*dict.fromkeys(row["cluster"] for row in results.rows)]
    for at, name in enumerate(names):
        found = {
            (row["command"], row["clients"], row["pipeline"]): row["rate"]
            for row in results.rows
            if row["cluster"] == name
        }
        places = [i + (at - (len(names) - 1) / 2) / (len(names) + 1) for i in range(len(kinds))]
        heights = [found.get(kind, 0.0) for kind in kinds]
        axes.bar(places, heights, width=1 / (len(names) + 1), color=INK[at], label=name)
    labels = [
        f"{command.upper()}\n{clients} clients" + (f"\npipeline {pipeline}" if pipeline > 1 else "")
        for command, clients, pipeline in kinds
    ]
    axes.set_xticks(range(len(kinds)), labels, fontsize=8)
    axes.set_ylabel("a second")
    axes.legend(frameon=False)
    return figure


def growth(key: str, title: str) -> Callable[[Results], Figure]:
    """Draw rate, p99 and the leader's processor time over one dimension."""

    def draw(results: Results) -> Figure:
        figure, found = panels(3)
        fields = (("rate", "a second"), ("p99_ms", "p99 ms"), ("leader_us", "leader µs/op"))
        for axes, (field, label) in zip(found, fields, strict=True):
            for command, ink in (("set", INK[0]), ("get", INK[1])):
                lines(axes, results.rows, key, f"{command}_{field}", label=command.upper(), ink=ink)
            axes.set_title(label, fontsize=10)
            axes.set_xlabel(title)
            axes.set_xscale("log" if key != "members" else "linear")
            if field == "p99_ms" or key == "value_bytes":
                axes.set_yscale("log")
            else:
                axes.set_ylim(bottom=0)
        found[0].legend(frameon=False)
        return figure

    return draw


def growth_log(results: Results) -> Figure:
    """Draw seconds over the length of the log."""
    figure, found = panels(3)
    fields = (("restart_s", "restart s"), ("verify_s", "verify s"), ("prune_s", "prune s"))
    for axes, (field, label) in zip(found, fields, strict=True):
        lines(axes, results.rows, "log_mb", field)
        axes.set_title(label, fontsize=10)
        axes.set_xlabel("log MB")
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
    return figure


def overload(results: Results) -> Figure:
    """Draw latencies and memory over time, phase by phase."""
    figure = Figure(figsize=(WIDTH, 2 * HEIGHT), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    began = 0.0
    for row in results.rows:
        if "samples" not in row:
            continue
        told = [line for line in row["samples"]["lines"] if "p50_ms" in line]
        times = [began + line["at"] for line in told]
        for field, ink in (("p50_ms", INK[0]), ("p99_ms", INK[1])):
            label = field.removesuffix("_ms") if not began else ""
            above.plot(times, [line[field] for line in told], color=ink, label=label)
        memory = row["samples"]["memory"]
        for at, name in enumerate(("leader", "one follower", "the other")):
            below.plot(
                [began + seen[0] for seen in memory],
                [seen[at + 1] for seen in memory],
                color=INK[at],
                label="" if began else name,
            )
        name = row["phase"].replace(", ", "\n")
        above.text(began, 1.02, name, transform=above.get_xaxis_transform(), fontsize=7)
        for axes in (above, below):
            axes.axvline(began, color="#999999", linewidth=0.6)
        began += max(memory[-1][0], told[-1]["at"] if told else 0.0) + 1
    above.set_yscale("log")
    above.set_ylabel("ms")
    below.set_ylabel("own memory, MB")
    below.set_ylim(bottom=0)
    below.set_xlabel("seconds")
    for axes in (above, below):
        axes.legend(frameon=False, loc="lower right")
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def catchup(results: Results) -> Figure:
    """Draw how far the follower is behind, and the clients' rate."""
    figure, (left, right) = panels(2)
    for row, ink in zip(results.rows, INK, strict=False):
        seen, told = row["samples"]["positions"], row["samples"]["lines"][:-1]
        behind = [(head - own) / 1e6 for _, head, own in seen]
        left.plot([at for at, _, _ in seen], behind, color=ink, label=f"by {row['way']}")
        right.plot([line["at"] for line in told], [line["answers"] for line in told], color=ink)
        right.axvspan(seen[0][0], seen[-1][0], color=ink, alpha=0.15)
    left.set_ylabel("MB behind")
    left.legend(frameon=False)
    right.set_ylabel("SET a second")
    for axes in (left, right):
        axes.set_xlabel("seconds")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
    return figure


def anatomy(results: Results) -> Figure:
    """Draw a lone client's steps, and the leader's modules."""
    modules = [row for row in results.rows if "module" in row][:16][::-1]
    figure, (left, *others) = panels(2 if modules else 1, height=4.0)
    rows = [row for row in results.rows if "step" in row][::-1]
    left.barh([row["step"] for row in rows], [row["p50_us"] for row in rows], color=INK[0])
    left.set_xlabel("p50 µs")
    for right in others:
        right.barh([row["module"] for row in modules], [row["us"] for row in modules], color=INK[1])
        right.set_xlabel("the leader's µs for a SET, 64 clients")
    for axes in (left, *others):
        axes.tick_params(axis="y", labelsize=7)
    return figure


def lone_set(results: Results) -> Figure:
    """Draw a lone client's SET: each step begins where the previous one ended."""
    figure, (axes,) = panels(1)
    inks = dict(zip(("client", "leader", "follower", "disk"), INK, strict=False))
    began = 0.0
    for row in (row for row in results.rows if "until" in row):
        axes.barh(row["until"], row["us"], left=began, color=inks[row["whose"]])
        began += row["us"]
    axes.invert_yaxis()
    axes.set_xlabel("µs")
    axes.tick_params(axis="y", labelsize=7)
    axes.legend(
        [Patch(color=ink) for ink in inks.values()],
        [*inks],
        frameon=False,
        title="whose turn it is",
    )
    return figure


PLOTS: Final[dict[str, Callable[[Results], Figure]]] = {
    "peers": peers,
    "growth-members": growth("members", "members"),
    "growth-values": growth("value_bytes", "bytes of a value"),
    "growth-keys": growth("keys", "keys"),
    "growth-clients": growth("clients", "clients"),
    "growth-log": growth_log,
    "overload": overload,
    "catchup": catchup,
    "anatomy": anatomy,
    "lone-set": lone_set,
}


def main() -> int:
    """Draw all plots."""
    for name, draw in PLOTS.items():
        if results := read(name):
            (FIGURES / f"{name}.svg").write_text(svg(draw(results)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
