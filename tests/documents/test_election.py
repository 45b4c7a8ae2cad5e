"""What docs/election.md says of numbers is so."""

import re
import subprocess
import sys
from pathlib import Path

import attrs

from quorate.node.config.config import PROFILES, TIMEOUTS_AT_LEAST, Timeouts

FAULTS = ("kill", "stop", "cut", "transfer")
ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "election.md").read_text()


def test_the_table_of_timeouts_has_the_numbers_of_the_profiles() -> None:
    (head,) = re.findall(r"^\| timeout \|(.*)\| what it is \|$", DOCUMENT, re.MULTILINE)
    assert re.findall(r"`(\w+)`", head) == list(PROFILES)
    for field in attrs.fields(Timeouts):
        (row,) = re.findall(rf"^\| `{field.name}` \|(.*)\|.*\|$", DOCUMENT, re.MULTILINE)
        told = [float(cell) for cell in row.split("|")]
        assert told == [getattr(timeouts, field.name) for timeouts in PROFILES.values()], field.name


def test_the_table_of_relations_is_the_one_that_is_checked() -> None:
    told = re.findall(r"^\| `(\w+)` (\d+) x `(\w+)` \|", DOCUMENT, re.MULTILINE)
    assert [(name, int(times), other) for name, times, other in told] == list(TIMEOUTS_AT_LEAST)


def test_its_histograms_are_drawn_from_the_measurements() -> None:
    files = [ROOT / f"bench/figures/failover-{fault}.json" for fault in FAULTS]
    command = [sys.executable, "-m", "bench.runs.failover", "show", *map(str, files)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert shown.count("20 times: median") == len(FAULTS)
    assert shown in DOCUMENT
