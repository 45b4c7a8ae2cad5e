"""How `quorate pipeline` shows rows of Spark's in a terminal."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .show import print_table
from .words import utc

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["CELL", "show_frame", "show_rows"]

_SHOWN: Final = 20
CELL: Final = 60
"""Letters of a value that are shown."""


def show_rows(console: Console, rows: dict[str, str]) -> None:
    """Print names and values."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in rows.items():
        table.add_row(f"[bold]{name}[/bold]", escape(value))
    console.print(table)


def show_frame(console: Console, frame: "DataFrame", *, spare: Sequence[str] = ()) -> None:
    """Print the first rows; columns of text may wrap, and those of `spare` may be left out."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, kind in frame.dtypes:
        table.add_column(name, overflow="fold" if kind in {"string", "binary"} else "ellipsis")
    rows = frame.take(_SHOWN + 1)
    for row in rows[:_SHOWN]:
        table.add_row(*map(_cell, row))
    print_table(console, table, spare=spare)
    if len(rows) > _SHOWN:
        console.print("...")


def _cell(value: object) -> str:
    match value:
        case None:
            text = ""
        case bytes() | bytearray():
            text = repr(bytes(value))[2:-1]
        case int():
            text = f"{value:,}"
        case float():
            text = f"{value:,.3f}"
        case datetime():
            text = utc(round(value.timestamp() * 1000))  # Spark gives this machine's time zone
        case _:
            text = str(value)
    return escape(text if len(text) <= CELL else f"{text[:CELL]}...")
