"""redis-cli and redis-benchmark work, where they are installed."""

import shutil
import subprocess

import pytest

from tests.support.real import RealCluster

needs_cli = pytest.mark.skipif(not shutil.which("redis-cli"), reason="redis-cli is not there")
needs_benchmark = pytest.mark.skipif(
    not shutil.which("redis-benchmark"), reason="redis-benchmark is not there"
)


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


@needs_cli
@pytest.mark.parametrize("protocol", [[], ["-3"]], ids=["RESP2", "RESP3"])
def test_redis_cli_sets_and_gets(whole: RealCluster, protocol: list[str]) -> None:
    at = ["redis-cli", "-p", str(whole.follower_port), *protocol]
    assert output(*at, "SET", "name", "value") == "OK\n"
    assert output(*at, "GET", "name") == "value\n"
    assert output(*at, "--scan") == "name\n"


@needs_cli
def test_redis_cli_follows_the_leader_in_cluster_mode(whole: RealCluster) -> None:
    at = ["redis-cli", "-c", "-p", str(whole.follower_port + 60)]
    assert output(*at, "SET", "name", "value") == "OK\n"
    assert output(*at, "GET", "name") == "value\n"
    asked = subprocess.run(at, input="GET name\n", capture_output=True, text=True, check=True)
    assert asked.stdout.endswith("value\n")
    plain = ["redis-cli", "-p", str(whole.follower_port + 60), "GET", "name"]
    assert output(*plain).startswith(f"MOVED 5798 127.0.0.1:{whole.leader_port + 60}")


@needs_cli
def test_redis_cli_finds_the_cluster_sound(whole: RealCluster) -> None:
    told = output("redis-cli", "--cluster", "check", f"127.0.0.1:{whole.leader_port}")
    assert "[OK] All 16384 slots covered." in told


@needs_benchmark
@pytest.mark.parametrize("pipeline", [1, 16])
@pytest.mark.parametrize("at", ["leader_port", "follower_port"])
def test_redis_benchmark_runs(whole: RealCluster, pipeline: int, at: str) -> None:
    port: int = getattr(whole, at)
    command = ["redis-benchmark", "-p", str(port), "-t", "set,get,incr,mset", "-n", "2000"]
    told = output(*command, "-c", "20", "-P", str(pipeline), "-r", "1000", "-d", "256", "--csv")
    tests = [line.split(",")[0].strip('"') for line in told.splitlines()[1:]]
    assert tests == ["SET", "GET", "INCR", "MSET (10 keys)"]
