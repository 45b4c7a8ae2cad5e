"""`make mutants`: hunts all mutants, and writes where each was found."""

from __future__ import annotations

import argparse
import logging
import sys
import time

from tests.simulation.mutants.catalogue import MUTANTS, Mutant
from tests.simulation.mutants.etcd import ETCD_MUTANTS, EtcdMutant, hunt_etcd
from tests.simulation.mutants.hunt import Found, hunt
from tests.simulation.mutants.partitions import (
    PARTITION_MUTANTS,
    PartitionMutant,
    hunt_partition,
)
from tests.simulation.mutants.recipes import RECIPE_MUTANTS, RecipeMutant, hunt_recipe


def main() -> int:
    """Hunt all mutants; the exit status is 1 if one survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="those whose names hold this text")
    parser.add_argument("--members", type=int, default=3, choices=(3, 5))
    asked = parser.parse_args()
    logging.getLogger("quorate").setLevel(logging.CRITICAL)
    survivors = 0
    sys.stdout.write("| mutant | within | found at | by | seconds |\n|---|---|---|---|---|\n")
    hunted: list[Mutant | RecipeMutant | PartitionMutant | EtcdMutant] = [
        *MUTANTS,
        *RECIPE_MUTANTS,
        *PARTITION_MUTANTS,
        *ETCD_MUTANTS,
    ]
    mutants = [each for each in hunted if asked.only in each.name]
    for mutant in mutants:
        began = time.process_time()
        if isinstance(mutant, RecipeMutant):
            found, within = hunt_recipe(mutant), f"{mutant.seeds} seeds"
        elif isinstance(mutant, PartitionMutant):
            found, within = hunt_partition(mutant), f"{mutant.seeds} seeds"
        elif isinstance(mutant, EtcdMutant):
            found, within = hunt_etcd(mutant), f"{mutant.seeds} seeds"
        else:
            found = hunt(mutant, asked.members)
            within = f"{mutant.seeds} seeds" if mutant.schedule is None else "its schedule"
        seconds = time.process_time() - began
        survivors += found is None
        place, by = ("", "SURVIVES") if found is None else _words(found)
        sys.stdout.write(f"| {mutant.name} | {within} | {place} | {by} | {seconds:.0f} |\n")
        sys.stdout.flush()
    sys.stdout.write(f"\n{len(mutants)} mutants, {survivors} survive\n")
    return 1 if survivors else 0


def _words(found: Found) -> tuple[str, str]:
    """Return where, and by which check, a mutant was found."""
    place = "the schedule" if found.seed is None else f"seed {found.seed}"
    first, _, rest = found.violation.partition(": ")
    name = rest.partition(":")[0] if first == "ViolationError" else first
    return place, name[:60]


if __name__ == "__main__":
    sys.exit(main())
