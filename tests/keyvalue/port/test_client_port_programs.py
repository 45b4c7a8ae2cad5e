"""Others' programs talk to the port."""

import shutil
import subprocess

import attrs
import pytest
import trio

from tests.support.client_port_world import World


async def run(*words: str) -> str:
    """Run a program to its end; the port goes on meanwhile."""
    done = await trio.run_process(words, capture_stdout=True, stderr=subprocess.STDOUT)
    return done.stdout.decode()


@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="redis-cli is not installed")
async def test_redis_cli_understands_us(world: World) -> None:
    cli = ("redis-cli", "-p", str(world.address[1]))
    assert await run(*cli, "set", "a", "1") == "OK\n"
    assert await run(*cli, "-3", "get", "a") == "1\n"
    members = tuple(
        attrs.evolve(member, host="127.0.0.1", client_port=world.address[1])
        for member in world.member.topology.members[:1]
    )
    world.member.topology = attrs.evolve(world.member.topology, members=members)
    check = await run("redis-cli", "--cluster", "check", f"127.0.0.1:{world.address[1]}")
    assert "[OK] All 16384 slots covered." in check


@pytest.mark.skipif(shutil.which("redis-benchmark") is None, reason="it is not installed")
async def test_redis_benchmark_runs(world: World) -> None:
    options = ("-t", "set,get,incr", "-n", "3000", "-c", "20", "-P", "7", "-q")
    output = await run("redis-benchmark", "-p", str(world.address[1]), *options)
    assert output.count("requests per second") == 3
