"""`quorate simulate`: whole clusters under simulated time, network and disk, from a seed."""

import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, Literal

import attrs
from cyclopts import Parameter
from cyclopts.validators import Number
from rich.console import Console

from ..errors import ConfigurationError, UsageError
from ..local.show import make_console
from ..local.words import counted
from ..recordings.writing import open_to_write
from ..simulation import SCENARIOS, Outcome, Plan, simulate
from ..simulation.plan import SECONDS_PER_HOUR
from .params import AsJson

__all__ = ["simulate_seeds"]


AtLeastOne = Annotated[int, Parameter(validator=Number(gte=1))]
Seed = Annotated[int, Parameter(validator=Number(gte=0), show_default=False)]
Hours = Annotated[float, Parameter(validator=Number(gt=0))]


SEEDS: Final = 20
"""How many seeds are run if none is named. Fewer: rare orders of events are not met. More: it takes
minutes."""


def _is_scenario(_kind: object, value: object) -> None:
    if value not in SCENARIOS:
        raise ValueError(f"expected one of {', '.join(SCENARIOS)}")


Scenario = Annotated[
    str,
    Parameter(validator=_is_scenario, help=f"Which faults: {', '.join(SCENARIOS)}."),
]


def simulate_seeds(  # noqa: D417 - the help of --scenario is made from the code
    *,
    seed: Seed | None = None,
    seeds: Annotated[AtLeastOne | None, Parameter(show_default=False)] = None,
    first: Seed | None = None,
    hours: Hours = 0.1,
    members: Literal[3, 5] = 3,
    scenario: Scenario = "storm",
    service: Annotated[str, Parameter(show_default=False)] = "",
    trace: Annotated[Path | None, Parameter(show_default=False)] = None,
    as_json: AsJson = False,
) -> int:
    """Run simulated clusters through storms of faults, and check the invariants at every event.

    Time is virtual, and a run is a function of its seed. Exit status: 0 - every invariant held;
    1 - one did not.

    Args:
        seed: Run this seed alone.
        seeds: Number of seeds to run; 20 if left out.
        first: The first seed; 0 if left out.
        hours: Virtual hours of each seed.
        members: Number of members with a vote.
        service: A state machine of your own, as package.module:Class, instead of the key-value
            store.
        trace: With --seed: write a recording of the run into this file; compressed with .zst.
        as_json: Print one JSON object for each seed, for programs.
    """
    if trace is not None and seed is None:
        raise UsageError("--trace: needs --seed")
    for name, value in (("--seeds", seeds), ("--first", first)):
        if seed is not None and value is not None:
            raise UsageError(f"{name} {value}: --seed {seed} runs that one alone: leave one out")
    sys.path.insert(0, "")  # a service of the user may be in the current directory
    start = first or 0
    each = range(start, start + (seeds or SEEDS)) if seed is None else (seed,)
    plans = (Plan(one, members, hours, scenario, service) for one in each)
    try:
        with _quiet():
            return _run_all(plans, trace, _Printer(make_console(), as_json=as_json))
    except ConfigurationError as error:  # each value of a plan is an argument of this command
        raise UsageError(str(error)) from error


@contextmanager
def _quiet() -> Generator[None]:
    """Log nothing: simulated members log every fault, and each fault is made here."""
    logger = logging.getLogger("quorate")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _run_all(plans: Iterable[Plan], trace: Path | None, printer: "_Printer") -> int:
    """Run all plans, up to the first violation; return the exit status."""
    for plan in plans:
        outcome = _run(plan, trace)
        printer.show(outcome)
        if outcome.violation is not None:
            path = trace or Path(f"quorate-{plan.seed}.qtrace")
            if trace is None:
                _run(plan, path)  # the same run again, with a trace
            printer.show_violation(outcome, path)
            return 1
    printer.show_end()
    return 0


def _run(plan: Plan, trace: Path | None) -> Outcome:
    if trace is None:
        return simulate(plan)
    with open_to_write(trace) as file:
        return simulate(plan, file)


class _Printer:
    """Prints what the runs did."""

    def __init__(self, console: Console, *, as_json: bool) -> None:
        self._console = console
        self._as_json = as_json
        self._began = time.perf_counter()
        self._runs = 0
        self._hours = 0.0
        self._operations = 0
        self._elections = 0
        self._faults: Counter[str] = Counter()

    def show(self, outcome: Outcome) -> None:
        """Print one run."""
        self._runs += 1
        self._hours += outcome.virtual_seconds / SECONDS_PER_HOUR
        self._operations += outcome.operations
        self._elections += outcome.elections
        self._faults.update(outcome.faults)
        if self._as_json:
            print(json.dumps(attrs.asdict(outcome)))
            return
        verdict = "ok" if outcome.violation is None else "VIOLATION"
        self._console.print(
            f"seed {outcome.plan.seed}: {verdict}, digest {outcome.digest}, "
            f"{outcome.virtual_seconds / SECONDS_PER_HOUR:.3f} h, "
            f"{sum(outcome.faults.values())} faults, {outcome.elections} elections, "
            f"{outcome.operations} operations checked; {self._speed()}"
        )

    def show_violation(self, outcome: Outcome, trace: Path) -> None:
        """Print what did not hold, and how to repeat it."""
        if not self._as_json:
            self._console.print(f"\n{outcome.story}\n{outcome.violation}\n")
            self._console.print(
                f"every event: {trace}\nlook at it: quorate view {trace}\n"
                f"again: {outcome.plan.command}"
            )

    def show_end(self) -> None:
        """Print the sum of all runs."""
        if self._as_json:
            return
        faults = ", ".join(f"{count} x {name}" for name, count in sorted(self._faults.items()))
        runs = counted(self._runs, "seed", "seeds")
        self._console.print(
            f"{runs}, {self._hours:.2f} virtual hours, no violation: "
            f"{self._elections} elections, {self._operations} operations checked; "
            f"{self._speed()}\nfaults: {faults}"
        )

    def _speed(self) -> str:
        real = time.perf_counter() - self._began
        return f"{self._hours / real:.3f} virtual hours per second"
