"""Tests of the simulation itself: members with one rule removed, each of which it must find.

README.md has the table: each mutant, and which invariant finds it.
"""

from tests.simulation.mutants.catalogue import MUTANTS, Mutant
from tests.simulation.mutants.hunt import Found, hunt, play

__all__ = ["MUTANTS", "Found", "Mutant", "hunt", "play"]
