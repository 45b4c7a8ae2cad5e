"""Turns the pipeline's plots into SVG text that loads no other file, for light or dark paper.

Colours and type are those of the live page: ``web/page/style.css`` has each colour twice. A figure
is drawn in the colours for light paper, so any viewer shows it. A browser in dark mode replaces the
colours one by one, by the rules of :func:`dark_css`.
"""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

import io
import re
from contextlib import contextmanager
from importlib.resources import files
from typing import TYPE_CHECKING, Final

import matplotlib as mpl

from ... import web

if TYPE_CHECKING:
    from collections.abc import Generator

    from matplotlib.figure import Figure

__all__ = [
    "AREA",
    "DARK",
    "FAINT",
    "GRID",
    "INK",
    "LINE",
    "MEMBERS",
    "ON_WARN",
    "PAPER",
    "STYLE",
    "TEXT",
    "WARN",
    "dark_css",
    "drawing",
    "svg",
    "svg_file",
]

STYLE: Final = files(web).joinpath("page", "style.css").read_text(encoding="utf-8")
"""What all pages share: rules of CSS, with the colours for light paper and for dark."""

_LIGHT_CSS, _, _DARK_CSS = STYLE.partition("@media (prefers-color-scheme: dark)")


def _colours(css: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", css))


_light, _dark = _colours(_LIGHT_CSS), _colours(_DARK_CSS)
INK: Final = _light["lead"]
AREA: Final = _light["rise-fill"]
"""Fills what a line in ink bounds, so that a line in WARN upon it is seen."""
WARN: Final = _light["bad"]
ON_WARN: Final = _light["on-bad"]
FAINT: Final = _light["follow-fill"]
GRID: Final = _light["line"]
LINE: Final = _light["ink3"]
TEXT: Final = _light["ink"]
PAPER: Final = _light["panel"]
MEMBERS: Final = tuple(_light[name] for name in _light if name.startswith("line-"))
"""Member N has colour N, modulo their number."""

_DRAWN: Final = (
    "lead",
    "rise-fill",
    "bad",
    "on-bad",
    "follow-fill",
    "line",
    "ink3",
    "ink",
    "panel",
)
DARK: Final = {
    _light[name]: _dark[name]
    for name in (*_DRAWN, *(name for name in _light if name.startswith("line-")))
}
"""The replacement of each colour on dark paper, with about the same contrast."""

_SANS: Final = re.sub(r"\s+", " ", re.findall(r"--sans: ([^;]*);", STYLE)[0]).replace('"', "'")


@contextmanager
def drawing() -> Generator[None]:
    """Draw figures in these colours within a block, including its calls of :func:`svg`."""
    with mpl.rc_context(
        {
            "axes.axisbelow": True,
            "axes.edgecolor": LINE,
            "axes.facecolor": PAPER,
            "axes.grid.axis": "y",
            "axes.labelcolor": TEXT,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "figure.facecolor": PAPER,
            "font.family": "sans-serif",
            "grid.color": GRID,
            "legend.frameon": False,
            "savefig.facecolor": PAPER,
            "svg.fonttype": "none",
            "svg.hashsalt": "quorate",
            "text.color": TEXT,
            "xtick.color": LINE,
            "xtick.labelcolor": TEXT,
            "ytick.color": LINE,
            "ytick.labelcolor": TEXT,
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
    # Measured with matplotlib's own font, which is wider than those of systems: words fit.
    text = re.sub(r"(font-family: |font: [^'\";]*?px )[^\";]*", rf"\1{_SANS}", text)
    return text[text.index("<svg") :]


def svg_file(figure: Figure) -> str:
    """Return a figure as a complete SVG file, including the rules for dark paper."""
    head, end, rest = svg(figure).partition(">")
    around = f"@media (prefers-color-scheme: dark){{:root{{background:{DARK[PAPER]}}}}}"
    return f"{head}{end}<style>{around}{dark_css()}</style>{rest}"
