"""The harness is tested itself: members with one rule taken out, each of which it must find."""

from .catalogue import MUTANTS, Mutant
from .hunt import Found, hunt, play

__all__ = ["MUTANTS", "Found", "Mutant", "hunt", "play"]
