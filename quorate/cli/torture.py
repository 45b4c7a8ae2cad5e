"""`quorate torture`: real members under faults, also members that come and go; a verdict."""

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Final

import attrs
import trio
from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console

from ..errors import ConfigurationError, UsageError
from ..local.log_lines import unblocked_console
from ..local.show import make_console, print_verdict
from ..local.words import size, span
from ..node.config.config import MAX_MEMBERS
from ..torture.disk import DiskError, slow_library
from ..torture.faults import FAULTS, TLS_FAULTS, Fault
from ..torture.network import NamespaceError, namespace_command
from ..torture.plan import Outcome, Plan, torture
from .params import AsJson, needing_certs
from .torture_partitions import torture_with_partitions

__all__ = ["torture_members"]

_INSIDE: Final = "QUORATE_TORTURE_NAMESPACE"
"""Set in the process that runs in its own network namespaces."""


FEWEST_MEMBERS: Final = 3
"""With fewer, no member can be lost, and every fault stops the cluster."""

MOST_MACHINES: Final = 16
"""More would not fit onto one computer."""

Members = Annotated[
    int,
    Parameter(
        validator=Number(gte=FEWEST_MEMBERS, lte=MAX_MEMBERS),
        help=f"How many members: {FEWEST_MEMBERS} to {MAX_MEMBERS}.",
    ),
]
Spares = Annotated[
    int,
    Parameter(
        validator=Number(gte=0, lte=MOST_MACHINES - MAX_MEMBERS),
        help="How many further machines there are, for members that come and go.",
    ),
]
Faults = Annotated[
    str,
    Parameter(
        show_default=False,
        help=f"Some of {', '.join(FAULTS)}, with commas; all if left out. "
        f"{' and '.join(TLS_FAULTS)} need --tls.",
    ),
]

Partitions = Annotated[
    int,
    Parameter(
        help="With 2 or more: a cluster with partitions on three machines, whose slots move all "
        "the time. Of the other options it takes --seconds, --seed, --history and --json.",
    ),
]


def torture_members(  # noqa: D417 - the help of two options is made from the code
    *,
    seconds: float = 90.0,
    kills: int = 20,
    members: Members = 3,
    spares: Spares = 2,
    faults: Faults = "",
    partitions: Partitions = 1,
    tls: Annotated[bool, Parameter(negative=())] = False,
    history: Annotated[Path | None, Parameter(show_default=False)] = None,
    seed: int = 1,
    as_json: AsJson = False,
) -> int:
    """Run real members under faults and load, and check that they keep every promise.

    With members among the faults, members are added, promoted, demoted, replaced, moved and removed
    all the time. With users among them, users are made and revoked.

    Exit status: 0 - the clients' history is linearizable, the members' logs and states are equal,
    every record is sound, no member ended by itself, and none hung for good. 1 - otherwise. Faults
    that this machine does not allow are left out, with a warning.

    Args:
        seconds: Least time for which faults go on.
        kills: Least number of members to kill, if kills are among the faults.
        tls: Members have certificates. These, and the CA, are replaced while all runs.
        history: Keep every request and reply in this file, as JSON lines.
        seed: Seed of the faults, and of the clients' choices.
        as_json: Print the outcome for programs; progress goes to standard error.
    """
    if partitions != 1:
        if faults or tls:
            raise UsageError("--partitions: its faults are chosen: leave out --faults and --tls")
        return torture_with_partitions(partitions, seconds, seed, history, as_json=as_json)
    printer = _Printer(as_json=as_json)
    if tls:
        with needing_certs():
            import_module("..local.certificates", __package__)
    chosen = _parse_faults(faults, tls=tls)
    options = ["--seconds", f"{seconds:g}", "--kills", str(kills)]
    options += ["--members", str(members), "--spares", str(spares), "--seed", str(seed)]
    options += ["--history", str(history)] if history else []
    options += ["--tls"] * tls
    left_out = _go_inside(chosen, [*options, *["--json"] * as_json])
    directory = Path(tempfile.mkdtemp(prefix="quorate-torture-"))
    library = _compile(chosen, directory, left_out)
    possible = _possible(chosen, left_out, printer)
    file = history or directory / "history.jsonl"
    plan = Plan(directory, file, seconds, kills, members, seed, possible, library, spares, tls)
    return _conclude(attrs.evolve(plan, command=_command(plan)), printer, left_out)


def _parse_faults(text: str, *, tls: bool) -> list[Fault]:
    """Read a list of faults; all that are possible if it is empty.

    Raises:
        UsageError: one is unknown, or needs TLS.
    """
    known: dict[str, Fault] = {fault: fault for fault in FAULTS}
    if not text:
        return [fault for fault in known.values() if tls or fault not in TLS_FAULTS]
    try:
        chosen: list[Fault] = [known[name] for name in dict.fromkeys(text.split(","))]
    except KeyError as error:
        raise UsageError(f"--faults {text}: {error}: expected some of {','.join(FAULTS)}") from None
    for fault in chosen:
        if fault in TLS_FAULTS and not tls:
            raise UsageError(f"--faults {text}: {fault} replaces certificates: add --tls")
    return chosen


def _possible(
    chosen: Sequence[Fault], left_out: Mapping[Fault, str], printer: "_Printer"
) -> tuple[Fault, ...]:
    """Return the faults that this machine allows; warn of the others.

    Raises:
        ConfigurationError: there are none.
    """
    for fault, reason in left_out.items():
        printer.warn(f"LEFT OUT: {fault}, which this machine does not allow: {reason}")
    possible: tuple[Fault, ...] = tuple(fault for fault in chosen if fault not in left_out)
    if not possible:
        names = ",".join(chosen)
        raise ConfigurationError(f"--faults {names}: this machine allows none of them")
    return possible


