"""`quorate control` and `quorate log recovery-plan` on a real cluster, while clients write."""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import json
import re
import subprocess
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
import redis

from quorate.cli.app import EX_USAGE
from quorate.local.cluster import free_client_port
from tests.support.real import QUORATE, RealCluster, quorate


def connect(cluster: RealCluster, member: int) -> str:
    return f"--connect=127.0.0.1:{cluster.ports[member]}"


@contextmanager
def writing(cluster: RealCluster) -> Generator[list[int]]:
    """Have a client write all the time; it must never fail."""
    stop, counted = threading.Event(), [0]
    troubles: list[Exception] = []

    def write() -> None:
        with redis.Redis(port=cluster.ports[0]) as client:
            while not stop.is_set():
                try:
                    client.incr("count")
                except redis.RedisError as error:
                    troubles.append(error)
                    return
                counted[0] += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield counted
    finally:
        stop.set()
        writer.join()
    assert troubles == []


def test_a_snapshot_on_an_operators_word_is_at_the_same_place_everywhere(
    whole: RealCluster,
) -> None:
    with redis.Redis(port=whole.ports[0]) as client, client.pipeline(transaction=False) as pipe:
        for i in range(2000):
            pipe.set(f"key:{i}", i)
        pipe.execute()
    with writing(whole):
        done = quorate("control", "snapshot", connect(whole, 1))
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"snapshot at (\d+), after [0-9.]+ s\n", done.stdout)
    assert found is not None, done.stdout
    plans = [plan_of(whole, member) for member in range(3)]
    positions = {position for position, _ in plans}
    assert positions == {int(found[1])}
    assert len({digest for _, digest in plans}) == 1
    seen = json.loads(quorate("status", "--json", connect(whole, 0)).stdout)
    assert {member["status"]["snapshot_position"] for member in seen["members"]} == positions
    assert (
        f"Snapshot at {int(found[1]):,}"
        in quorate("log", "describe", str(whole.directory / "member-0")).stdout
    )
    assert quorate("log", "verify", str(whole.directory / "member-0")).returncode == 0


def plan_of(cluster: RealCluster, member: int) -> tuple[int, str]:
    """Position and digest of a running member's snapshot; a follower may still be writing it."""
    for _ in range(100):
        done = quorate(
            "log", "recovery-plan", "--json", str(cluster.directory / f"member-{member}")
        )
        assert done.returncode == 0, done.stderr
        if snapshots := json.loads(done.stdout)["snapshots"]:
            return snapshots[0]["row"]["position"], snapshots[0]["digest"]
    raise AssertionError("no snapshot")


def test_the_recovery_plan_in_words(whole: RealCluster) -> None:
    done = quorate("log", "recovery-plan", str(whole.directory / "member-1"))
    assert done.returncode == 0, done.stderr
    assert "complete up to" in done.stdout
    assert "It starts with its tables" in done.stdout or "It loads" in done.stdout


def test_a_suspended_cluster_reads_and_does_not_write(whole: RealCluster) -> None:
    with redis.Redis(port=whole.ports[0]) as client:
        client.set("key", "before")
        done = quorate("control", "suspend", connect(whole, 2))
        assert done.returncode == 0, done.stderr
        with pytest.raises(redis.RedisError, match="suspended by an operator"):
            client.set("key", "after")
        assert client.get("key") == b"before"
        shown = quorate("status", connect(whole, 0))
        assert shown.returncode == 1
        assert "The cluster is suspended" in shown.stdout
        again = quorate("control", "suspend", connect(whole, 2))
        assert (again.returncode, again.stderr) == (1, "the cluster is suspended already\n")
        assert quorate("control", "resume", connect(whole, 1)).returncode == 0
        client.set("key", "after")


def test_what_programs_are_told(whole: RealCluster) -> None:
    def told(*words: str) -> tuple[int, dict[str, object]]:
        done = quorate(*words, "--json")
        return done.returncode, json.loads(done.stdout)

    status, found = told("control", "snapshot", connect(whole, 1))
    assert (status, found["request"], found["outcome"]) == (0, "snapshot", "done")
    assert [f"snapshot at {at}" for at in cast("list[int]", found["positions"])] == [
        str(found["words"]).partition(",")[0]
    ]
    status, found = told("control", "resume", connect(whole, 1))
    assert (status, found["outcome"]) == (1, "refused")
    assert found["words"] == "the cluster is not suspended"
    status, found = told("control", "resume", "--connect=127.0.0.1:1")
    assert (status, found["outcome"]) == (2, "unreachable")
    leader = whole.leader
    other = (leader + 1) % 3
    for member in (leader, other):
        status, found = told("is-leader", connect(whole, member))
        assert (status, found["leads"]) == (int(member != leader), member == leader)
        assert (found["member_id"], found["leader_id"]) == (member, leader)
    assert quorate("is-leader", "--connect=127.0.0.1:1").returncode == 2
    status, found = told("transfer", "--to", str(other), connect(whole, leader))
    assert found["request"] == f"transfer {other}"
    # The old leader may hear of the new term from the third member first. Then it cannot know yet
    # who leads that, and says so.
    if found["outcome"] == "unknown":
        assert status == 2, found
    else:
        assert (status, found["outcome"]) == (0, "done"), found
        assert f"member {other} leads term" in str(found["words"])
    assert whole.leader == other


