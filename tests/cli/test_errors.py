"""The errors of the one tree."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quorate.errors import DamagedRecordError


@pytest.mark.parametrize("reason", ["", "checksum 7, expected 8", "at: member 1"])
def test_damage_is_read_back_from_a_traceback(reason: str) -> None:
    error = DamagedRecordError(member_id=2, term=-1, position=3264, reason=reason)
    quoted = f"Traceback:\n  File x\nquorate.errors.DamagedRecordError: {error}\n\tat java.lang\n"
    found = DamagedRecordError.quoted_in(quoted)
    assert found is not None
    assert (found.member_id, found.term, found.position, found.reason) == (2, -1, 3264, reason)
    assert str(found) == str(error)
    assert DamagedRecordError.quoted_in("member 2: nothing") is None


NODE = """
import sys, trio, quorate
from pathlib import Path
from quorate.local.cluster import lay_out
config = lay_out(Path(sys.argv[1]), members=1, client_port=20000)[0]
async def main():
    async with quorate.open_node(config):
        pass
trio.run(main)
"""


@pytest.mark.parametrize("how", ["option", "variable"])
def test_python_without_assertions_is_refused(tmp_path: Path, how: str) -> None:
    """The command line, and a program that embeds a member."""
    options = ["-O"] if how == "option" else []
    environment = os.environ | ({"PYTHONOPTIMIZE": "1"} if how == "variable" else {})
    for arguments, status in (
        (["-m", "quorate", "--version"], 78),
        (["-c", NODE, str(tmp_path)], 1),
    ):
        done = subprocess.run(
            [sys.executable, *options, *arguments],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        assert done.returncode == status
        assert "assertions off (-O or PYTHONOPTIMIZE)" in done.stderr
