"""Real etcd and a member of quorate as child processes, each alone, on ports of loopback."""

import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from quorate.local.cluster import HOST, free_client_port

PATIENCE_SECONDS = 30.0
SHIM = (sys.executable, "-m", "tests.etcd.foreign.member")


def etcd_program() -> str:
    """Return where etcd is (or what ETCD says, for another version); skip if there is none."""
    found = shutil.which(os.environ.get("ETCD", "etcd"))
    if found is None:
        pytest.skip("compares with real etcd: install Debian's etcd-server")
    return found


@contextmanager
def running(program: Sequence[str], directory: Path) -> Generator[int]:
    """Run a server with one member; yield its port for clients."""
    port = free_client_port(5)
    with child(program, directory, "one", port, f"one=http://{HOST}:{port + 1}") as process:
        wait_until_healthy(port, process)
        yield port


@contextmanager
def child(
    program: Sequence[str], directory: Path, name: str, port: int, everyone: str
) -> Generator[subprocess.Popen[bytes]]:
    """Run a member with the flags of etcd.

    Args:
        program: words that start it.
        directory: of its data and its lines.
        name: of the member.
        port: for clients; the next one is for its peers.
        everyone: the members of the cluster, as `--initial-cluster` wants them.
    """
    client, peer = (f"http://{HOST}:{p}" for p in (port, port + 1))
    words = [*program, "--name", name, "--data-dir", str(directory / "data")]
    words += ["--listen-client-urls", client, "--advertise-client-urls", client]
    words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
    words += ["--initial-cluster", everyone]
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lines").open("wb") as lines:
        process = subprocess.Popen(words, stdout=lines, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_until_healthy(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a member serves clients."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=2) as reply:
                if reply.status == 200:
                    return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"port {port}: nothing serves; exit code {process.poll()}")