@pytest.mark.parametrize("verb", ["snapshot", "suspend", "resume", "shutdown", "abort"])
def test_nobody_there(verb: str) -> None:
    done = quorate("control", verb, "--connect", "127.0.0.1:1")
    assert (done.returncode, done.stderr) == (2, "127.0.0.1:1: connection refused\n")


def test_a_damaged_snapshot_is_in_the_plan_and_found_by_verify(whole: RealCluster) -> None:
    with redis.Redis(port=whole.ports[0]) as client:
        client.set("key", "value")
    for _ in range(2):
        assert quorate("control", "snapshot", connect(whole, 1)).returncode == 0
    member = whole.directory / "member-2"
    last = plan_of(whole, 1)[0]
    for _ in range(100):
        # it may still be writing the last one
        if plan_of(whole, 2)[0] >= last:
            break
    whole.kill(2)
    newest = max(
        each for each in (member / "snapshots").glob("snapshot-*") if each.suffix != ".new"
    )
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)
    done = quorate("log", "recovery-plan", str(member))
    assert done.returncode == 1
    assert "the checksum differs" in done.stdout
    done = quorate("log", "verify", str(member))
    assert done.returncode == 1
    assert newest.name in done.stdout
    newest.unlink()
    whole.restart_dead()
    whole.wait_until_agreed()


@pytest.mark.parametrize("verb", ["shutdown", pytest.param("abort", marks=pytest.mark.slow)])
def test_a_cluster_that_is_told_to_stop_stops_at_one_position_and_loses_nothing(
    directory: Path, verb: str
) -> None:
    port = free_client_port(3)
    command = [*QUORATE, "cluster", "--dir", str(directory), "--client-port", str(port)]
    counted = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        cluster = RealCluster(directory, port)
        cluster.wait_until_agreed()
        with redis.Redis(port=port) as client:
            for _ in range(200):
                counted = int(client.incr("count"))
        done = quorate("control", verb, connect(cluster, 1))
        assert done.returncode == 0, done.stderr
        assert "members 0, 1, 2 stop at position" in done.stdout
        process.wait(60)
    position = int(done.stdout.split()[-1])
    for member in range(3):
        plan = json.loads(
            quorate("log", "recovery-plan", "--json", str(directory / f"member-{member}")).stdout
        )
        assert plan["append_position"] == position
        assert plan["tables_position"] == position
        assert len(plan["snapshots"]) == (verb == "shutdown")
        assert " ends: " in (directory / f"member-{member}" / "member.log").read_text()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        cluster.wait_until_agreed()
        with redis.Redis(port=port) as client:
            assert int(client.get("count") or 0) == counted
        assert quorate("control", "abort", connect(cluster, 0)).returncode == 0
        process.wait(60)


def test_messages_are_recorded_on_an_operators_word(whole: RealCluster, tmp_path: Path) -> None:
    with writing(whole):
        done = quorate("trace", "start", "--messages", "--for=9s", connect(whole, 2))
        assert done.returncode == 0, done.stderr
        said = [f"member {i}: all messages are recorded, for 9 s" for i in range(3)]
        assert done.stdout.splitlines() == said
        leader = whole.wait_until_agreed().leader
        assert leader is not None
        to = (leader.member_id + 1) % 3
        assert quorate("transfer", f"--to={to}", connect(whole, 0)).returncode == 0
        done = quorate("trace", "stop", "0", "1", connect(whole, 0))
        assert done.stdout.count("only messages of elections are recorded from now on") == 2
        assert quorate("trace", "stop", connect(whole, 0)).returncode == 0
    time.sleep(1.5)  # what waits is written once a second
    merged = str(tmp_path / "all.qtrace.zst")
    directories = [str(whole.directory / f"member-{i}") for i in range(3)]
    done = quorate("trace", "merge", *directories, "--out", merged)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(", which is right to 0.00") == 2
    done = quorate("trace", "check", merged)
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.rpartition(" heard, ")[2].split()[0].replace(",", "")) > 100
    done = quorate("trace", "convert", merged, "--to", "shiviz")
    assert (done.returncode, done.stderr) == (0, "")
    for kind in ("LogBatch", "AppendPosition", "TimeoutNow", "Vote"):
        assert f"type={kind} " in done.stdout
    # A vector clock with all of them: each has heard of the others.
    assert re.search(r'^m\d \{"m0": \d+, "m1": \d+, "m2": \d+\}$', done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["start"], "trace start: expected what to record: --messages"),
        (["start", "--messages", "--for=11m"], '--for "11m": expected 30s, 2m or 500ms'),
        (["start", "7", "--messages"], "member 7: expected one of 0, 1, 2"),
    ],
)
def test_what_can_not_be_recorded_is_said(whole: RealCluster, words: list[str], told: str) -> None:
    done = quorate("trace", *words, connect(whole, 0))
    assert done.returncode == EX_USAGE
    assert told in done.stderr
