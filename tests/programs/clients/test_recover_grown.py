"""A founder of a cluster that has grown loses its disk; its file still names only itself."""

# redis-py has only partial types
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import redis
import trio

from quorate.cli.app import EX_NOINPUT
from quorate.local.cluster import free_client_port, lay_out
from quorate.local.survey import Verdict, survey
from quorate.node.requests.status import MemberAddress
from tests.support.real import PATIENCE_SECONDS, QUORATE, quorate


class Grown:
    """A cluster that was founded by member 0 and has three members.

    Args:
        directory: of the members.
    """

    def __init__(self, directory: Path) -> None:
        port = free_client_port(6)
        (config,) = lay_out(directory, members=1, client_port=port)
        self.files = [config.directory / "node.toml"]
        self.ports = [port, port + 1, port + 2]
        self.running = dict[int, subprocess.Popen[str]]()
        self.start(0)
        self.until(lambda: self.voters() == [0])
        for i in (1, 2):
            file = directory / f"new-{i}" / "node.toml"
            file.parent.mkdir()
            ports = "--port", str(port + 3 + i), "--client-port", str(port + i)
            where = "--host", "127.0.0.1", *ports, "--connect", f"127.0.0.1:{port}"
            assert quorate("member", "add", *where, "--out", str(file)).returncode == 0
            self.files.append(file)
            self.start(i)
        self.until(lambda: self.voters() == [0, 1, 2])

    def start(self, member: int) -> None:
        """Start a member."""
        self.running[member] = subprocess.Popen(
            [*QUORATE, "run", str(self.files[member])],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def voters(self, by: int = 0) -> list[int]:
        """Return the voters, as a member knows them."""
        seen = trio.run(survey, [MemberAddress(by, "127.0.0.1", self.ports[by])])
        agreed = seen.verdict is Verdict.AGREED
        return [answer.address.member_id for answer in seen.voters if agreed]

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.05)

    def lose_disk(self, member: int) -> None:
        """Kill a member, and empty its directory except for its file."""
        self.end(member)
        file = self.files[member]
        text = file.read_text()
        shutil.rmtree(file.parent)
        file.parent.mkdir()
        file.write_text(text)

    def end(self, member: int) -> None:
        """Kill a member."""
        process = self.running.pop(member)
        process.kill()
        process.communicate()


@pytest.fixture
def grown(tmp_path: Path) -> Generator[Grown]:
    """Give a cluster that has grown, and end its members afterwards."""
    cluster = Grown(tmp_path)
    yield cluster
    for member in [*cluster.running]:
        cluster.end(member)


def test_the_founder_of_a_grown_cluster_is_refused_and_recovers(grown: Grown) -> None:
    file, other = str(grown.files[0]), f"127.0.0.1:{grown.ports[1]}"
    grown.lose_disk(0)
    with redis.Redis(port=grown.ports[1]) as client:
        grown.until(lambda: bool(_written(client)))
    refused = subprocess.run(
        [*QUORATE, "run", file], capture_output=True, text=True, check=False, timeout=60
    )
    assert refused.returncode == EX_NOINPUT, refused.stderr
    assert f"quorate recover {file} --connect 127.0.0.1:PORT" in refused.stderr
    blind = quorate("recover", file)
    assert blind.returncode == 2
    assert f"quorate recover {file} --connect HOST:PORT" in blind.stdout
    done = quorate("recover", file, "--json", "--connect", other)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert json.loads(done.stdout)["admitted"]
    assert "That needs" not in done.stderr
    grown.start(0)
    grown.until(lambda: grown.voters(1) == [0, 1, 2])
    # The two that are left, the one that recovered among them, are a quorum.
    grown.end(2)
    with redis.Redis(port=grown.ports[0]) as client:
        grown.until(lambda: bool(_written(client)))
        assert client.get("key") == b"value"


def _written(client: redis.Redis) -> object:
    try:
        return client.set("key", "value")
    except redis.RedisError:
        return None
