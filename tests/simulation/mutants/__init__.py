"""Tests of the simulation itself: members with one rule removed, each of which it must find.

README.md has a table of the mutants, with the invariant that finds each. ``catalogue`` lists them,
``voting``, ``standing``, ``recording``, ``serving`` and ``members`` define them, and ``hunt`` looks
for them in storms. ``schedules``, ``returning``, ``stores`` and ``member_schedules`` play those
that storms do not find in time.
Read ``catalogue.py`` first.
"""

from tests.simulation.mutants.catalogue import MUTANTS, Mutant
from tests.simulation.mutants.hunt import Found, hunt, play

__all__ = ["MUTANTS", "Found", "Mutant", "hunt", "play"]
