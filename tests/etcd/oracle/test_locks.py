"""`etcdctl lock` and `elect` among several processes, through a kill of quorate's leader.

etcdctl ends with an error if the connection of a write breaks before its reply is there, whatever
it speaks to. So the leader is killed only once every process has written its key, and while none
removes it.
"""

import base64
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
from typing import Any, Final

import attrs
import pytest

from quorate.local.cluster import HOST, free_client_port
from tests.etcd.oracle.servers import SHIM, child, wait_until_healthy

pytestmark = pytest.mark.slow

SECONDS: Final = 40
STRIDE: Final = 5
CONTENDERS: Final = 4
HOLD: Final = (
    'for i in 1 2 3; do echo in >> "$0"; sleep 0.3; echo out >> "$0"; done;'
    'until [ -e "$0.killed" ]; do sleep 0.1; done; sleep 0.3'
)
"""Enters three times, and keeps the lock until the leader is dead."""
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
            status = ask(port, "maintenance/status", {})
            if status["leader"] == status["header"]["member_id"]:
                process.kill()
                return
        raise AssertionError("no member leads")

    def wait_for_keys(self, prefix: str, number: int) -> None:
        """Wait until so many processes have written their key."""
        start, end = (
            base64.b64encode(key.encode()).decode() for key in (prefix + "/", prefix + "0")
        )
        deadline = time.monotonic() + SECONDS
        request = {"key": start, "range_end": end, "count_only": True}
        while int(ask(self.ports[0], "kv/range", request).get("count", 0)) < number:
            assert time.monotonic() < deadline, f"not {number} keys under {prefix}"
            time.sleep(0.05)


def ask(port: int, what: str, body: dict[str, Any]) -> dict[str, Any]:
    """Ask the JSON gateway of a member."""
    request = urllib.request.Request(f"http://{HOST}:{port}/v3/{what}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=5) as reply:
        answer: dict[str, Any] = json.load(reply)
    return answer


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
    cluster.wait_for_keys("mutex", CONTENDERS)
    cluster.kill_leader()
    Path(f"{held}.killed").touch()
    assert [contender.wait(SECONDS) for contender in contenders] == [0] * CONTENDERS
    assert held.read_text().split() == ["in", "out"] * 3 * CONTENDERS


def test_an_elected_process_stays_elected_while_the_leader_is_killed(cluster: Cluster) -> None:
    campaigns: dict[str, subprocess.Popen[str]] = {}
    for value in ("one", "two", "three"):
        campaigns[value] = cluster.etcdctl("elect", "who", value)
        if value == "one":
            assert lines_of(campaigns[value])[1] == "one"
    cluster.wait_for_keys("who", 3)
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
