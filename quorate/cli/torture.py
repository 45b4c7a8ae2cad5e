"""`quorate torture`: real members under kills, pauses, partitions and bad disks; a verdict."""

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import attrs
import trio
from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console

from ..demo.tell import summary
from ..errors import ConfigurationError, UsageError
from ..local.log_lines import unblocked_console
from ..local.words import size, span
from ..node.config.config import MAX_MEMBERS
from ..torture.disk import DiskError, slow_library
from ..torture.faults import FAULTS, Fault
from ..torture.network import NamespaceError, namespace_command
from ..torture.plan import Outcome, Plan, torture
from .params import AsJson
from .show import make_console

__all__ = ["torture_members"]

_INSIDE: Final = "QUORATE_TORTURE_NAMESPACE"
"""Set in the process that runs in network namespaces of its own."""


FEWEST_MEMBERS: Final = 3
"""With fewer no member can be lost, and every fault stops the cluster."""

ALL_FAULTS: Final = ",".join(FAULTS)

Members = Annotated[
    int,
    Parameter(
        validator=Number(gte=FEWEST_MEMBERS, lte=MAX_MEMBERS),
        help=f"How many members: {FEWEST_MEMBERS} to {MAX_MEMBERS}.",
    ),
]
Faults = Annotated[
    str,
    Parameter(
        show_default=False, help=f"Some of {', '.join(FAULTS)}, with commas; all if left out."
    ),
]


def torture_members(  # noqa: D417 - the help of two options is made from the code
    *,
    seconds: float = 90.0,
    kills: int = 20,
    members: Members = 3,
    faults: Faults = ALL_FAULTS,
    history: Annotated[Path | None, Parameter(show_default=False)] = None,
    seed: int = 1,
    as_json: AsJson = False,
) -> int:
    """Run real members under faults and load, and check that they kept every promise.

    Exit status 0 only if the clients' history is linearizable, the members' logs and states are
    equal, every record is sound, no member ended by itself, and none stood still for good.
    What a machine does not allow is left out, and said.

    Args:
        seconds: How long the faults go on at least.
        kills: How many members are killed at least, if kills are among the faults.
        history: Keep what every client asked and was told in this file, as JSON lines.
        seed: Of the choice of faults and of what the clients do.
        as_json: Print the outcome for programs; what happens meanwhile goes to standard error.
    """
    teller = _Teller(as_json=as_json)
    chosen = _parse_faults(faults)
    options = ["--seconds", f"{seconds:g}", "--kills", str(kills)]
    options += ["--members", str(members), "--seed", str(seed)]
    options += ["--history", str(history)] if history else []
    left_out = _go_inside(chosen, [*options, *["--json"] * as_json])
    directory = Path(tempfile.mkdtemp(prefix="quorate-torture-"))
    library = _compile(chosen, directory, left_out)
    for fault, reason in left_out.items():
        teller.warn(f"LEFT OUT: {fault}, which this machine does not allow: {reason}")
    possible: tuple[Fault, ...] = tuple(fault for fault in chosen if fault not in left_out)
    if not possible:
        raise ConfigurationError(f"--faults {faults}: none of them can be had on this machine")
    file = history or directory / "history.jsonl"
    plan = Plan(directory, file, seconds, kills, members, seed, possible, library)
    return _conclude(plan, teller, left_out)


def _parse_faults(text: str) -> list[Fault]:
    """Read a list of faults.

    Raises:
        UsageError: one is unknown.
    """
    known: dict[str, Fault] = {fault: fault for fault in FAULTS}
    try:
        return [known[name] for name in dict.fromkeys(text.split(","))]
    except KeyError as error:
        raise UsageError(f"--faults {text}: {error}: expected some of {','.join(FAULTS)}") from None


def _go_inside(chosen: Sequence[Fault], options: Sequence[str]) -> dict[Fault, str]:
    """If there are to be partitions, become the same command in a network namespace of its own.

    Returns:
        Partitions, if they can't be had, with the reason.
    """
    if "partition" not in chosen or os.environ.pop(_INSIDE, ""):
        return {}
    try:
        command = namespace_command()
    except NamespaceError as error:
        return {"partition": str(error)}
    os.environ[_INSIDE] = "1"
    sys.stdout.flush()
    again = [sys.executable, "-m", "quorate", "torture", "--faults", ",".join(chosen), *options]
    os.execvp(command[0], [*command, *again])  # noqa: S606
    raise AssertionError("it never returns")  # pragma: no cover - nor does the line above


def _compile(chosen: Sequence[Fault], directory: Path, left_out: dict[Fault, str]) -> Path | None:
    """Make what makes disks slow, if they are to be; note why that can't be."""
    if "slow-disk" in chosen:
        try:
            return slow_library(directory)
        except DiskError as error:
            left_out["slow-disk"] = str(error)
    return None


def _conclude(plan: Plan, teller: "_Teller", left_out: Mapping[Fault, str]) -> int:
    with unblocked_console(teller.console):
        outcome = trio.run(torture, plan, teller.tell)
    teller.conclude(plan, outcome, left_out)
    if outcome.violations:
        teller.warn(f"Stores and logs are in {plan.directory}; again: {_command(plan)}")
        return 1
    shutil.rmtree(plan.directory)
    return 0


def _command(plan: Plan) -> str:
    faults = ",".join(plan.faults)
    return (
        f"quorate torture --seconds {plan.seconds:g} --kills {plan.kills} "
        f"--members {plan.members} --faults {faults} --seed {plan.seed}"
    )


class _Teller:
    """Tells what goes on, to people on standard output, or to programs."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self.console = Console(highlight=False, stderr=True) if as_json else make_console()
        self._began = time.monotonic()

    def tell(self, text: str) -> None:
        """Tell what goes on."""
        since = time.monotonic() - self._began
        self.console.print(f"{since:7.2f} s  {text}", markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """Tell what is not as asked for."""
        self.console.print(text, style="bold red", markup=False, soft_wrap=True)

    def conclude(self, plan: Plan, outcome: Outcome, left_out: Mapping[Fault, str]) -> None:
        """Tell what came of it all."""
        if self._as_json:
            told = attrs.asdict(outcome) | {"left_out": dict(left_out), "seed": plan.seed}
            print(json.dumps({"ok": not outcome.violations, **told}, indent=2))
            return
        for violation in outcome.violations:
            self.warn(f"VIOLATION: {violation}")
        summary(self.console, _rows(outcome, left_out), held=not outcome.violations)


def _rows(outcome: Outcome, left_out: Mapping[Fault, str]) -> list[tuple[str, str]]:
    hits = [f"{count:,} {fault}" for fault, count in outcome.faults.items()]
    hits += [f"no {fault}" for fault in left_out]
    ended = outcome.operations
    return [
        ("faults that hit a member", ", ".join(hits)),
        ("elections", f"{outcome.elections:,}"),
        (
            "operations",
            f"{ended['ok']:,} ok, {ended['fail']:,} failed, {ended['unknown']:,} unknown",
        ),
        (
            "in sessions",
            f"{outcome.answered:,} of them, each done once, sent {outcome.sent:,} times",
        ),
        ("nothing ok for", f"{span(outcome.longest_pause)} at the longest"),
        ("keys", f"{outcome.keys:,}, each checked for linearizability"),
        ("logs", f"equal and sound, {size(outcome.commit_position)} committed"),
    ]
