"""Every command of docs/operations.md, in its order, on a cluster of three."""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import json
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import redis

from quorate.local.cluster import free_client_port
from quorate.storage.tools.restore import moment
from tests.support.real import QUORATE, RealCluster, lose_disk, quorate

DOCUMENT = Path(__file__).parents[3] / "docs" / "operations.md"
MOMENT = "2026-11-21T21:30:14.700Z"
SHUTDOWN = re.compile(r"snapshot at \d+, after [0-9.]+ s; members 0, 1, 2 stop at position \d+\n")


def commands() -> list[list[str]]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    lines = [line for language, block in fenced if not language for line in block.splitlines()]
    return [line.split()[1:] for line in lines if line.startswith("quorate ")]


def adapted(words: list[str], directory: Path, port: int) -> list[str]:
    """A command of the page, for the cluster of this test."""
    places = {
        "127.0.0.1:7000": f"127.0.0.1:{port}",
        "/var/lib/orders": str(directory),
        "/var/backups": str(directory.parent / "backups"),
        "/var/lib/rescue": str(directory.parent / "rescue"),
    }
    if MOMENT in words:
        there = quorate("log", "describe", "--json", places["/var/backups"] + "/orders").stdout
        places[MOMENT] = moment(json.loads(there)["timestamp_ms"])
    for there, here in places.items():
        words = [word.replace(there, here) for word in words]
    return words


def follows(given: list[str]) -> None:
    """Run a command that stays until it is told to end."""
    with subprocess.Popen([*QUORATE, *given], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "Z  caught up with member" not in process.stdout.readline():  # behind the time
            assert process.poll() is None
        process.terminate()
    assert process.returncode == 0


def lose_disks(cluster: RealCluster, process: "subprocess.Popen[bytes]", *, forced: bool) -> None:
    """Do to the cluster what has to be recovered from: a lost disk, or two with all stopped."""
    if not forced:
        lose_disk(cluster, 2)
        return
    cluster.stop_restarted()
    process.send_signal(signal.SIGINT)
    process.wait(60)
    for member in (1, 2):
        shutil.rmtree(cluster.directory / f"member-{member}")


@pytest.mark.slow
def test_every_command_does_what_the_page_says(directory: Path) -> None:
    port = free_client_port(3)
    start = [*QUORATE, "cluster", "--dir", str(directory), "--client-port", str(port)]
    found = commands()
    assert [words[:2] for words in found if words[0] == "control"] == [
        ["control", verb]
        for verb in ("snapshot", "suspend", "resume", "snapshot", "shutdown", "abort")
    ]
    process = subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        cluster = RealCluster(directory, port)
        cluster.wait_until_agreed()
        with redis.Redis(port=port) as client:
            client.mset({f"key:{i}": i for i in range(1000)})
        for words in found:
            if words[-1] == "--follow":
                follows(adapted(words, directory, port))
                continue
            if process.poll() is not None:  # it was shut down
                process = subprocess.Popen(
                    start, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
                cluster.wait_until_agreed()
            if words[0] == "recover":
                lose_disks(cluster, process, forced="--force-quorum" in words)
            given = adapted(words, directory, port)
            # "local" is the name of the cluster, for a command that asks for it
            done = quorate(*given, typed="local\n")
            assert done.returncode == 0, (given, done.stderr, done.stdout)
            if words[0] == "recover" and process.poll() is None:
                cluster.restart_dead()
                cluster.wait_until_agreed()
            if words[1] in {"shutdown", "abort"}:
                process.wait(60)
                cluster.stop_restarted()
                assert words[1] == "abort" or SHUTDOWN.fullmatch(done.stdout)
    finally:
        process.kill()
        process.communicate()
