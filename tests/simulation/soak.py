"""`make soak`: storms over clusters of three and of five, seed after seed, for as long as wanted.

In one storm of three, operators change the members, too; with ``--members`` in all of them.

A violation is printed with the command that repeats it, and the soak goes on. At the end it prints
how much was done, and how fast. Several processes may soak at once, with first seeds far apart.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import attrs

from quorate.simulation import Outcome, Plan, simulate

if TYPE_CHECKING:
    from collections.abc import Callable

HOURS = 0.1
HASTY_HOURS = 0.02
"""So short that only members with short timeouts fit; more happens in them per virtual hour."""
SIZES = (3, 3, 5)
"""One seed after the other has so many members."""
KINDS = ("storm", "storm", "members")
"""After each round of sizes comes the next scenario."""
MEMBERS = (
    *(("members", size, hours) for hours in (HOURS, HOURS, HASTY_HOURS) for size in (3, 5)),
    *(("changes", size, hours) for hours in (HOURS, HASTY_HOURS) for size in (3, 5)),
)
"""Scenario, members and hours of one seed after the other, if members change in all runs."""


def usual(seed: int) -> Plan:
    """Return the plan of a seed."""
    return Plan(seed, SIZES[seed % len(SIZES)], HOURS, KINDS[seed // len(SIZES) % len(KINDS)])


def of_members(seed: int) -> Plan:
    """Return the plan of a seed; members change in all of them."""
    kind, members, hours = MEMBERS[seed % len(MEMBERS)]
    return Plan(seed, members, hours, kind)


@attrs.define
class Sum:
    """What the runs of one size did."""

    runs: int = 0
    hours: float = 0.0
    seconds: float = 0.0
    counts: Counter[str] = attrs.field(factory=Counter[str])

    def add(self, outcome: Outcome, seconds: float) -> None:
        """Add a run that took so many seconds of this machine."""
        self.runs += 1
        self.hours += outcome.virtual_seconds / 3600
        self.seconds += seconds
        self.counts["elections"] += outcome.elections
        self.counts["terms"] += outcome.terms
        self.counts["faults"] += sum(outcome.faults.values())
        self.counts["configurations"] += outcome.configurations
        for name in ("a new voter", "a new standby", "a new witness", "a new spare"):
            self.counts[name] += outcome.faults.get(name, 0)
        self.counts["lost disks"] += sum(
            outcome.faults.get(name, 0) for name in ("lose disk", "replaced disk")
        )
        self.counts["operations"] += outcome.operations
        self.counts["acknowledged"] += outcome.acknowledged
        self.counts["facts checked"] += outcome.facts

    def __str__(self) -> str:
        """Say it on one line."""
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        return (
            f"{self.runs} seeds, {self.hours:.2f} virtual hours in {self.seconds:.0f} s of "
            f"processor time ({self.hours / self.seconds:.4f} hours per second, "
            f"{self.counts['operations'] / self.seconds:.0f} operations per second): {counts}"
        )


class _Asked(argparse.Namespace):
    hours: float
    seconds: float | None
    first: int
    members: bool
    each: bool


def main() -> int:
    """Soak; the exit status is 1 if something did not hold."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--hours", type=float, default=0.2, help="of real time, at least")
    length.add_argument("--seconds", type=float, help="the same")
    parser.add_argument("--first", type=int, default=int(time.time()), help="the first seed")
    parser.add_argument("--members", action="store_true", help="members change in all runs")
    parser.add_argument("--each", action="store_true", help="print a line for each seed")
    asked = parser.parse_args(namespace=_Asked())
    logging.getLogger("quorate").setLevel(logging.CRITICAL)
    plan_of = of_members if asked.members else usual
    end = time.monotonic() + (asked.seconds or 3600 * asked.hours)
    return _soak(plan_of, asked.first, end, each=asked.each)


def _soak(plan_of: Callable[[int], Plan], first: int, end: float, *, each: bool) -> int:
    sums = {members: Sum() for members in sorted({*SIZES})}
    violated: list[str] = []
    seed = first
    while time.monotonic() < end:
        plan = plan_of(seed)
        began = time.process_time()
        outcome = simulate(plan)
        seconds = time.process_time() - began
        sums[plan.members].add(outcome, seconds)
        if each:
            hours = outcome.virtual_seconds / 3600
            said = "ok" if outcome.violation is None else "VIOLATED"
            _print(f"{said} {hours:.3f} virtual hours, {seconds:.0f} s: {plan.command}")
        if outcome.violation is not None:
            violated.append(plan.command)
            _print(f"seed {seed}: {outcome.violation}\n  again: {plan.command}")
        seed += 1
    for members, done in sums.items():
        if done.runs:
            _print(f"{members} members: {done}")
    hours = sum(done.hours for done in sums.values())
    _print(f"seeds {first} to {seed - 1}: {hours:.2f} virtual hours, {len(violated)} violations")
    return 1 if violated else 0


def _print(words: str) -> None:
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
