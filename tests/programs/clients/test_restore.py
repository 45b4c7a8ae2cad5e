"""`quorate restore`: a cluster as it was, and a member of a cluster that runs."""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import json
import shutil
from pathlib import Path

import pytest
import redis

from quorate.local.cluster import free_client_port
from tests.programs.clients.test_control import connect
from tests.support.real import RealCluster, quorate


@pytest.fixture
def backup(whole: RealCluster, tmp_path: Path) -> tuple[Path, int]:
    """A backup with a snapshot, a hundred keys, and then a mistake; with the end before that."""
    there = tmp_path / "backup"
    with redis.Redis(port=whole.leader_port) as client:
        for i in range(50):
            client.set(f"key:{i}", i)
        assert quorate("control", "snapshot", connect(whole, 0)).returncode == 0
        for i in range(50, 100):
            client.set(f"key:{i}", i)
        done = quorate("backup", "--to", str(there), "--json", connect(whole, 0))
        assert done.returncode == 0, done.stderr
        client.flushall()
    assert quorate("backup", "--to", str(there), connect(whole, 0)).returncode == 0
    return there, json.loads(done.stdout)["end_position"]


def test_a_new_cluster_serves_exactly_what_was_before_a_mistake(
    backup: tuple[Path, int], directory: Path
) -> None:
    (there, before), port = backup, free_client_port(3)
    words = ["--new-cluster", "rescue", "--client-port", str(port), "--at", str(before + 1)]
    done = quorate("restore", "--from", str(there), "--to", str(directory), *words)
    assert done.returncode == 0, done.stderr
    first, *members, open_to_all = done.stdout.splitlines()
    assert open_to_all.startswith("Its members ask nobody who they are: ")
    assert f"the log up to {before}, the last end before {before + 1}, of 20" in first
    assert [line.partition(", ")[0] for line in members] == [
        f'{directory}/member-{i}: member {i} of cluster "rescue"' for i in range(3)
    ]
    assert quorate("log", "verify", str(directory / "member-0")).returncode == 0
    with RealCluster.run(directory, port) as cluster, redis.Redis(port=cluster.ports[1]) as client:
        assert {key: client.get(key) for key in client.keys("*")} == {
            b"key:%d" % i: b"%d" % i for i in range(100)
        }
        assert client.incr("key:99") == 100


def test_a_cluster_of_one_was_started_once(backup: tuple[Path, int], directory: Path) -> None:
    there, _before = backup
    words = ["--new-cluster", "rescue", "--members", "1"]
    done = quorate("restore", "--from", str(there), "--to", str(directory), *words)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.splitlines()[-2].endswith("verified and started once")
    assert quorate("log", "verify", str(directory / "member-0")).returncode == 0
    found = json.loads(quorate("log", "describe", "--json", str(directory / "member-0")).stdout)
    assert found["terms"][-1]["term"] >= 1  # of its own election


def test_a_member_is_restored_and_catches_up(whole: RealCluster, backup: tuple[Path, int]) -> None:
    there, before = backup
    with redis.Redis(port=whole.leader_port) as client:
        client.set("after", "the backup")
    member = (whole.leader + 1) % 3
    place = whole.directory / f"member-{member}"
    whole.kill(member)
    for name in ("log", "tables", "snapshots"):
        shutil.rmtree(place / name)
    done = quorate(
        "restore", "--from", str(there), "--to", str(place), "--at", str(before), "--json"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["position"], found["members"][0]["member_id"]) == (before, member)
    whole.restart_dead()
    whole.wait_until_agreed()
    plan = json.loads(quorate("log", "recovery-plan", "--json", str(place)).stdout)
    assert plan["append_position"] > before


def test_what_is_not_possible_is_refused(backup: tuple[Path, int], directory: Path) -> None:
    there, before = backup
    calls = {
        ("--new-cluster", "x", "--at", "2001-01-01"): (1, "can't be restored; from position "),
        ("--new-cluster", "x", "--at", str(before * 2)): (1, f"position {before * 2} can't be"),
        ("--new-cluster", "x", "--at", "soon"): (64, '--at "soon": expected a log position'),
        (): (64, "no node.toml there that says which member"),
    }
    for words, (status, told) in calls.items():
        done = quorate("restore", "--from", str(there), "--to", str(directory), *words)
        assert (done.returncode, told in done.stderr) == (status, True), done.stderr
        assert not directory.exists()
