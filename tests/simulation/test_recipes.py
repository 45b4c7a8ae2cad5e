"""Recipes under storms: they keep their promises, and recipes with one rule removed do not.

`test_recipes_judge.py` tests the judge. `make mutants` hunts all mutants: that takes minutes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from quorate.simulation import Plan, run, simulate
from tests.simulation.connected import connected_storm
from tests.simulation.mutants.recipes import RECIPE_MUTANTS, RecipeMutant, hunt_recipe

CHEAP = ("stay_inside", "let_one_more_in")
SECONDS = 12.0


def test_programs_with_recipes_pass_in_storms() -> None:
    outcome = simulate(Plan(2, 3, SECONDS / 3600, "recipes"))
    assert outcome.violation is None, outcome.story
    assert outcome.acknowledged > 100
    assert outcome.faults


def test_programs_over_connect_pass_in_storms(tmp_path: Path) -> None:
    programs = run(connected_storm, tmp_path, 3, SECONDS, seed=3)
    assert programs.stage.judged > 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", [4, 5])
def test_more_programs_over_connect_pass_in_storms(seed: int, tmp_path: Path) -> None:
    programs = run(connected_storm, tmp_path, seed, 3 * SECONDS, seed=seed)
    assert programs.stage.judged > 10


@pytest.mark.parametrize(
    "mutant", [pytest.param(each, id=each.name) for each in RECIPE_MUTANTS if each.name in CHEAP]
)
def test_a_recipe_with_one_rule_removed_is_found(mutant: RecipeMutant) -> None:
    found = hunt_recipe(mutant)
    assert found is not None
    assert found.violation.startswith(
        tuple(f"ViolationError: Recipes.{rule}: " for rule in mutant.by)
    )
