"""Machines are killed under writers, and nothing that was acknowledged is lost."""

# redis-py has only partial types
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import RedisClusterException

from quorate.local.cluster import HOST, free_client_port
from tests.support.real import PATIENCE_SECONDS, QUORATE

MACHINES = 3
WRITERS = 2
FAILURES = (redis.RedisError, RedisClusterException, OSError)


class Machines:
    """`quorate cluster` with two partitions on three machines."""

    def __init__(self, directory: Path, client_port: int) -> None:
        self.directory = directory
        self.ports = [client_port + 100 * i for i in range(MACHINES)]

    @classmethod
    @contextmanager
    def run(cls, directory: Path) -> "Generator[Machines]":
        """Run the cluster for the duration of a block; it must end in order."""
        running = cls(directory, free_client_port(9))
        command = [*QUORATE, "cluster", "--dir", str(directory), "--partitions", "2"]
        with (directory.parent / "cluster.out").open("wb") as out:
            process = subprocess.Popen(
                [*command, "--client-port", str(running.ports[0])], stdout=out, stderr=out
            )
        try:
            yield running
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()  # the machines end with their standard input
            process.wait()

    def pid(self, machine: int, name: str = "") -> int:
        """Return the process id of a supervisor or of a member."""
        return int((self.directory / f"machine-{machine}" / name / "pid").read_text())

    def client(self) -> RedisCluster:
        """Return a client that has found all partitions."""
        nodes = [ClusterNode(HOST, port + 1) for port in self.ports]
        return RedisCluster(startup_nodes=nodes, socket_timeout=5)


class Writers:
    """Threads that write numbered keys, and remember which writes were acknowledged."""

    def __init__(self, machines: Machines) -> None:
        self.acknowledged: list[set[int]] = [set() for _ in range(WRITERS)]
        self._machines = machines
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(n,)) for n in range(WRITERS)]

    @property
    def count(self) -> int:
        """How many writes were acknowledged."""
        return sum(map(len, self.acknowledged))

    @contextmanager
    def running(self) -> Generator[None]:
        """Write for the duration of a block."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._ends.set()
            for thread in self._threads:
                thread.join()

    def go_on(self, more: int) -> None:
        """Wait until some more writes were acknowledged."""
        wanted = self.count + more
        until(lambda: self.count >= wanted)

    def _write(self, number: int) -> None:
        client = self._machines.client()
        at = 0
        while not self._ends.is_set():
            at += 1
            try:
                client.set(f"{number}:{at}", at)
            except FAILURES:
                time.sleep(0.05)
            else:
                self.acknowledged[number].add(at)
                time.sleep(0.005)  # what is written has to be read back
        client.close()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def serves(machines: Machines) -> bool:
    try:
        with machines.client() as client:
            return bool(client.set("a", 1) and client.set("b", 1))
    except FAILURES:
        return False


@pytest.mark.slow
def test_what_was_acknowledged_outlives_a_machine_and_the_metadata_group(tmp_path: Path) -> None:
    with Machines.run(tmp_path / "cluster") as machines:
        until(lambda: serves(machines))
        writers = Writers(machines)
        with writers.running():
            writers.go_on(100)
            before = machines.pid(1, "meta")
            os.killpg(machines.pid(1), signal.SIGKILL)
            writers.go_on(150)
            # Its supervisor is started again, and starts its members.
            until(lambda: machines.pid(1, "meta") != before)
            stopped = [machines.pid(machine, "meta") for machine in range(MACHINES)]
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            writers.go_on(150)
            for pid in stopped:
                os.kill(pid, signal.SIGKILL)
            writers.go_on(100)
        with machines.client() as client:
            for number, acknowledged in enumerate(writers.acknowledged):
                written = sorted(acknowledged)
                found = client.mget_nonatomic([f"{number}:{at}" for at in written])
                assert found == [b"%d" % at for at in written]
