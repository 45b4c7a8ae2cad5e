"""`quorate torture --partitions`: slots move while machines and members are killed; a verdict."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import trio
from rich.console import Console

from ..errors import UsageError
from ..local.log_lines import unblocked_console
from ..local.show import make_console, print_verdict
from ..local.words import size, span

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..torture.partitions.plan import Outcome, Plan

__all__ = ["MOST_PARTITIONS", "torture_with_partitions"]

MOST_PARTITIONS = 8
"""Of those in the beginning. More, and one computer runs too many processes."""


def torture_with_partitions(
    partitions: int, seconds: float, seed: int, history: Path | None, *, as_json: bool
) -> int:
    """Run a plan, print its outcome, and return the exit status.

    Raises:
        UsageError: the number is out of range, or redis-py is missing.
    """
    if not 2 <= partitions <= MOST_PARTITIONS:  # noqa: PLR2004 - else there is nothing to move
        raise UsageError(f"--partitions {partitions}: expected 2 to {MOST_PARTITIONS}")
    try:
        import_module("redis")
    except ImportError:
        raise UsageError(
            "--partitions: redis-py is missing, whose cluster client is a part of the load: "
            'pip install ".[redis]" in a checkout of quorate'
        ) from None
    from ..torture.partitions.plan import Plan, torture_partitions  # noqa: PLC0415 - with redis

    directory = Path(tempfile.mkdtemp(prefix="quorate-torture-"))
    plan = Plan(directory, history or directory / "history.jsonl", seconds, partitions, seed)
    console = Console(highlight=False, stderr=True) if as_json else make_console()
    began = time.monotonic()

    def tell(text: str) -> None:
        since = time.monotonic() - began
        console.print(f"{since:7.2f} s  {text}", markup=False, soft_wrap=True)

    with unblocked_console(console):
        outcome = trio.run(torture_partitions, plan, tell)
    _conclude(console, plan, outcome, as_json=as_json)
    if outcome.violations:
        return 1
    shutil.rmtree(directory)
    return 0


def _conclude(console: Console, plan: Plan, outcome: Outcome, *, as_json: bool) -> None:
    held = not outcome.violations
    if as_json:
        print(json.dumps({"ok": held, "seed": plan.seed, **attrs.asdict(outcome)}, indent=2))
    else:
        for each in outcome.violations:
            console.print(f"VIOLATION: {each}", style="bold red", markup=False, soft_wrap=True)
        print_verdict(console, _rows(outcome), held=held)
    if not held:
        again = f"--partitions {plan.partitions} --seconds {plan.seconds:g} --seed {plan.seed}"
        words = f"Stores and logs are in {plan.directory}; again: quorate torture {again}"
        console.print(words, style="bold red", markup=False, soft_wrap=True)


def _rows(outcome: Outcome) -> list[tuple[str, str]]:
    ended = outcome.operations
    return [
        ("faults", _counts(outcome.faults)),
        ("moves", _counts(outcome.moves)),
        (
            "operations",
            f"{ended['ok']:,} ok, {ended['fail']:,} failed, {ended['unknown']:,} unknown",
        ),
        ("numbers", f"{outcome.numbers:,} acknowledged, each there once"),
        ("a client waited", f"{span(outcome.longest_pause)} at the longest"),
        ("keys", f"{outcome.keys:,}, each checked for linearizability"),
        ("logs", f"{size(outcome.committed)}, {outcome.steps:,} steps of moves, one owner each"),
    ]


def _counts(of: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in sorted(of.items())) or "none"
