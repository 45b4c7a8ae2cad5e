"""A lost disk, with real processes: it is refused, recovers by the operator's word, and counts."""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import json
import re
import shutil
import subprocess
from pathlib import Path

import redis

from quorate.cli.app import EX_NOINPUT
from quorate.local.cluster import free_client_port
from quorate.node.config.config import load_config
from tests.support.real import QUORATE, RealCluster, lose_disk, quorate


def test_a_member_with_an_empty_directory_is_refused_and_recovers(directory: Path) -> None:
    with RealCluster.run(directory) as cluster:
        leader = cluster.leader
        lost = (leader + 1) % 3
        with redis.Redis(port=cluster.ports[leader]) as client:
            client.mset({f"key:{i}": i for i in range(1000)})
        file = lose_disk(cluster, lost)
        refused = subprocess.run(
            [*QUORATE, "run", str(file)], capture_output=True, text=True, check=False, timeout=60
        )
        assert refused.returncode == EX_NOINPUT, refused.stderr
        assert "quorate recover" in refused.stderr
        done = quorate("recover", "--json", str(file))
        assert done.returncode == 0, (done.stdout, done.stderr)
        assert json.loads(done.stdout)["admitted"]
        assert "It has no vote until the others" in done.stderr
        again = quorate("recover", str(file))
        assert again.returncode == 1
        assert "nothing to recover" in again.stdout
        assert "has no vote" not in again.stdout
        cluster.restart_dead()
        cluster.wait_until_agreed()
        # the two that are left, the one that recovered among them, are a quorum
        cluster.kill(next(member for member in range(3) if member not in {lost, cluster.leader}))
        with redis.Redis(port=cluster.ports[lost]) as client:
            assert client.dbsize() == 1000
            assert client.set("key:0", "anew")
        cluster.restart_dead()
        cluster.wait_until_agreed()


def test_a_member_at_a_new_address_is_told_how_the_cluster_gets_to_know_it(directory: Path) -> None:
    with RealCluster.run(directory) as cluster:
        lost = (cluster.leader + 1) % 3
        file = lose_disk(cluster, lost)
        own = load_config(file).own
        old, new = own.member_port, free_client_port(1)
        text = file.read_text()
        assert text.count(f"member_port = {old}") == 1
        file.write_text(text.replace(f"member_port = {old}", f"member_port = {new}"))
        done = quorate("recover", str(file))
        assert done.returncode == 0, done.stdout
        for other in {0, 1, 2} - {lost}:
            has = f"Member {other} expects this member at 127.0.0.1:{old}, not at 127.0.0.1:{new}."
            assert has in done.stdout
        cluster.restart_dead()
        cluster.wait_until_agreed()
        (typed,) = set(re.findall(r"quorate (member move .*)", done.stdout))
        moved = quorate(*typed.split(), "--connect", f"127.0.0.1:{cluster.ports[0]}")
        assert moved.stdout == f"member {lost} is at 127.0.0.1:{new}\n"
        cluster.wait_until_agreed()


def test_nothing_is_done_while_nobody_answers(directory: Path, tmp_path: Path) -> None:
    with RealCluster.run(directory) as cluster:
        text = (cluster.directory / "member-0" / "node.toml").read_text()
    empty = tmp_path / "empty"
    empty.mkdir()
    file = empty / "node.toml"
    file.write_text(text)
    done = quorate("recover", str(file))
    assert done.returncode == 2
    assert "No other member answers" in done.stdout
    assert [each.name for each in empty.iterdir()] == ["node.toml"]


def test_a_quorum_that_is_lost_for_good_is_forced(directory: Path) -> None:
    with RealCluster.run(directory) as cluster:
        ports = cluster.ports
        with redis.Redis(port=cluster.leader_port) as client:
            client.mset({f"key:{i}": i for i in range(1000)})
            assert client.execute_command("WAIT", 2, 10_000) == 2
        file = str(directory / "member-0" / "node.toml")
        running = quorate("recover", "--force-quorum", file)
        assert running.returncode == 1
        assert "Stop the members that still run" in running.stdout
    others = [str(directory / f"member-{i}" / "node.toml") for i in (1, 2)]
    needless = quorate("recover", "--force-quorum", file, others[0])
    assert needless.returncode == 1
    assert "which is a quorum: nothing is lost" in needless.stdout
    for other in others:
        text = Path(other).read_text()
        shutil.rmtree(Path(other).parent)
        Path(other).parent.mkdir()
        Path(other).write_text(text)
    wrong = quorate("recover", "--force-quorum", file, typed="yes\n")
    assert (wrong.returncode, "Nothing was done" in wrong.stdout) == (1, True)
    done = quorate("recover", "--force-quorum", file, typed="local\n")
    assert done.returncode == 0, done.stderr
    assert "is LOST for good" in done.stdout
    told = quorate("log", "describe", str(directory / "member-0")).stdout
    assert "A quorum was FORCED here" in told
    with RealCluster.run(directory, ports[0]) as cluster:
        with redis.Redis(port=ports[1]) as client:
            assert client.dbsize() == 1000
            assert client.get("key:999") == b"999"
            assert client.set("key:0", "anew")
        cluster.kill(0)
        with redis.Redis(port=ports[2]) as client:
            assert client.get("key:0") == b"anew"
    verified = quorate("log", "verify", str(directory / "member-0"))
    assert verified.returncode == 0
    assert "A quorum was FORCED here" in verified.stdout
