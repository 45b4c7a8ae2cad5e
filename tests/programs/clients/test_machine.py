"""`quorate run` of a machine: its members serve, are started again, and end with it."""

# redis-py has only partial types
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import os
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import redis

from quorate.keyvalue.slots.folder import MAP_FILE
from quorate.local.cluster import free_client_port
from quorate.machine.layout import lay_out_machines
from tests.support.real import PATIENCE_SECONDS, QUORATE, quorate

KEYS = {0: "b", 1: "a"}
"""A key of each of two partitions."""


def until(holds: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)


def answers(port: int, *words: str) -> object:
    """The reply of a member; None while there is none, or an error."""
    try:
        with redis.Redis(port=port) as client:
            return cast("object", client.execute_command(*words))
    except redis.RedisError:
        return None


def takes(port: int, key: str) -> bool:
    return answers(port, "SET", key, "1") is not None


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_machine_runs_its_members_and_starts_one_again_that_was_killed(tmp_path: Path) -> None:
    port = free_client_port(9)
    (config,) = lay_out_machines(tmp_path, machines=1, partitions=2, client_port=port)
    folder, ports = config.directory, [config.own.port + 1, config.own.port + 2]
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(
            [*QUORATE, "run", "--stop-at-eof", str(folder / "machine.toml")],
            stdin=subprocess.PIPE,
            stderr=out,
        )
    try:
        for partition, key in KEYS.items():
            until(partial(takes, ports[partition], key), process)
        assert (folder / MAP_FILE).exists()
        said = quorate("status", str(tmp_path))
        assert said.returncode == 0, said.stderr
        assert "0-8191 (8,192)" in said.stdout
        killed = int((folder / "partition-1" / "pid").read_text())
        os.kill(killed, signal.SIGKILL)
        until(lambda: is_gone(killed) and answers(ports[1], "GET", KEYS[1]) == b"1", process)
        pids = [int((folder / name / "pid").read_text()) for name in ("meta", "partition-0", "")]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
        assert all(is_gone(pid) for pid in pids)
        assert not (folder / "pid").exists()
    finally:
        process.kill()  # its members end with their standard input
        process.communicate()
