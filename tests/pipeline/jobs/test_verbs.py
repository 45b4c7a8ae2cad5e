"""`quorate pipeline`: what the verbs print, and their exit statuses."""

# pyright: basic, reportMissingTypeStubs=false
# (those of PySpark have gaps; mypy is strict here as everywhere)

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest

from quorate.cli.app import run
from tests.pipeline.pipeline_world import one_each, write_log

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

BATCHES = one_each([f"SET k{i % 7} v{i}" for i in range(50)], per_batch=5)


def told(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """Run a verb; return its exit status and what it printed."""
    status = run(["pipeline", *map(str, words)])
    captured = capsys.readouterr()
    return status, captured.out + captured.err


def test_a_wrong_call_is_told_before_spark_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert told(capsys, "state", tmp_path, "--conf", "bad") == (
        64,
        'quorate: --conf "bad": expected NAME=VALUE\n',
    )
    status, text = told(capsys, "check", tmp_path / "history.jsonl")
    assert (status, "no such file" in text) == (64, True)


@pytest.mark.spark
def test_state_and_audit_tell_what_they_find(
    spark: SparkSession,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("quorate.pipeline.session.open_session", lambda **_: nullcontext(spark))
    for member in (0, 1):
        write_log(tmp_path / str(member), BATCHES, member_id=member)
    status, text = told(capsys, "state", tmp_path / "0", "--at", "100")
    assert status == 0
    assert "5 keys at position" in text
    status, text = told(capsys, "audit", tmp_path / "0", tmp_path / "1")
    assert (status, "The logs agree" in text) == (0, True)
    status, text = told(capsys, "state", tmp_path / "nowhere")
    assert (status, "no recording there" in text) == (78, True)
