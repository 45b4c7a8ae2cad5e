"""Turns the pipeline's plots into SVG text that loads no other file, for light or dark paper.

A figure is drawn in the colours for light paper, so any viewer shows it. A browser in dark mode
replaces the colours one by one, by the rules of :func:`dark_css`.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

import io
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import matplotlib as mpl

if TYPE_CHECKING:
    from collections.abc import Generator

    from matplotlib.figure import Figure

__all__ = [
    "DARK",
    "FAINT",
    "INK",
    "ON_WARN",
    "PAPER",
    "TEXT",
    "WARN",
    "dark_css",
    "drawing",
    "svg",
    "svg_file",
]

INK: Final = "#1f4e79"
WARN: Final = "#b03a2e"
ON_WARN: Final = "#fefefe"  # differs from PAPER, so that dark mode does not replace it alike
FAINT: Final = "#dde2e8"
TEXT: Final = "#24292f"
PAPER: Final = "#ffffff"

DARK: Final = {
    INK: "#7db7ee",
    WARN: "#f0806f",
    ON_WARN: "#1d0f0d",
    FAINT: "#3d444d",
    TEXT: "#e6e8eb",
    PAPER: "#16181c",
}
"""The replacement of each colour on dark paper, with about the same contrast."""


@contextmanager
def drawing() -> Generator[None]:
    """Draw figures in these colours within a block, including its calls of :func:`svg`."""
    with mpl.rc_context(
        {
            "axes.edgecolor": TEXT,
            "axes.facecolor": PAPER,
            "axes.labelcolor": TEXT,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "figure.facecolor": PAPER,
            "font.family": "sans-serif",
            "legend.frameon": False,
            "savefig.facecolor": PAPER,
            "svg.fonttype": "none",
            "svg.hashsalt": "quorate",
            "text.color": TEXT,
            "xtick.color": TEXT,
            "ytick.color": TEXT,
        }
    ):
        yield


def dark_css() -> str:
    """Return the CSS rules that replace the colours of figures on dark paper."""
    rules = [
        f'svg [style*="{what}: {light}"]{{{what}:{dark} !important}}'
        for light, dark in DARK.items()
        for what in ("fill", "stroke")
    ]
    return "@media (prefers-color-scheme: dark){" + "".join(rules) + "}"


def svg(figure: Figure) -> str:
    """Return a figure as SVG for a page; equal figures give equal text."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    return text[text.index("<svg") :]


def svg_file(figure: Figure) -> str:
    """Return a figure as a complete SVG file, including the rules for dark paper."""
    head, end, rest = svg(figure).partition(">")
    around = f"@media (prefers-color-scheme: dark){{:root{{background:{DARK[PAPER]}}}}}"
    return f"{head}{end}<style>{around}{dark_css()}</style>{rest}"
