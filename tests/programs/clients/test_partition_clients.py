"""Cluster clients, unmodified, with the partitions of a machine, while slots move."""

# redis-py and coredis have only partial types
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import asyncio
import gc
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress

import coredis
import pytest
import redis
from redis.cluster import RedisCluster

from quorate.local.cluster import free_client_port
from quorate.machine.layout import lay_out_machines
from tests.support.real import PATIENCE_SECONDS, QUORATE

pytestmark = pytest.mark.slow

MOVED = "0-1023"


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    """The client ports of a machine: of metadata, and of partitions 0 and 1."""
    directory = tmp_path_factory.mktemp("machine")
    port = free_client_port(9)
    (config,) = lay_out_machines(directory, machines=1, partitions=2, client_port=port)
    command = [*QUORATE, "run", "--stop-at-eof", str(config.directory / "machine.toml")]
    with (directory / "out").open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=out)
    try:
        ports = [config.own.port + n for n in range(3)]
        end = time.monotonic() + PATIENCE_SECONDS
        while not all(map(serves, ports, ("quorate/x", "b", "a"))):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        yield ports
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
        process.communicate()


def serves(port: int, key: str) -> bool:
    """Whether a member takes a key."""
    with suppress(redis.RedisError), redis.Redis(port=port) as client:
        return bool(client.set(key, "1"))
    return False


def begin_move(ports: list[int], to: int) -> "subprocess.Popen[bytes]":
    """Begin to move some slots."""
    words = ["partition", "move", MOVED, "--to", str(to), "--connect", f"127.0.0.1:{ports[0]}"]
    return subprocess.Popen([*QUORATE, *words], stdout=subprocess.DEVNULL)


def test_redis_py_goes_on_while_slots_move(ports: list[int]) -> None:
    with RedisCluster(host="127.0.0.1", port=ports[1]) as client:
        assert len(client.get_primaries()) == 2
        move = begin_move(ports, 1)
        count = 0
        while move.poll() is None:
            names = [f"sync:{count % 50}:{n}" for n in range(20)]
            for name in names:
                assert client.set(name, count)
            with client.pipeline() as pipeline:
                for name in names:
                    pipeline.get(name)
                assert pipeline.execute() == [b"%d" % count] * 20
            count += 1
            time.sleep(0.02)  # the move needs the processor, too
        assert move.returncode == 0
        with client.pipeline(transaction=True) as transaction:
            transaction.set("{tag}a", 1)
            transaction.incr("{tag}a")
            assert transaction.execute()[1] == 2
        assert client.mget_nonatomic("sync:0:0", "sync:0:1") is not None


# It leaves streams of anyio open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_coredis_goes_on_while_slots_move(ports: list[int]) -> None:
    async def write(client: "coredis.RedisCluster[bytes]", move: "subprocess.Popen[bytes]") -> int:
        count = 0
        while move.poll() is None:
            names = [f"async:{count % 50}:{n}" for n in range(20)]
            assert all(await asyncio.gather(*(client.set(name, count) for name in names)))
            assert await client.mget(names) == (b"%d" % count,) * 20
            count += 1
            await asyncio.sleep(0.02)
        return move.returncode

    async def main() -> None:
        client = coredis.RedisCluster("127.0.0.1", ports[2])
        async with client:
            assert await write(client, begin_move(ports, 0)) == 0
            assert await client.delete(["async:0:0", "async:0:1"]) <= 2

    asyncio.run(main())
    gc.collect()