def _go_inside(chosen: Sequence[Fault], options: Sequence[str]) -> dict[Fault, str]:
    """For partitions, replace this process by the same command in its own network namespace.

    Returns:
        Partitions with the reason if they are impossible here; else nothing.
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
    raise AssertionError("execvp returned")  # pragma: no cover - it never does


def _compile(chosen: Sequence[Fault], directory: Path, left_out: dict[Fault, str]) -> Path | None:
    """Compile the library that slows down disks, if wanted; note the reason if that fails."""
    if "slow-disk" in chosen:
        try:
            return slow_library(directory)
        except DiskError as error:
            left_out["slow-disk"] = str(error)
    return None


def _conclude(plan: Plan, printer: "_Printer", left_out: Mapping[Fault, str]) -> int:
    with unblocked_console(printer.console):
        outcome = trio.run(torture, plan, printer.tell)
    printer.conclude(plan, outcome, left_out)
    if outcome.violations:
        printer.warn(f"Look at it: quorate view {outcome.recording}")
        printer.warn(f"Stores and logs are in {plan.directory}; again: {plan.command}")
        return 1
    shutil.rmtree(plan.directory)
    return 0


def _command(plan: Plan) -> str:
    faults = ",".join(plan.faults)
    return (
        f"quorate torture --seconds {plan.seconds:g} --kills {plan.kills} "
        f"--members {plan.members} --spares {plan.spares} --faults {faults} --seed {plan.seed}"
        f"{' --tls' * plan.tls}"
    )


class _Printer:
    """Prints what happens: for people to standard output, or for programs."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self.console = Console(highlight=False, stderr=True) if as_json else make_console()
        self._began = time.monotonic()

    def tell(self, text: str) -> None:
        """Print what happens, with the seconds since the start."""
        since = time.monotonic() - self._began
        self.console.print(f"{since:7.2f} s  {text}", markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """Print a warning."""
        self.console.print(text, style="bold red", markup=False, soft_wrap=True)

    def conclude(self, plan: Plan, outcome: Outcome, left_out: Mapping[Fault, str]) -> None:
        """Print the outcome."""
        if self._as_json:
            found = attrs.asdict(outcome) | {"left_out": dict(left_out), "seed": plan.seed}
            print(json.dumps({"ok": not outcome.violations, **found}, indent=2))
            return
        for violation in outcome.violations:
            self.warn(f"VIOLATION: {violation}")
        print_verdict(self.console, _rows(outcome, left_out), held=not outcome.violations)


def _rows(outcome: Outcome, left_out: Mapping[Fault, str]) -> list[tuple[str, str]]:
    without_victims = {"members", "users", *TLS_FAULTS}
    hits = [f"{n:,} {fault}" for fault, n in outcome.faults.items() if fault not in without_victims]
    hits += [f"no {fault}" for fault in left_out]
    ended = outcome.operations
    return [
        ("faults that hit a member", ", ".join(hits)),
        *_changes(outcome),
        *_security(outcome),
        ("elections", f"{outcome.elections:,}"),
        (
            "operations",
            f"{ended['ok']:,} ok, {ended['fail']:,} failed, {ended['unknown']:,} unknown",
        ),
        (
            "in sessions",
            f"{outcome.answered:,} of them, each done once, sent {outcome.sent:,} times",
        ),
        ("blocks of recipes", f"{outcome.blocks:,}, each judged by the log"),
        ("etcd", _etcd(outcome.etcd)),
        ("nothing ok for", f"{span(outcome.longest_pause)} at the longest"),
        ("keys", f"{outcome.keys:,}, each checked for linearizability"),
        ("logs", f"equal and sound, {size(outcome.commit_position)} committed"),
    ]


def _changes(outcome: Outcome) -> list[tuple[str, str]]:
    if "members" not in outcome.faults:
        return []

    def counts(of: Mapping[str, int]) -> str:
        return ", ".join(f"{count:,} {kind}" for kind, count in sorted(of.items()))

    orders, refused = outcome.faults["members"], len(outcome.refused)
    completed = f"{sum(outcome.changes.values()):,} completed: {counts(outcome.changes)}"
    return [
        ("orders about members", f"{orders:,}, {refused:,} of them refused"),
        ("changes of members", f"{completed}; now version {outcome.version:,}"),
        ("apart from these", counts(outcome.aside)),
        ("killed in a change", f"{outcome.killed_in_change:,} members"),
    ]


def _etcd(counts: Mapping[str, int]) -> str:
    kinds = ("writes", "reads", "leases", "locks", "compactions")
    done = ", ".join(f"{counts[what]:,} {what}" for what in kinds)
    return f"{done}; {counts['watches']:,} watches resumed {counts['resumed']:,} times, all equal"


def _security(outcome: Outcome) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    if "users" in outcome.faults:
        ways = ", ".join(f"{count:,} {way}" for way, count in sorted(outcome.revoked.items()))
        refused = f"refused {outcome.refused_users:,} times, and never served again"
        rows.append(("users revoked", f"{ways or 'none'}; {refused}"))
    rotated = [
        f"{outcome.faults[fault]:,} of {fault}" for fault in TLS_FAULTS if fault in outcome.faults
    ]
    if rotated:
        down = f"a link was down for {span(outcome.longest_outage)} at the longest"
        rows.append(
            ("rotations", f"{', '.join(rotated)}; {down} ({outcome.links_measured:,} times)")
        )
    return rows
