"""Real members keep their leader in the two scenarios of BlazingMQ's article."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from quorate.torture.network import NamespaceError, namespace_command


@pytest.mark.slow
def test_neither_a_returning_member_nor_a_broken_link_costs_an_election(tmp_path: Path) -> None:
    try:
        command = namespace_command()
    except NamespaceError as error:
        pytest.skip(f"no network namespaces here: {error}")
    again = [*command, sys.executable, "-m", "tests.programs.crash.stability", str(tmp_path)]
    root = Path(__file__).parents[3]
    done = subprocess.run(again, cwd=root, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [*found] == ["cut_off_and_returning", "to_and_fro"]
    for scenario, seen in found.items():
        assert seen["leader_after"] == seen["leader"], scenario
        assert seen["term_after"] == seen["term"], scenario
