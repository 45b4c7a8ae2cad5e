"""`make soak`: storms over clusters of three and of five, seed after seed, for as long as told.

In one storm of three, operators change the members, too.

What does not hold is told with the command that repeats it, and the soak goes on. At the end it
tells how much was done, and how fast.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

import attrs

from quorate.simulation import Outcome, Plan, simulate

HOURS = 0.1
SIZES = (3, 3, 5)
"""One seed after the other has so many members."""
KINDS = ("storm", "storm", "members")
"""After each round of sizes comes the next scenario."""


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
        self.counts["operations"] += outcome.operations
        self.counts["acknowledged"] += outcome.acknowledged
        self.counts["facts checked"] += outcome.facts

    def __str__(self) -> str:
        """Tell it on one line."""
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


def main() -> int:
    """Soak; the exit status is 1 if something did not hold."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--hours", type=float, default=0.2, help="of real time, at least")
    length.add_argument("--seconds", type=float, help="the same")
    parser.add_argument("--first", type=int, default=int(time.time()), help="the first seed")
    asked = parser.parse_args(namespace=_Asked())
    logging.getLogger("quorate").setLevel(logging.CRITICAL)
    sums = {members: Sum() for members in SIZES}
    violated: list[str] = []
    end, seed = time.monotonic() + (asked.seconds or 3600 * asked.hours), asked.first
    while time.monotonic() < end:
        kind = KINDS[seed // len(SIZES) % len(KINDS)]
        plan = Plan(seed, SIZES[seed % len(SIZES)], HOURS, kind)
        began = time.process_time()
        outcome = simulate(plan)
        sums[plan.members].add(outcome, time.process_time() - began)
        if outcome.violation is not None:
            violated.append(plan.command)
            _tell(f"seed {seed}: {outcome.violation}\n  again: {plan.command}")
        seed += 1
    for members, done in sums.items():
        if done.runs:
            _tell(f"{members} members: {done}")
    _tell(f"seeds {asked.first} to {seed - 1}: {len(violated)} violations")
    return 1 if violated else 0


def _tell(words: str) -> None:
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
