"""The hunt for a mutant: seed after seed, until something does not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest

from quorate.simulation import Plan, simulate

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .catalogue import Mutant

HOURS = 0.02


@attrs.frozen
class Found:
    """Where a mutant was found.

    Args:
        seed: in which run.
        violation: by what.
    """

    seed: int
    violation: str


def hunt(mutant: Mutant, seeds: Iterable[int] | None = None, members: int = 3) -> Found | None:
    """Look for a mutant; None if it survives.

    Args:
        mutant: to be found.
        seeds: to try, those of the mutant unless given.
        members: of the cluster.
    """
    with pytest.MonkeyPatch.context() as patch:
        mutant.change(patch)
        for seed in range(mutant.seeds) if seeds is None else seeds:
            outcome = simulate(Plan(seed, members, HOURS, mutant.scenario))
            if outcome.violation is not None:
                return Found(seed, outcome.violation)
    return None
