"""`quorate cluster` as a child process, with kills and restarts for tests."""

# redis-py has only partial types
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Final, Self

import pytest
import redis
import trio

from quorate.cli.app import run
from quorate.local.cluster import HOST, free_client_port
from quorate.local.survey import Survey, Verdict, survey
from quorate.node.requests.status import MemberAddress

MEMBERS: Final = 3
PATIENCE_SECONDS: Final = 60.0
MOST_UNKNOWN: Final = 10
QUORATE: Final = [sys.executable, "-m", "quorate"]


class RealCluster:
    """Three members, started by the command line.

    Args:
        directory: directory of the cluster.
        client_port: client port of member 0.
    """

    def __init__(self, directory: Path, client_port: int) -> None:
        self.directory = directory
        self.ports = [client_port + i for i in range(MEMBERS)]
        self.addresses = [MemberAddress(i, HOST, port) for i, port in enumerate(self.ports)]
        self.killed: set[int] = set()
        self._again: dict[int, subprocess.Popen[bytes]] = {}

    @classmethod
    @contextmanager
    def run(cls, directory: Path, client_port: int | None = None) -> Generator[Self]:
        """Run the cluster for the duration of a block; it must end in order."""
        port = client_port or free_client_port(MEMBERS)
        command = [*QUORATE, "cluster", "--dir", str(directory), "--members", str(MEMBERS)]
        with (directory.parent / "cluster.out").open("wb") as out:
            process = subprocess.Popen(
                [*command, "--client-port", str(port)], stdout=out, stderr=out
            )
        running = cls(directory, port)
        try:
            running.wait_until_agreed()
            yield running
            running.stop_restarted()
            process.send_signal(signal.SIGINT)
            # a cluster without child processes has ended by itself
            assert process.wait(PATIENCE_SECONDS) == (len(running.killed) == MEMBERS)
        finally:
            for child in (process, *running._again.values()):
                if child.poll() is None:
                    child.kill()
                child.communicate()

    def survey(self) -> Survey:
        """Return the present status of the members."""
        return trio.run(survey, self.addresses)

    def wait_until_agreed(self) -> Survey:
        """Wait until all members follow one leader."""
        end = time.monotonic() + PATIENCE_SECONDS
        while (seen := self.survey()).verdict is not Verdict.AGREED:
            assert time.monotonic() < end, seen.problems
            time.sleep(0.05)
        return seen

    @property
    def leader(self) -> int:
        """Return the member that leads."""
        leader = self.wait_until_agreed().leader
        assert leader is not None
        return leader.member_id

    @property
    def leader_port(self) -> int:
        """Return the leader's client port."""
        return self.ports[self.leader]

    @property
    def follower_port(self) -> int:
        """Return the client port of a follower."""
        return self.ports[(self.leader + 1) % MEMBERS]

    def kill(self, member: int) -> None:
        """Kill a member as a crash does."""
        os.kill(int((self.directory / f"member-{member}" / "pid").read_text()), signal.SIGKILL)
        self.killed.add(member)
        if child := self._again.pop(member, None):
            child.communicate()

    def restart_dead(self) -> None:
        """Start every killed member again."""
        for answer in self.survey().answers:
            if answer.status is None:
                file = self.directory / f"member-{answer.address.member_id}" / "node.toml"
                child = subprocess.Popen(
                    [*QUORATE, "run", "--stop-at-eof", str(file)],
                    stdin=subprocess.PIPE,  # it ends when this process does, for any reason
                    stderr=subprocess.DEVNULL,
                )
                self._again[answer.address.member_id] = child

    def stop_restarted(self) -> None:
        """Stop the members that were started again."""
        for child in self._again.values():
            child.terminate()
        for child in self._again.values():
            child.communicate(timeout=PATIENCE_SECONDS)
            assert child.returncode == 0
        self._again.clear()

    def flush(self) -> None:
        """Delete all keys."""
        with redis.Redis(port=self.leader_port) as client:
            client.flushall()


def quorate(*words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command of `quorate` in this process, for starting Python takes longer than most do.

    Args:
        words: the command line. Not `run`, which changes its process: limits, logging, collector.
        typed: what the user types.
    """
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "stdin", io.StringIO(typed))
        status = run(words)
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


def lose_disk(cluster: RealCluster, member: int) -> Path:
    """Kill a member, empty its directory except the configuration, and return that file's path."""
    directory = cluster.directory / f"member-{member}"
    file = directory / "node.toml"
    configuration = file.read_text()
    cluster.kill(member)
    shutil.rmtree(directory)
    directory.mkdir()
    file.write_text(configuration)
    return file


def set_surely(client: redis.Redis, name: str, value: str | int) -> int:
    """Set a key, and repeat while the outcome is unknown; return the number of repetitions."""
    for unknown in range(MOST_UNKNOWN):
        try:
            assert client.set(name, value)
        except redis.ResponseError as error:
            # the leader never answered: this member may not have noticed its death yet
            if not str(error).startswith("UNKNOWN "):
                raise
        else:
            return unknown
    raise AssertionError(f"{name}: {MOST_UNKNOWN} outcomes in a row are unknown")
