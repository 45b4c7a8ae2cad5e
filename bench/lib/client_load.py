"""Tasks of one program that set or get keys through one client, as its own process.

    python -m bench.lib.client_load CLIENT COMMAND TASKS SECONDS PORT [PORT ...]

CLIENT is ``quorate`` (exactly once), ``quorate plain``, ``coredis`` (both on trio) or ``redis-py``
(asyncio). The first port is the leader's, which redis-py and coredis are given. Each task awaits
one command after another. It prints a line of JSON: `measuring.Latencies`.
"""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final, TypeAlias

import anyio
import attrs
import coredis
import redis.asyncio
import trio

from bench.lib.measuring import Latencies, Load
from quorate.client.connect import connect

Call: TypeAlias = Callable[[bytes], Awaitable[object]]

Opening: TypeAlias = Callable[[Sequence[int], str, bytes], AbstractAsyncContextManager[Call]]

HOST: Final = "127.0.0.1"
WARM_SECONDS: Final = 0.5
"""Connections are opened in this time, and nothing counts."""


@asynccontextmanager
async def open_quorate(
    ports: Sequence[int], command: str, value: bytes, *, exactly_once: bool
) -> AsyncGenerator[Call]:
    """Open our own client."""
    async with connect([(HOST, port) for port in ports], exactly_once=exactly_once) as kv:

        async def set_value(key: bytes) -> None:
            await kv.set(key, value)

        yield kv.get if command == "get" else set_value


@asynccontextmanager
async def open_coredis(ports: Sequence[int], command: str, value: bytes) -> AsyncGenerator[Call]:
    """Open coredis, with as many connections as it likes."""
    async with coredis.Redis(HOST, ports[0]) as client:

        async def set_value(key: bytes) -> None:
            await client.set(key, value)

        async def get_value(key: bytes) -> None:
            await client.get(key)

        yield get_value if command == "get" else set_value


@asynccontextmanager
async def open_redis_py(ports: Sequence[int], command: str, value: bytes) -> AsyncGenerator[Call]:
    """Open redis-py, with a connection for each task."""
    async with redis.asyncio.Redis(host=HOST, port=ports[0], max_connections=4096) as client:

        async def set_value(key: bytes) -> None:
            await client.set(key, value)

        async def get_value(key: bytes) -> None:
            await client.get(key)

        yield get_value if command == "get" else set_value


async def load(client: str, command: str, tasks: int, seconds: float, ports: Sequence[int]) -> None:
    """Run the tasks, and print what they measured."""
    shape = Load(command, tasks)
    value, waits = b"x" * shape.value_bytes, list[float]()
    clients: dict[str, Opening] = {
        "quorate": partial(open_quorate, exactly_once=True),
        "quorate plain": partial(open_quorate, exactly_once=False),
        "coredis": open_coredis,
        "redis-py": open_redis_py,
    }
    opening = clients[client]
    begin = time.perf_counter() + WARM_SECONDS
    end = begin + seconds

    async def work(call: Call, rng: random.Random) -> None:
        while (sent := time.perf_counter()) < end:
            await call(b"key:%012d" % rng.randrange(shape.keys))
            if sent >= begin:
                waits.append(time.perf_counter() - sent)

    async with opening(ports, command, value) as call, anyio.create_task_group() as group:
        for number in range(tasks):
            group.start_soon(work, call, random.Random(number))
    waits.sort()
    p50, p99, p999 = (waits[int(len(waits) * share)] * 1000 for share in (0.5, 0.99, 0.999))
    print(json.dumps(attrs.asdict(Latencies(len(waits) / seconds, p50, p99, p999))))


def main() -> None:
    """Run on the event loop of the client."""
    client, command, tasks, seconds, *ports = sys.argv[1:]
    run = partial(load, client, command, int(tasks), float(seconds), [*map(int, ports)])
    if client == "redis-py":
        asyncio.run(run())
    else:
        trio.run(run)


if __name__ == "__main__":
    main()
