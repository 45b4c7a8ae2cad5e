"""`python -m tests.support.writers.python KIND PORT...`: a writer; see the package."""

# redis-py and coredis have only partial types
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import asyncio
import json
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable

import coredis
from coredis.connection import TCPLocation
from redis.asyncio import cluster
from redis.cluster import ClusterNode, RedisCluster

TASKS = 4
PAUSE_S = 0.01

acknowledged: list[str] = []
errors: list[str] = []
longest_s = 0.0
ends = threading.Event()


def note(key: str, began: float, error: Exception | None) -> None:
    """Note how a write ended."""
    global longest_s  # noqa: PLW0603 - of a program
    longest_s = max(longest_s, time.monotonic() - began)
    if not (acknowledged or errors):
        print("begins", flush=True)  # noqa: T201 - a program
    if error is None:
        acknowledged.append(key)
    else:
        errors.append(f"{key}: {type(error).__name__}: {error}")
        traceback.print_exception(error)


def threads(ports: list[int]) -> None:
    """Write through redis-py."""
    nodes = [ClusterNode("127.0.0.1", port) for port in ports]

    def write(task: int) -> None:
        count = 0
        while not ends.is_set():
            key, began, trouble = f"redis-py:{task}:{count}", time.monotonic(), None
            count += 1
            try:
                client.set(key, key)
            except Exception as error:  # noqa: BLE001 - all are shown
                trouble = error
            note(key, began, trouble)
            time.sleep(PAUSE_S)

    with RedisCluster(startup_nodes=nodes) as client:
        running = [threading.Thread(target=write, args=(task,)) for task in range(TASKS)]
        for each in running:
            each.start()
        for each in running:
            each.join()


async def tasks(kind: str, put: Callable[[str, str], Awaitable[object]]) -> None:
    """Write through a client for asyncio."""

    async def write(task: int) -> None:
        count = 0
        while not ends.is_set():
            key, began, trouble = f"{kind}:{task}:{count}", time.monotonic(), None
            count += 1
            try:
                await put(key, key)
            except Exception as error:  # noqa: BLE001 - all are shown
                trouble = error
            note(key, began, trouble)
            await asyncio.sleep(PAUSE_S)

    await asyncio.gather(*(write(task) for task in range(TASKS)))


async def with_asyncio(kind: str, ports: list[int]) -> None:
    """Write through a client for asyncio."""
    if kind == "coredis":
        nodes = [TCPLocation("127.0.0.1", port) for port in ports]
        client = coredis.RedisCluster(startup_nodes=nodes)
        async with client:
            await tasks(kind, client.set)
        return
    places = [cluster.ClusterNode("127.0.0.1", port) for port in ports]
    async with cluster.RedisCluster(startup_nodes=places) as other:
        await tasks(kind, other.set)


def with_redis_cli(port: int) -> None:
    """Write through one `redis-cli -c`, which follows from one member to another."""
    words = ["redis-cli", "-c", "-p", str(port)]
    with subprocess.Popen(words, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as cli:
        assert cli.stdin is not None
        assert cli.stdout is not None
        count = 0
        while not ends.is_set():
            key, began = f"redis-cli:{count}", time.monotonic()
            count += 1
            print("SET", key, key, file=cli.stdin, flush=True)
            while (said := cli.stdout.readline().strip()).startswith("-> Redirected"):
                pass
            note(key, began, None if said == "OK" else RuntimeError(said))
            time.sleep(PAUSE_S)
        cli.stdin.close()


def with_redis_benchmark(port: int) -> None:
    """Write through one `redis-benchmark --cluster` after another."""
    words = ["redis-benchmark", "--cluster", "-p", str(port), "-t", "set", "-c", "4", "--csv"]
    while not ends.is_set():
        began = time.monotonic()
        done = subprocess.run(
            [*words, "-n", "1000", "-r", "1000"], text=True, capture_output=True, check=False
        )
        said = done.stdout + done.stderr
        failed = done.returncode or "rror" in said or '"SET",' not in said
        note("", began, RuntimeError(f"status {done.returncode}: {said}") if failed else None)


def wait_for_the_end() -> None:
    """Return when the input has ended."""
    sys.stdin.read()
    ends.set()


def main() -> None:
    """Write until the input ends, then say what happened."""
    kind, ports = sys.argv[1], [int(word) for word in sys.argv[2:]]
    threading.Thread(target=wait_for_the_end, daemon=True).start()
    if kind == "redis-py":
        threads(ports)
    elif kind == "redis-cli":
        with_redis_cli(ports[0])
    elif kind == "redis-benchmark":
        with_redis_benchmark(ports[0])
    else:
        asyncio.run(with_asyncio(kind, ports))
    said = {"acknowledged": acknowledged, "errors": errors, "longest_s": longest_s}
    print(json.dumps(said))  # noqa: T201 - a program


if __name__ == "__main__":
    main()
