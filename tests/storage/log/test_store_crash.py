"""A store whose process is killed at any moment holds at least what it had reported."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from quorate.storage import verify
from quorate.storage.log.batch import BATCH_ALIGNMENT
from tests.storage.log.appender import REPORT
from tests.support.storage_world import open_store

HERE = Path(__file__).parent
ROUNDS = 6


def run_and_kill(directory: Path, seed: int) -> dict[bytes, tuple[int, int]]:
    """Let the appender work for a random number of reports, kill it, return the last reports."""
    command = [sys.executable, str(HERE / "appender.py"), str(directory), str(seed)]
    reports: dict[bytes, tuple[int, int]] = {}
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[2])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdout is not None
        for _ in range(Random(seed).randrange(1, 120)):
            kind, first, second = REPORT.unpack(child.stdout.read(REPORT.size))
            reports[kind] = (first, second)
        child.kill()
        rest = child.stdout.read()
    for kind, first, second in REPORT.iter_unpack(rest[: len(rest) // REPORT.size * REPORT.size]):
        reports[kind] = (first, second)
    return reports


@pytest.mark.parametrize("seed", [1, 2])
def test_a_killed_process_loses_nothing_that_it_reported(tmp_path: Path, seed: int) -> None:
    vote = -1
    for round_ in range(ROUNDS // 2):
        reports = run_and_kill(tmp_path, seed * ROUNDS + round_)
        position, start = reports[b"A"]
        vote = max(vote, reports.get(b"V", (-1, -1))[0])
        report = verify(tmp_path)
        assert report.ok, [str(finding) for finding in report.findings]
        store = open_store(tmp_path)
        assert store.append_position >= position
        assert store.append_position % BATCH_ALIGNMENT == 0
        assert store.start_position >= start
        assert store.append_position - store.start_position == report.bytes
        assert store.node_state.candidate_term >= vote
        assert store.terms[-1].end is None
        store.close()
