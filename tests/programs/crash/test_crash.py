"""The short form of `quorate torture`; `make crash` is the long one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from quorate.histories.history import read_history_untrusted

SECONDS = 6
KILLS = 10


@pytest.mark.slow
def test_members_under_faults_keep_every_promise(tmp_path: Path) -> None:
    history = tmp_path / "history.jsonl"
    options = ["--seconds", str(SECONDS), "--kills", str(KILLS), "--seed", "1", "--json"]
    # Members that come and go have a test of their own: their changes take longer than all this.
    options += ["--history", str(history), "--faults", "kill,pause,partition,slow-disk,full-disk"]
    ended = subprocess.run(
        [sys.executable, "-m", "quorate", "torture", *options],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    told = json.loads(ended.stdout)
    assert told["violations"] == []
    assert (told["ok"], ended.returncode) == (True, 0)
    assert told["faults"]["kill"] >= KILLS
    assert told["elections"] > 1
    assert told["operations"]["ok"] > told["answered"] > 0
    assert told["sent"] > told["answered"]
    assert min(told["etcd"][what] for what in ("writes", "reads", "leases", "resumed")) > 0
    with history.open("rb") as lines:
        assert sum(1 for _ in read_history_untrusted(lines)) == sum(told["operations"].values())
