"""Recipes under storms: they keep their promises, and recipes with one rule removed do not.

`test_recipes_judge.py` tests the judge. `make mutants` hunts all mutants: that takes minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quorate.simulation import Plan, run, simulate
from tests.simulation.connected import connected_digest, connected_storm
from tests.simulation.mutants.recipes import RECIPE_MUTANTS, RecipeMutant, hunt_recipe

CHEAP = ("stay_inside", "let_one_more_in")
SECONDS = 12.0

SEED = 4
SHORT_SECONDS = 4.0

PRINT_DIGEST = f"""
import sys
from pathlib import Path
from quorate.simulation import run
from tests.simulation.connected import connected_digest
print(run(connected_digest, Path(sys.argv[1]), {SEED}, {SHORT_SECONDS}, seed={SEED}))
"""


def test_programs_with_recipes_pass_in_storms() -> None:
    outcome = simulate(Plan(2, 3, SECONDS / 3600, "recipes"))
    assert outcome.violation is None, outcome.story
    assert outcome.acknowledged > 100
    assert outcome.faults


def test_programs_over_connect_pass_in_storms(tmp_path: Path) -> None:
    programs = run(connected_storm, tmp_path, 3, SECONDS, seed=3)
    assert programs.stage.judged > 5


def test_a_seed_is_one_run_over_connect_in_all_processes(tmp_path: Path) -> None:
    here = run(connected_digest, tmp_path / "here", SEED, SHORT_SECONDS, seed=SEED)
    ended = subprocess.run(
        [sys.executable, "-c", PRINT_DIGEST, tmp_path / "there"],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.strip() == here


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
