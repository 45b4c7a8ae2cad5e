"""The harness is tested itself: members with one rule taken out, each of which it must find."""

from tests.simulation.mutants.catalogue import MUTANTS, Mutant
from tests.simulation.mutants.hunt import Found, hunt, play

__all__ = ["MUTANTS", "Found", "Mutant", "hunt", "play"]
