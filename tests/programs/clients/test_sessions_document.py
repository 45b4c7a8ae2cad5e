"""docs/sessions.md at the shell: what it says is typed, in this order, and prints what it shows."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.real import RealCluster

DOCUMENT = Path(__file__).parents[3] / "docs" / "sessions.md"
UNKNOWN = "(error) UNKNOWN the outcome"


def transcript() -> list[tuple[str, str]]:
    """Each command that asks a member, and what it prints."""
    text = DOCUMENT.read_text().partition("## From Python")[0]
    blocks = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    typed = [part.partition("\n") for block in blocks for part in block.split("$ ")[1:]]
    return [(line, shown.strip()) for line, _, shown in typed if "redis-cli" in line]


def test_what_it_shows_is_what_one_sees(whole: RealCluster) -> None:
    if shutil.which("redis-cli") is None:
        pytest.skip("there is no redis-cli here")
    leader = whole.leader
    ports: dict[str, int] = dict(
        zip(("7002", "7000", "7001"), [*range(leader, 3), *range(leader)], strict=True)
    )
    session = ""
    for line, shown in transcript():
        if line.startswith("kill -9"):
            whole.kill(leader)
        words = line.rpartition("redis-cli -p ")[2].split()
        port = str(whole.ports[ports[words[0]]])
        words = [session if word == "417" else word for word in words[1:]]
        printed = ask(port, words)
        if words[1] == "OPEN":
            session = printed.removeprefix("(integer) ")
        # whether the write is answered or lost with its leader is a matter of chance
        expected = shown.replace("417", session)
        assert printed in (expected, "(integer) 3") if UNKNOWN in shown else printed == expected
    assert len(transcript()) == 11


def ask(port: str, words: list[str]) -> str:
    """Ask a member as at a terminal."""
    command = ["redis-cli", "--no-raw", "-p", port, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    return done.stdout.strip()
