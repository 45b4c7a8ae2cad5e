"""`etcdctl lock` and `elect` among several processes, through a kill of quorate's leader."""

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import attrs
import pytest

from quorate.local.cluster import HOST, free_client_port
from tests.etcd.oracle.servers import SHIM, child, wait_until_healthy

pytestmark = pytest.mark.slow

SECONDS: Final = 40
STRIDE: Final = 5
CONTENDERS: Final = 4
HOLD: Final = 'for i in 1 2 3; do echo in >> "$0"; sleep 0.3; echo out >> "$0"; done'
MEMBERS: Final = 3


@attrs.frozen
class Cluster:
    """Three members as child processes."""

    ports: Sequence[int]
    children: Sequence[subprocess.Popen[bytes]]
    stack: ExitStack

    def etcdctl(self, *words: str) -> subprocess.Popen[str]:
        """Start an etcdctl that knows all members."""
        program = shutil.which("etcdctl")
        assert program is not None
        endpoints = ",".join(f"http://{HOST}:{port}" for port in self.ports)
        process = subprocess.Popen(
            [program, "--endpoints", endpoints, *words], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "ETCDCTL_API": "3"}, start_new_session=True,
        )  # fmt: skip
        self.stack.enter_context(process)
        self.stack.callback(process.kill)
        return process

    def kill_leader(self) -> None:
        """Send SIGKILL to the leader."""
        for port, process in zip(self.ports, self.children, strict=True):
            ask = urllib.request.Request(f"http://{HOST}:{port}/v3/maintenance/status", b"{}")
            with urllib.request.urlopen(ask, timeout=5) as reply:
                status = json.load(reply)
            if status["leader"] == status["header"]["member_id"]:
                process.kill()
                return
        raise AssertionError("no member leads")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Run three members."""
    if shutil.which("etcdctl") is None:
        pytest.skip("runs etcdctl: install Debian's etcd-client")
    first = free_client_port(MEMBERS * STRIDE)
    ports = [first + i * STRIDE for i in range(MEMBERS)]
    everyone = ",".join(f"m{i}=http://{HOST}:{port + 1}" for i, port in enumerate(ports))
    with ExitStack() as stack:
        children = [
            stack.enter_context(child(SHIM, tmp_path / f"m{i}", f"m{i}", port, everyone))
            for i, port in enumerate(ports)
        ]
        for port, process in zip(ports, children, strict=True):
            wait_until_healthy(port, process)
        yield Cluster(ports, children, stack)


def test_a_lock_has_one_holder_at_a_time_while_the_leader_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    held = tmp_path / "held"
    contenders = [
        cluster.etcdctl("lock", "--ttl", "20", "mutex", "--", "sh", "-c", HOLD, str(held))
        for _ in range(CONTENDERS)
    ]
    while not held.exists():
        time.sleep(0.05)
    cluster.kill_leader()
    assert [contender.wait(SECONDS) for contender in contenders] == [0] * CONTENDERS
    assert held.read_text().split() == ["in", "out"] * 3 * CONTENDERS


def test_an_elected_process_stays_elected_while_the_leader_is_killed(cluster: Cluster) -> None:
    campaigns: dict[str, subprocess.Popen[str]] = {}
    for value in ("one", "two", "three"):
        campaigns[value] = cluster.etcdctl("elect", "who", value)
        if value == "one":
            assert lines_of(campaigns[value])[1] == "one"
    cluster.kill_leader()
    time.sleep(3)
    observer = cluster.etcdctl("elect", "-l", "who")
    assert lines_of(observer)[1] == "one"
    campaigns.pop("one").send_signal(signal.SIGINT)
    winner = lines_of(observer)[1]
    assert winner in campaigns
    assert lines_of(campaigns[winner])[1] == winner


def lines_of(process: subprocess.Popen[str]) -> list[str]:
    """Return the next two lines of a process: the key, and the value."""
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(2)]
