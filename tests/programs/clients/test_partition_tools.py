"""The commands of docs/partitions.md, and a backup of all partitions that becomes a new cluster."""

import json
import re
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

PAGE = (Path(__file__).parents[3] / "docs" / "partitions.md").read_text()


def shown(places: dict[str, str]) -> dict[str, list[str]]:
    """The commands of the page for a cluster that runs, by their first words; with our places."""
    found: dict[str, list[str]] = {}
    block: list[str] = re.findall(r"## Try it\n\n```\n(.*?)```", PAGE, re.DOTALL)
    for line in block[0].splitlines()[1:]:
        words = [places.get(word, word) for word in line.split()[1:]]
        found[" ".join(words[:2])] = words
    return found


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
    backup = str(tmp_path / "backup")
    places = {"/var/tmp/orders": place, "/var/tmp/orders-backup": backup}
    typed = shown(places | {"127.0.0.1:7001": f"127.0.0.1:{port + 1}"})
    with running(config.directory):
        for partition, key in KEYS.items():
            becomes(port + 1 + partition, True, "SET", key, f"of {key}")
        said = {each: quorate(*words) for each, words in typed.items()}
        for each, done in said.items():
            assert (done.returncode, done.stderr) == (0, ""), (each, done.stdout)
        assert "1 move done" in said["partition move"].stdout
        assert "partition 3: new" in said["partition split"].stdout
        # "b" is in slot 3300, which has moved.
        becomes(port + 2, b"of b", "GET", KEYS[0])
        becomes(port + 2, True, "SET", KEYS[0], "later")

    there, other = tmp_path / "other", free_client_port(9)
    restored = quorate(
        *("restore", "--from", backup, "--to", str(there), "--new-cluster", "other"),
        *("--members", "1", "--client-port", str(other)),
    )
    assert (restored.returncode, restored.stderr) == (0, "")
    with running(there / "machine-0"):
        for partition, key in KEYS.items():
            becomes(other + 2, f"of {key}".encode(), "GET", key)
            assert answers(other + 2, "SET", key, str(partition)) is True
        listed = quorate("partition", "list", "--json", "--connect", str(there))
        found = json.loads(listed.stdout)
        refused = {
            "partition 9: expected one of 0 to 1": ("partition", "move", "5", "--to", "9"),
            "machine 7: expected one of 0": ("machine", "forget", "7"),
            "machine 0: all other machines drain already": ("machine", "drain", "0"),
            "machine 0 is to have members of the metadata": ("machine", "forget", "0", "--apply"),
        }
        for why, words in refused.items():
            done = quorate(*words, "--connect", str(there))
            usage = "expected one of" in why
            assert (done.returncode, why in done.stderr) == (64 if usage else 1, True), done.stderr
    assert found["cluster"] == "other"
    slots = [each.get("slots") for each in found["partitions"]]
    assert slots == [None, "4096-8191", "0-4095,8192-16383"]
