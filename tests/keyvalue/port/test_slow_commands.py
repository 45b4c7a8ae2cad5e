"""SLOWLOG and LATENCY, as clients of Redis parse them."""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import hiredis
import pytest
import redis._parsers.helpers as redis_py

from quorate.metrics import Histogram
from quorate.node.requests.journey import Journey, Latencies, SlowBatch, SlowBatches
from tests.support.client_port_world import RawClient, World, command

parse: Any = redis_py.parse_slowlog_get  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

SYNCED = SlowBatch(0, 416, 64, 5312, 1_700_000_001_500, 0.0001, 0.014, 0.0004, 0.0004, 0.0006)
CUT_OFF = attrs.evolve(SYNCED, number=1, position=5728, quorum=2.5, sync=0.001)


@asynccontextmanager
async def slow_world(directory: Path) -> AsyncGenerator[tuple[World, RawClient]]:
    syncs = Histogram()
    syncs.observe(0.0001, 90)
    syncs.observe(0.014, 10)
    syncs.observe(100.0)
    async with World.opened(directory) as world:
        world.member.measured = Latencies((SYNCED, CUT_OFF), {"disk-sync": syncs})
        yield world, await world.connect()


async def ask(client: RawClient, *arguments: bytes | str) -> Any:
    """Return the parsed reply to a command."""
    await client.send(command(*arguments))
    reader = hiredis.Reader()
    reply: Any = False
    while reply is False:
        reader.feed(await client.receive_some(1 << 16))
        reply = reader.gets()
    return reply


async def test_an_entry_says_where_the_time_went(tmp_path: Path) -> None:
    async with slow_world(tmp_path) as (_, client):
        newest, oldest = parse(await ask(client, "SLOWLOG", "GET"))
        assert newest["id"] == 1
        assert newest["duration"] == 2_502_100
        assert oldest["start_time"] == 1_700_000_001
        assert oldest["command"] == (
            b"batch position=416 entries=64 bytes=5312 receive_us=100 sync_us=14000 quorum_us=400 "
            b"apply_us=400 reply_us=600"
        )
        assert oldest["client_address"] == oldest["client_name"] == b""
        assert len(await ask(client, "SLOWLOG", "get", "1")) == 1
        assert len(await ask(client, "SLOWLOG", "GET", "-1")) == 2
        assert await ask(client, "SLOWLOG", "LEN") == 2
        for wrong in ("-2", "x", "9" * 30):
            assert isinstance(await ask(client, "SLOWLOG", "GET", wrong), hiredis.ReplyError)
        assert b"GET" in await ask(client, "SLOWLOG", "HELP")


async def test_a_reset_forgets_what_was_and_not_what_comes(tmp_path: Path) -> None:
    async with slow_world(tmp_path) as (world, client):
        assert await ask(client, "SLOWLOG", "RESET") == b"OK"
        assert await ask(client, "SLOWLOG", "LEN") == 0
        # Another list, which is not forgotten with it.
        assert len(await ask(client, "LATENCY", "LATEST")) == 3
        world.member.measured = Latencies((CUT_OFF, attrs.evolve(CUT_OFF, number=2)))
        (entry,) = parse(await ask(client, "SLOWLOG", "GET"))
        assert entry["id"] == 2


async def test_the_history_of_what_was_slow(tmp_path: Path) -> None:
    async with slow_world(tmp_path) as (_, client):
        assert await ask(client, "LATENCY", "LATEST") == [
            [b"batch", 1_700_000_001, 2502, 2502],
            [b"sync", 1_700_000_001, 14, 14],
            [b"quorum", 1_700_000_001, 2500, 2500],
        ]
        history = await ask(client, "LATENCY", "HISTORY", "batch")
        assert history == [[1_700_000_001, 15], [1_700_000_001, 2502]]
        assert await ask(client, "LATENCY", "HISTORY", "fork") == []
        assert await ask(client, "LATENCY", "RESET", "quorum", "apply", "fork") == 1
        assert [each[0] for each in await ask(client, "LATENCY", "LATEST")] == [b"batch", b"sync"]
        assert await ask(client, "LATENCY", "RESET") == 2
        assert await ask(client, "LATENCY", "LATEST") == []
        assert await ask(client, "LATENCY", "RESET") == 0


async def test_histograms_are_cumulative_in_microseconds(tmp_path: Path) -> None:
    async with slow_world(tmp_path) as (_, client):
        await ask(client, "SET", "a", "1")
        flat = await ask(client, "LATENCY", "HISTOGRAM", "disk-sync", "no.such")
        assert flat[0] == b"disk-sync"
        assert flat[1][:2] == [b"calls", 101]
        assert flat[1][3] == [122, 90, 15625, 100, 32_000_000, 101]
        assert (await ask(client, "LATENCY", "HISTOGRAM", "SET", "write"))[::2] == [b"write"]
        everything = await ask(client, "LATENCY", "HISTOGRAM")
        assert everything[::2] == [b"write", b"admin", b"disk-sync"]
        await ask(client, "HELLO", "3")
        found = await ask(client, "LATENCY", "HISTOGRAM", "set")
        assert found[b"write"][b"calls"] == 1


async def test_the_doctor_names_what_the_time_went_to(tmp_path: Path) -> None:
    async with slow_world(tmp_path) as (world, client):
        words = (await ask(client, "LATENCY", "DOCTOR")).decode()
        assert "disk-sync: 95 us, 15.6 ms (101 observed)" in words
        assert "quorum: 99 %" in words
        assert "the syncs of their disks, which are part of this time" in words
        world.member.measured = Latencies()
        assert b"No batch took 10.0 ms" in await ask(client, "LATENCY", "DOCTOR")


@pytest.mark.parametrize("name", ["slowlog-log-slower-than", "slowlog-max-len"])
async def test_clients_may_ask_for_the_settings(tmp_path: Path, name: str) -> None:
    async with slow_world(tmp_path) as (_, client):
        assert int((await ask(client, "CONFIG", "GET", name))[1]) > 0


def test_only_what_took_long_is_kept_and_not_too_much_of_it() -> None:
    slow = SlowBatches()
    told: list[SlowBatch] = []
    slow.observers.append(told.append)
    for n in range(300):
        slow.ended(Journey(n, n + 1, 1, 0, 1.0, 1.0, 1.002, 1.004), 1.009, 0.0)
        slow.ended(Journey(n, n + 1, 1, 0, 1.0, 1.5, 1.6, 1.8), 2.0, 0.05)
    assert slow.count == len(told) == 300
    assert len(slow.kept) == 128
    last = slow.kept[-1]
    assert last.number == 299
    steps = [last.receive, last.sync, last.quorum, last.apply, last.reply]
    assert steps == pytest.approx([0.5, 0.1, 0.2, 0.15, 0.05])
    assert last.took == pytest.approx(1.0)
