"""How tables are printed: whole cells, and as many columns as the terminal has room for.

A port or a position that is wrapped or cut is misread. So a cell with a number or an address is
never wrapped or cut. A table that is too wide loses whole columns instead, in an order that the
caller gives, and a line below names them. Only a column of prose (``overflow="fold"``) may wrap.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

__all__ = ["fitted", "make_console", "print_table", "print_verdict"]

_PLAIN_WIDTH: Final = 160
"""Width of a table in a file or a pipe. Smaller, and rows lose columns that programs look for."""

_UNLIMITED: Final = 10_000
_GAP: Final = 2

_PROSE_WIDTH: Final = 24
"""Least width of a column of prose. Smaller, and it has one word a line."""


def make_console() -> Console:
    """Return a console as wide as the terminal, or wide enough for a file or a pipe."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PLAIN_WIDTH)


def print_table(console: Console, table: Table, *, spare: Sequence[str] = ()) -> None:
    """Print a table, without some of its columns if it is too wide.

    Args:
        console: prints it.
        table: has no box.
        spare: headers of the columns that may be left out, the least important first.
    """
    left_out = fitted(console, table, spare)
    for column in table.columns:
        column.no_wrap = column.overflow != "fold"
    width, console.width = console.width, max(console.width, _width(console, table))
    console.print(table)
    console.width = width
    if left_out:
        words = f"Left out, since the terminal is too narrow: {', '.join(left_out)}."
        console.print(words, style="dim", soft_wrap=True)


def fitted(console: Console, table: Table, spare: Sequence[str]) -> list[str]:
    """Remove columns of a table until it fits; return the headers of those.

    Args:
        console: says how wide it may be.
        table: has no box.
        spare: headers of the columns that may be left out, the least important first.
    """
    left_out: list[str] = []
    for name in spare:
        if _width(console, table) <= console.width:
            break
        kept = [column for column in table.columns if column.header != name]
        if len(kept) < len(table.columns):
            table.columns = [replace(column, _index=index) for index, column in enumerate(kept)]
            left_out.append(name)
    return left_out


def _width(console: Console, table: Table) -> int:
    """Return the width of a table in which no number and no address is wrapped."""
    options = console.options.update(max_width=_UNLIMITED)
    widths = 0
    for column in table.columns:
        cells = [column.header, *column.cells]
        widest = max(Measurement.get(console, options, cell).maximum for cell in cells)
        widths += min(widest, _PROSE_WIDTH) if column.overflow == "fold" else widest
    return widths + _GAP * (len(table.columns) - 1)


def print_verdict(console: Console, rows: Sequence[tuple[str, str]], *, held: bool) -> None:
    """Print the facts of a demo or a torture, and whether everything held."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in rows:
        table.add_row(name, escape(value))
    console.print()
    console.print(table)
    console.print()
    if held:
        console.print("All of it held.", style="bold green")
    else:
        console.print("It did not hold: see above.", style="bold red")
