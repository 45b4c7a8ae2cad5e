"""The short form of `quorate torture --tls`, and what it needs."""

import json
import subprocess
import sys

import pytest

from quorate.cli.app import EX_USAGE, run

SECONDS = 10
KILLS = 2


@pytest.mark.slow
def test_certificates_a_ca_and_users_are_replaced_while_all_runs() -> None:
    options = ["--seconds", str(SECONDS), "--kills", str(KILLS), "--seed", "1", "--json", "--tls"]
    options += ["--faults", "users,certificates,ca,kill"]
    ended = subprocess.run(
        [sys.executable, "-m", "quorate", "torture", *options],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    told = json.loads(ended.stdout)
    assert told["violations"] == []
    assert (told["ok"], ended.returncode) == (True, 0)
    assert told["faults"]["ca"] >= 1
    # Of three members each has two links, which were dialled again in each of the four steps.
    assert told["links_measured"] >= 4 * 6
    # 0.4 s on a quiet machine. Other tests run at the same time, and may take both processors.
    assert 0 < told["longest_outage"] <= 3
    assert sum(told["revoked"].values()) >= 1
    assert told["refused_users"] > 0


def test_certificates_are_replaced_only_where_there_are_some(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["torture", "--faults", "kill,ca"]) == EX_USAGE
    assert "--faults kill,ca: ca replaces certificates: add --tls" in capsys.readouterr().err
