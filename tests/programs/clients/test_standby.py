"""A standby as a process: shown as one, serves clients, never leads, and is not missed."""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import json
import re
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from quorate.local.cluster import HOST, free_client_port, lay_out
from quorate.node.requests.status import MemberAddress
from tests.programs.clients.test_control import connect
from tests.support.real import QUORATE, RealCluster, quorate

STANDBY = 3


@pytest.fixture
def running(directory: Path) -> Generator[RealCluster]:
    """Three members and a standby."""
    port = free_client_port(4)
    mark = f"client_port = {port + STANDBY}\n"
    for config in lay_out(directory, members=4, client_port=port):
        file = config.directory / "node.toml"
        file.write_text(file.read_text().replace(mark, mark + "standby = true\n"))
    command = [*QUORATE, "cluster", "--dir", str(directory), "--members", "4"]
    with subprocess.Popen(
        [*command, "--client-port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        cluster = RealCluster(directory, port)
        cluster.ports.append(port + STANDBY)
        cluster.addresses.append(MemberAddress(STANDBY, HOST, port + STANDBY))
        cluster.wait_until_agreed()
        yield cluster
        process.kill()


def test_a_standby_serves_and_is_shown_as_one(running: RealCluster, tmp_path: Path) -> None:
    with redis.Redis(port=running.ports[STANDBY], decode_responses=True) as client:
        assert client.set("key", "by way of the standby")
        client.readonly()
        eventually(lambda: client.get("key") == "by way of the standby")  # it may be stale
        nodes = str(client.execute_command("CLUSTER", "NODES"))
        assert client.info("raft")["raft_standing"] == "standby"
    with redis.Redis(port=running.leader_port, decode_responses=True) as client:
        told = json.dumps(client.info("replication"))
    found = re.findall(r'"port": (\d+)[^}]*"standby": 1', told)
    assert found == [str(running.ports[STANDBY])], told
    assert nodes.count("nofailover") == 1
    shown = quorate("status", connect(running, 0))
    assert shown.returncode == 0
    assert "all 3 members and 1 standby agree, 1 more can be lost." in shown.stdout
    seen = json.loads(quorate("status", "--json", connect(running, STANDBY)).stdout)
    assert [each["standby"] for each in seen["members"]] == [False, False, False, True]
    refused = quorate("transfer", "--to", str(STANDBY), connect(running, 0))
    assert refused.returncode == 1
    assert "member 3 is a standby: it has no vote and never leads" in refused.stderr
    done = quorate("backup", "--to", str(tmp_path / "backup"), connect(running, 0))
    assert done.stdout.splitlines()[0] == f"recording from member {STANDBY}"
    running.kill(running.leader)
    with redis.Redis(port=running.ports[STANDBY]) as client:
        eventually(lambda: bool(client.set("key", "by way of the standby again")))
    after = json.loads(quorate("status", "--json", connect(running, STANDBY)).stdout)
    assert after["spare_members"] == 0


def eventually(done: Callable[[], bool]) -> None:
    """Ask until it is so; what was on its way to a dead leader has an unknown outcome."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with suppress(redis.ResponseError):
            if done():
                return
    raise AssertionError("not before long")
