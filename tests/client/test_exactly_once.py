"""Whatever becomes of a reply, a write through `quorate.connect` is done once, or nobody knows."""

from collections.abc import Generator
from pathlib import Path

import anyio
import pytest
from trio.testing import MockClock

from quorate.client.connect import open_through
from quorate.errors import KeyValueError, UnknownOutcomeError
from quorate.keyvalue.protocol import resp
from quorate.transport import Address
from tests.support.fake_cluster import FakeCluster, FakeDialler, Fault
from tests.support.service_world import Fed, open_service

OPTIONS = {"session_timeout_s": 300.0, "patience_s": 60.0}


@pytest.fixture
def cluster(tmp_path: Path) -> Generator[FakeCluster]:
    service = open_service(tmp_path)
    yield FakeCluster(Fed(service))
    service.close()


async def test_a_silent_connection_under_load(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    """One batch's reply is lost, while the other worker goes on with full batches."""
    silent: list[bytes] = []
    sums: list[int] = []

    def judge(_address: Address, words: list[bytes]) -> Fault | None:
        if b"INCRBY" in words[4] and not silent:
            silent.append(words[2])
            return Fault.SILENT
        return None

    async def load() -> None:
        while len(sums) < 3:
            await kv.set("a", "x")

    async with open_through(
        FakeDialler(cluster), cluster.addresses, exactly_once=True, **OPTIONS
    ) as kv:
        await kv.set("warm", "1")
        cluster.judge = judge

        async def count(name: str) -> None:
            sums.append(await kv.increment(name))

        async with anyio.create_task_group() as tasks:
            for name in "bcd":
                tasks.start_soon(count, name)
            await anyio.sleep(0.01)
            for _ in range(128):
                tasks.start_soon(load)
        assert sums == [1, 1, 1]
        assert await kv.mget("b", "c", "d") == [b"1"] * 3


async def test_rules_that_change_between_two_attempts(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    attempts: list[bytes] = []

    def judge(_address: Address, words: list[bytes]) -> Fault | bytes | None:
        if b"INCRBY" not in words[4]:
            return None
        attempts.append(words[2])
        return Fault.DONE if len(attempts) == 1 else resp.error("NOPERM this user may not")

    async with open_through(
        FakeDialler(cluster), cluster.addresses, exactly_once=True, **OPTIONS
    ) as kv:
        await kv.set("warm", "1")
        cluster.judge = judge
        outcomes: list[type[Exception]] = []

        async def count() -> None:
            try:
                await kv.increment("n")
            except (UnknownOutcomeError, KeyValueError) as error:
                outcomes.append(type(error))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count)
            tasks.start_soon(count)
        assert outcomes == [UnknownOutcomeError] * 2
        assert await kv.get("n") == b"2"
        assert len(set(attempts)) == 1
        with pytest.raises(KeyValueError, match="NOPERM"):
            await kv.increment("n")
