"""`make mutants`: hunt all of them, and tell where each was found."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from .catalogue import MUTANTS
from .hunt import hunt


def main() -> int:
    """Hunt; the exit status is 1 if one survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="those whose names hold this text")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--members", type=int, default=3, choices=(3, 5))
    asked = parser.parse_args()
    logging.getLogger("quorate").setLevel(logging.CRITICAL)
    survivors = 0
    for mutant in [each for each in MUTANTS if asked.only in each.name]:
        began = time.process_time()
        seeds = range(asked.first, asked.first + mutant.seeds)
        found = hunt(mutant, seeds, asked.members)
        seconds = time.process_time() - began
        survivors += found is None
        verdict = "SURVIVES" if found is None else f"seed {found.seed}: {found.violation[:90]}"
        sys.stdout.write(f"{mutant.name} ({seconds:.0f} s): {verdict}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{survivors} survive\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
