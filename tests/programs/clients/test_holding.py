"""`quorate lock` and `quorate elect`: a command runs under a lease, and ends with it."""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false

import os
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager

import pytest
import redis

from quorate.cli.app import EX_USAGE, run
from quorate.local.cluster import free_client_port
from tests.support.real import QUORATE, RealCluster

# The second process of the group does not hear of SIGTERM by itself.
STUBBORN = "trap '' TERM; sleep 60 & echo $!; wait; sleep 60"


def connect(cluster: RealCluster) -> list[str]:
    return [word for port in cluster.ports for word in ("--connect", f"127.0.0.1:{port}")]


@contextmanager
def holding(
    cluster: RealCluster, verb: str, *options: str, script: str
) -> Generator[tuple[subprocess.Popen[str], str]]:
    """Run a script under a lease in a process; yield that and the first line of the script."""
    command = [*QUORATE, verb, "jobs", *connect(cluster), *options, "--", "sh", "-c", script]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.terminate()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:  # noqa: PTH123
        return ") Z " not in file.read()


def test_a_command_has_its_token_and_its_status_is_passed_on(
    whole: RealCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [*connect(whole), "--", "sh", "-c", "echo $QUORATE_TOKEN; exit 7"]
    assert run(["lock", "jobs", *words]) == 7
    assert run(["lock", "jobs", *words]) == 7
    assert run(["elect", "jobs", *words]) == 7
    first, second, third = map(int, capfd.readouterr().out.split())
    assert 0 < first < second < third


def test_commands_that_cannot_be_run(whole: RealCluster, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["lock", "jobs", *connect(whole), "--", "no-such-command"]) == 127
    assert run(["lock", "jobs", *connect(whole), "--", "/etc/passwd"]) == 126
    nobody = ["--connect", f"127.0.0.1:{free_client_port(1)}", "--wait", "0"]
    assert run(["lock", "jobs", *nobody, "--", "true"]) == 125
    assert run(["lock", "jobs"]) == EX_USAGE
    assert run(["lock", "jo bs", "--", "true"]) == EX_USAGE
    assert run(["elect", "jobs", "--ttl", "0", "--", "true"]) == EX_USAGE
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "quorate: no-such-command: No such file or directory"
    assert lines[1] == "quorate: /etc/passwd: Permission denied"
    assert "no member can be reached" in lines[2]
    assert (
        lines[3]
        == "quorate: lock jobs: expected a name, and a command behind --: lock NAME -- sleep 10"
    )
    assert lines[5].startswith("quorate: --ttl = 0.0: expected seconds, 0.1 to 86")


def test_a_lost_lock_ends_its_command_and_what_that_has_started(
    whole: RealCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    options = "--ttl", "1.5", "--grace", "0.5"
    with holding(whole, "lock", *options, script=STUBBORN) as (process, child):
        assert run(["lock", "jobs", "--wait", "0", *connect(whole), "--", "true"]) == 124
        assert "lock 'jobs' was not free" in capfd.readouterr().err
        assert is_running(int(child))
        with redis.Redis(port=whole.ports[0]) as client:
            assert client.delete("quorate:lock:{jobs}:owner") == 1
        assert process.wait(20) == 122
        assert process.stderr is not None
        assert "was lost: it was deleted or has another owner" in process.stderr.read()
        assert not is_running(int(child))


def test_signals_are_passed_on_and_a_waiting_process_ends_at_once(whole: RealCluster) -> None:
    with holding(whole, "elect", script="echo here; exec sleep 60") as (leader, _):
        follower = subprocess.Popen(
            [*QUORATE, "elect", "jobs", *connect(whole), "--", "echo", "leads"],
            stdout=subprocess.PIPE,
        )
        with redis.Redis(port=whole.ports[0]) as client:
            deadline = time.monotonic() + 30
            while not [*client.scan_iter("quorate:election:{jobs}:line:*")]:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        follower.send_signal(signal.SIGINT)
        assert follower.communicate(timeout=20)[0] == b""
        assert follower.returncode == 130
        leader.terminate()
        assert leader.wait(20) == 143
