"""How the pipeline's plots become text: SVG that loads nothing from anywhere."""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types and those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

import matplotlib as mpl

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["INK", "WARN", "svg"]

INK: Final = "#1f4e79"
WARN: Final = "#b03a2e"


def svg(figure: Figure) -> str:
    """Draw a figure; the same one gives the same text."""
    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "quorate", "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    return text[text.index("<svg") :]
