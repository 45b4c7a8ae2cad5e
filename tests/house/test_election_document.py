"""What docs/election.md says of numbers is so."""

import re
from pathlib import Path

import attrs

from quorate.node.config import PROFILES, TIMEOUTS_AT_LEAST, Timeouts

DOCUMENT = (Path(__file__).parents[2] / "docs" / "election.md").read_text()


def test_the_table_of_timeouts_has_the_numbers_of_the_profiles() -> None:
    (head,) = re.findall(r"^\| timeout \|(.*)\| what it is \|$", DOCUMENT, re.MULTILINE)
    assert re.findall(r"`(\w+)`", head) == list(PROFILES)
    for field in attrs.fields(Timeouts):
        (row,) = re.findall(rf"^\| `{field.name}` \|(.*)\|.*\|$", DOCUMENT, re.MULTILINE)
        told = [float(cell) for cell in row.split("|")]
        assert told == [getattr(timeouts, field.name) for timeouts in PROFILES.values()], field.name


def test_the_table_of_relations_is_the_one_that_is_checked() -> None:
    told = re.findall(r"^\| `(\w+)` (\d) x `(\w+)` \|", DOCUMENT, re.MULTILINE)
    assert [(name, int(times), other) for name, times, other in told] == list(TIMEOUTS_AT_LEAST)
