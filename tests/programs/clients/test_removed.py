"""`quorate cluster` after a member was removed: it is not started again, and that is said."""

import signal
import subprocess
import time
from pathlib import Path

from quorate.cli.app import EX_NOPERM
from quorate.local.cluster import HOST, free_client_port
from quorate.local.stores import was_removed
from tests.support.real import PATIENCE_SECONDS, QUORATE, quorate

GONE = "member 0 was removed from the cluster, and is not started"


def begin(directory: Path, port: int) -> subprocess.Popen[str]:
    words = ["cluster", "--dir", str(directory), "--members", "2", "--client-port", str(port)]
    return subprocess.Popen([*QUORATE, *words], stdout=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> str:
    """Stop a cluster in order; return what it has printed."""
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=PATIENCE_SECONDS)[0]


def until_agreed(port: int) -> str:
    """Wait until a member says that all agree; return what `quorate status` prints."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (done := quorate("status", "--connect", f"{HOST}:{port}")).returncode:
        assert time.monotonic() < deadline, done.stdout + done.stderr
        time.sleep(0.2)
    return done.stdout


def test_a_removed_member_is_not_started_again(tmp_path: Path) -> None:
    port = free_client_port(2)
    with begin(tmp_path / "cluster", port) as first:
        until_agreed(port)
        done = quorate("member", "remove", "0", "--connect", f"{HOST}:{port + 1}")
        assert done.returncode == 0, done.stderr
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not was_removed(tmp_path / "cluster" / "member-0"):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(1.0)  # its process has to end, and that is printed
        said = end(first)
    ended = f"member 0 ended with {EX_NOPERM}: it was removed from the cluster, do not start it"
    assert ended in said
    with begin(tmp_path / "cluster", port) as second:
        assert "it is the only voter, none can be lost" in until_agreed(port + 1)
        said = end(second)
    assert said.startswith(GONE)
    assert f"redis-cli -p {port + 1} " in said
    assert not was_removed(tmp_path / "cluster" / "member-1")
    assert not was_removed(tmp_path)
