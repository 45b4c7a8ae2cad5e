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
    """Run a server with one member and the flags of etcd; yield its port for clients."""
    port = free_client_port(5)
    client, peer = (f"http://{HOST}:{p}" for p in (port, port + 1))
    words = [*program, "--name", "one", "--data-dir", str(directory / "data")]
    words += ["--listen-client-urls", client, "--advertise-client-urls", client]
    words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
    words += ["--initial-cluster", f"one={peer}"]
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lines").open("wb") as lines:
        child = subprocess.Popen(words, stdout=lines, stderr=subprocess.STDOUT)
    try:
        _wait_until_healthy(client, child)
        yield port
    finally:
        child.kill()
        child.wait()


def _wait_until_healthy(url: str, child: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end and child.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2) as reply:
                if reply.status == 200:
                    return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"{url} does not serve; exit code {child.poll()}")
