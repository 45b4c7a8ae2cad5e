"""`quorate backup` of a real cluster, while it runs, loses its leader, and after it is gone."""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import json
import signal
import subprocess
from pathlib import Path

import redis
import trio

from quorate.local.cluster import HOST
from quorate.node.config.config import load_config
from quorate.node.readers.replay_client import END_OF_TIME, Batch, ReplayClient, fetch
from quorate.pipeline.source.logs import open_log
from quorate.transport import Address
from tests.programs.clients.test_control import connect
from tests.support.real import QUORATE, RealCluster, quorate


def held(done: subprocess.CompletedProcess[str]) -> dict[str, int]:
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_a_backup_is_made_continued_and_looked_into(whole: RealCluster, tmp_path: Path) -> None:
    there = str(tmp_path / "backup")
    with redis.Redis(port=whole.leader_port) as client:
        for i in range(100):
            client.set(f"key:{i}", i)
        first = held(quorate("backup", "--to", there, "--json", connect(whole, 0)))
        for i in range(100):
            client.set(f"key:{i}", -i)
    done = quorate("backup", "--to", there, f"--connect={HOST}:1,{HOST}:{whole.ports[1]}")
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"{HOST}:1: connection refused\n"
    source, summary = done.stdout.splitlines()
    assert source.startswith("recording from member ")
    assert int(source.split()[-1]) != whole.leader
    assert summary.startswith(f'{there} holds cluster "local" from ')
    shown = quorate("log", "describe", there)
    assert 'a backup of cluster "local"' in shown.stdout
    assert quorate("log", "verify", there).returncode == 0
    last = quorate("log", "dump", there).stdout.splitlines()[-2:]
    assert "key:99" in last[-1]
    assert "not known to be committed" not in last[0]
    with open_log(Path(there)) as log:  # what the pipeline's source reads
        assert log.facts.committed > first["end_position"]


def test_a_backup_follows_while_the_leader_dies(whole: RealCluster, tmp_path: Path) -> None:
    there = tmp_path / "backup"
    command = [*QUORATE, "backup", "--follow", "--json", "--to", str(there), connect(whole, 1)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        while "Z  caught up with member" not in process.stderr.readline():  # behind the time
            assert process.poll() is None
        whole.kill(whole.leader)
        whole.restart_dead()
        whole.wait_until_agreed()
        with redis.Redis(port=whole.leader_port) as client:
            client.set("after", "the leader's death")
        end = whole.survey().head
        wait_for(there, end)
        process.send_signal(signal.SIGTERM)
        stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert json.loads(stdout)["end_position"] >= end
    assert quorate("log", "verify", str(there)).returncode == 0


def wait_for(directory: Path, end: int) -> None:
    """Wait until a backup that is being written reaches so far."""
    for _ in range(200):
        done = quorate("log", "describe", "--json", str(directory))
        if json.loads(done.stdout)["append_position"] >= end:
            return
    raise AssertionError("the backup does not follow")


def test_the_committed_log_without_an_event_loop(whole: RealCluster) -> None:
    with redis.Redis(port=whole.leader_port) as writer:
        writer.set("read", "from outside")
    config = load_config(whole.directory / "member-0" / "node.toml")
    addresses = [Address(each.host, each.member_port) for each in config.members]
    client = ReplayClient("local", [Address(HOST, 1), *addresses])
    found: list[Batch] = []
    while not any(b"from outside" in batch.data for batch in found):  # a follower hears it later
        found = trio.run(fetch, client, 0, END_OF_TIME, 1 << 20)
    assert found[0].header.position == 0
    stop = found[-1].header.position
    assert trio.run(fetch, client, 0, stop, 1 << 20) == found[:-1]


def test_nobody_there(tmp_path: Path) -> None:
    done = quorate("backup", "--to", str(tmp_path / "backup"), "--connect", f"{HOST}:1")
    assert (done.returncode, done.stderr) == (2, f"{HOST}:1: connection refused\n")
    assert not (tmp_path / "backup").exists()
