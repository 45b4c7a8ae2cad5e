"""`quorate torture` says what it leaves out, and what it can't read."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quorate.cli.app import EX_CONFIG, EX_USAGE, run


def test_an_unknown_fault_is_told_with_those_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["torture", "--faults", "kill,flood"]) == EX_USAGE
    told = "--faults kill,flood: 'flood': expected some of kill,pause,partition,slow-disk,full-disk"
    assert told in capsys.readouterr().err


def test_what_the_machine_does_not_allow_is_left_out_loudly(tmp_path: Path) -> None:
    """Without `unshare` and a compiler there are neither partitions nor slow disks."""
    environment = {**os.environ, "PATH": str(tmp_path), "TMPDIR": str(tmp_path), "CC": ""}
    ended = subprocess.run(
        [sys.executable, "-m", "quorate", "torture", "--faults", "partition,slow-disk"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert ended.returncode == EX_CONFIG
    assert "LEFT OUT: partition, which this machine does not allow: [Errno 2] " in ended.stdout
    assert "LEFT OUT: slow-disk, which this machine does not allow: no C compiler" in ended.stdout
    assert "--faults partition,slow-disk: this machine allows none of them" in ended.stderr
