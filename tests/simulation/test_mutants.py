"""What the harness is worth: members with one rule taken out are found, the cheap ones here.

`make mutants` hunts all of them, which takes minutes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.simulation.mutants import MUTANTS, Mutant, hunt, play
from tests.simulation.mutants.etcd import ETCD_MUTANTS
from tests.simulation.mutants.partitions import PARTITION_MUTANTS
from tests.simulation.mutants.recipes import RECIPE_MUTANTS

if TYPE_CHECKING:
    from tests.simulation.mutants.catalogue import Schedule

CHEAP = [each for each in MUTANTS if each.cheap or each.schedule is not None]


@pytest.mark.parametrize("mutant", CHEAP, ids=[each.name for each in CHEAP])
def test_a_mutant_is_found(mutant: Mutant) -> None:
    assert hunt(mutant) is not None


PLAYED = {each.schedule: each.members for each in MUTANTS if each.schedule}


@pytest.mark.parametrize(
    ("schedule", "members"), PLAYED.items(), ids=[schedule.__name__ for schedule in PLAYED]
)
def test_a_schedule_does_no_harm_to_the_members_as_they_are(
    schedule: Schedule, members: int
) -> None:
    assert play(schedule, members) == []


def test_the_table_has_every_mutant() -> None:
    table = (Path(__file__).parent / "mutants" / "README.md").read_text()
    shown = re.findall(r"^\| (\w+) \| (?:\d+ seeds|its schedule) \|", table, re.MULTILINE)
    recipes = [each.name for each in RECIPE_MUTANTS]
    partitions = [each.name for each in PARTITION_MUTANTS]
    etcd = [each.name for each in ETCD_MUTANTS]
    assert shown == [each.name for each in MUTANTS] + recipes + partitions + etcd


def test_there_are_twenty_and_each_is_another() -> None:
    assert len({each.name for each in MUTANTS}) == len(MUTANTS) >= 20
