"""Hypothesis looks for a short script of faults and operations that breaks something.

`make test ARGS="--hypothesis-profile=search tests/simulation/test_machine.py"` looks for longer.
"""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from quorate.simulation import ViolationError
from tests.simulation.machine import Cluster
from tests.simulation.mutants import recording

EXAMPLES = settings().max_examples // 8
STEPS = 30


def test_no_script_breaks_anything() -> None:
    run_state_machine_as_test(
        Cluster, settings=settings(max_examples=EXAMPLES, stateful_step_count=STEPS)
    )


def test_a_mutant_is_found_by_a_short_script(monkeypatch: pytest.MonkeyPatch) -> None:
    recording.commit_with_a_minority(monkeypatch)
    short = settings(max_examples=5, stateful_step_count=4, phases=[Phase.generate])
    with pytest.raises(ViolationError):
        run_state_machine_as_test(Cluster, settings=short)
    assert len(Cluster.script) <= 4
