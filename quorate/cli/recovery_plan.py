"""`quorate log recovery-plan`: what the next start of a member will do."""

import json
import time
from pathlib import Path

import attrs
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..storage.tools.recovery_plan import LookedAt, RecoveryPlan, plan_recovery
from .log import store_of, whose
from .show import make_console, print_table
from .status import AsJson
from .words import size

__all__ = ["recovery_plan"]


def recovery_plan(directory: Path, /, *, as_json: AsJson = False) -> int:
    """Tell from what the next start of a member begins, and what it replays; touch nothing.

    Every snapshot is read and checked.

    Exit status: 0 - it can begin, and all snapshots are whole; 1 - one is damaged, or it can't
    begin.

    Parameters
    ----------
    directory
        The member's directory.
    as_json
        For programs.
    """
    store = store_of(directory)
    plan = plan_recovery(store.parent)
    if as_json:
        print(json.dumps(attrs.asdict(plan), indent=2))
    else:
        _show(plan, make_console())
    return int(bool(plan.trouble or plan.tables_damage or any(s.damage for s in plan.snapshots)))


def _show(plan: RecoveryPlan, console: Console) -> None:
    rows = {
        "belongs to": whose(plan.identity),
        "log": f"{plan.start_position:,} to {plan.append_position:,}, "
        f"term {plan.log_term}, known committed up to {plan.commit_position:,}",
        "tables": plan.tables_damage or f"complete up to {plan.tables_position:,}",
    }
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in rows.items():
        table.add_row(f"[bold]{name}[/bold]", escape(value))
    console.print(table)
    if plan.snapshots:
        print_table(console, _table(plan.snapshots), spare=("digest", "unpacked", "log time"))
    console.print()
    if plan.trouble:
        console.print(f"It can't begin: {escape(plan.trouble)}.", style="red")
        return
    first = (
        f"It loads the snapshot at {plan.load.position:,}"
        if plan.load
        else f"It begins with its tables at {plan.tables_position:,}"
    )
    left = plan.append_position - plan.replay_from
    rest = f"replays up to {size(left)} of log" if left else "has nothing to replay"
    console.print(f"{first} and {rest}.", style="green")


def _table(snapshots: tuple[LookedAt, ...]) -> Table:
    table = Table(
        box=None, pad_edge=False, header_style="bold", title="\nSnapshots", title_justify="left"
    )
    for name in ("position", "term", "size", "unpacked"):
        table.add_column(name, justify="right")
    for name in ("log time", "digest", ""):
        table.add_column(name)
    for each in snapshots:
        moment = time.gmtime(each.row.timestamp_ms / 1000)
        table.add_row(
            f"{each.row.position:,}",
            str(each.row.term),
            size(each.file_bytes),
            size(each.raw_bytes),
            time.strftime("%Y-%m-%d %H:%M:%SZ", moment),
            each.digest,
            escape(each.damage) or "whole",
            style="red" if each.damage else "",
        )
    return table
