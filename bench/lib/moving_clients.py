"""Clients of a cluster with partitions, as a process: how long their longest commands take.

    python -m bench.lib.moving_clients CLIENT CLIENTS KEYS PORT

CLIENT is ``redis-py`` (its cluster client, on asyncio) or ``quorate`` (on trio); both have their
usual retries. Each of the CLIENTS sets and gets in turn one of ``key:0`` to ``key:KEYS-1``, and
then waits for a moment, so that the clients alone do not fill this machine's processors. The
program prints a line when all are connected, and a line of JSON, a `Report`, after the standard
input has ended.
"""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false

import json
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Final, Protocol

import anyio
import attrs
from redis.asyncio.cluster import RedisCluster

from quorate.client.connect import connect

HOST: Final = "127.0.0.1"
VALUE: Final = b"w" * 256
THINK_SECONDS: Final = 0.1
"""The longest pause between two commands of a client; half of it on average."""


class Call(Protocol):
    """Sets or gets a key."""

    def __call__(self, key: str, *, sets: bool) -> Awaitable[object]:
        """Wait for the answer."""
        ...


@attrs.define
class Report:
    """What the clients of a process saw.

    Args:
        calls: answered commands.
        longest_ms: the longest time that a command of each client took.
        slow: when commands that took longer than 50 ms began (Unix time), and what each took.
        errors: how often each error came out of the client.
    """

    calls: int = 0
    longest_ms: list[float] = attrs.field(factory=list[float])
    slow: list[tuple[float, float]] = attrs.field(factory=list[tuple[float, float]])
    errors: Counter[str] = attrs.field(factory=Counter[str])


SLOW_SECONDS: Final = 0.05


@asynccontextmanager
async def open_redis(port: int) -> AsyncGenerator[Call]:
    """Open redis-py's cluster client."""
    async with RedisCluster(host=HOST, port=port) as client:

        async def call(key: str, *, sets: bool) -> object:
            return await (client.set(key, VALUE) if sets else client.get(key))

        yield call


@asynccontextmanager
async def open_quorate(port: int) -> AsyncGenerator[Call]:
    """Open our own client."""
    async with connect([(HOST, port)]) as kv:

        async def call(key: str, *, sets: bool) -> object:
            return await (kv.set(key, VALUE) if sets else kv.get(key))

        yield call


async def run_client(call: Call, keys: int, report: Report, ended: anyio.Event) -> None:
    """Set and get until the end."""
    longest, sets = 0.0, False
    await anyio.sleep(random.uniform(0, THINK_SECONDS))
    while not ended.is_set():
        sets = not sets
        began = time.perf_counter()
        try:
            await call(f"key:{random.randrange(keys)}", sets=sets)
        except Exception as error:  # noqa: BLE001 - each is counted
            report.errors[f"{type(error).__name__}: {error}"[:200]] += 1
        took = time.perf_counter() - began
        longest = max(longest, took)
        if took > SLOW_SECONDS:
            report.slow.append((time.time() - took, took))
        report.calls += 1
        await anyio.sleep(random.uniform(0, THINK_SECONDS))
    report.longest_ms.append(longest * 1000)


async def main(client: str, clients: int, keys: int, port: int) -> None:
    """Run the clients until the standard input ends."""
    report, ready, ended = Report(), anyio.Event(), anyio.Event()
    connected = 0
    opening = open_redis if client == "redis-py" else open_quorate

    async def one() -> None:
        nonlocal connected
        async with opening(port) as call:
            for n in range(20):
                await call(f"key:{n}", sets=True)  # to all partitions
            connected += 1
            if connected == clients:
                ready.set()
            await ready.wait()
            await run_client(call, keys, report, ended)

    async with anyio.create_task_group() as tasks:
        for _ in range(clients):
            tasks.start_soon(one)
        await ready.wait()
        print("ready", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)
        ended.set()
    print(json.dumps(attrs.asdict(report)))


if __name__ == "__main__":
    kind, count, names, at = sys.argv[1:]
    backend = "asyncio" if kind == "redis-py" else "trio"
    anyio.run(main, kind, int(count), int(names), int(at), backend=backend)
