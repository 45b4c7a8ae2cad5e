"""`quorate partition`, and a backup of all partitions: with real machines, one after the other."""

import json
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quorate.local.cluster import free_client_port
from quorate.machine.layout import lay_out_machines
from tests.support.real import PATIENCE_SECONDS, QUORATE, quorate

from .test_machine import KEYS, answers


@contextmanager
def running(folder: Path) -> Generator[None]:
    """A machine, for the length of a block."""
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(
            [*QUORATE, "run", "--stop-at-eof", str(folder / "machine.toml")],
            stdin=subprocess.PIPE,
            stderr=out,
        )
    try:
        yield
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_SECONDS)


def becomes(port: int, reply: object, *words: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while (found := answers(port, *words)) != reply:  # None while it refuses
        assert time.monotonic() < end, found
        time.sleep(0.05)


@pytest.mark.slow
def test_slots_move_and_a_backup_becomes_another_cluster_with_the_same_owners(
    tmp_path: Path,
) -> None:
    port, place = free_client_port(9), str(tmp_path / "machine-0")
    (config,) = lay_out_machines(tmp_path, machines=1, partitions=2, client_port=port)
    backup = tmp_path / "backup"
    with running(config.directory):
        for partition, key in KEYS.items():
            becomes(port + 1 + partition, True, "SET", key, f"of {key}")
        # The slot of "b" is 3300, of partition 0.
        moved = quorate("partition", "move", "3300-3400", "--to", "1", "--connect", place)
        assert (moved.returncode, moved.stderr) == (0, "")
        assert "1 move done" in moved.stdout
        becomes(port + 2, b"of b", "GET", KEYS[0])
        words = ["--all-partitions", "--consistent", "--to", str(backup)]
        held = quorate("backup", *words, "--connect", f"127.0.0.1:{port + 1}")
        assert (held.returncode, held.stderr) == (0, "")
        becomes(port + 2, True, "SET", KEYS[0], "later")

    there, other = tmp_path / "other", free_client_port(9)
    said = quorate(
        *("restore", "--from", str(backup), "--to", str(there), "--new-cluster", "other"),
        *("--members", "1", "--client-port", str(other)),
    )
    assert (said.returncode, said.stderr) == (0, "")
    with running(there / "machine-0"):
        for partition, key in KEYS.items():
            becomes(other + 2, f"of {key}".encode(), "GET", key)
            assert answers(other + 2, "SET", key, str(partition)) is True
        listed = quorate("partition", "list", "--json", "--connect", str(there))
        found = json.loads(listed.stdout)
    assert found["cluster"] == "other"
    slots = [each.get("slots") for each in found["partitions"]]
    assert slots == [None, "0-3299,3401-8191", "3300-3400,8192-16383"]
