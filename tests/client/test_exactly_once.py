"""Whatever becomes of a reply, a write through `quorate.connect` is done once, or nobody knows."""

from collections.abc import Generator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest
from trio.testing import MockClock

from quorate.client.connect import open_through
from quorate.errors import KeyValueError, OversizedRequestError, UnknownOutcomeError
from quorate.keyvalue.programs.client import KeyValue
from quorate.keyvalue.protocol import resp
from quorate.transport import Address
from tests.support.fake_cluster import FakeCluster, FakeDialler, Fault
from tests.support.service_world import Fed, open_service


@pytest.fixture
def cluster(tmp_path: Path) -> Generator[FakeCluster]:
    service = open_service(tmp_path)
    yield FakeCluster(Fed(service))
    service.close()


def connected(cluster: FakeCluster) -> AbstractAsyncContextManager[KeyValue]:
    return open_through(
        FakeDialler(cluster),
        cluster.addresses,
        exactly_once=True,
        session_timeout_s=300.0,
        patience_s=60.0,
    )


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

    async with connected(cluster) as kv:
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

    async with connected(cluster) as kv:
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


async def test_a_request_that_is_too_long_is_not_sent(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    """The member would close its connection."""
    cluster.limit = 2000
    async with connected(cluster) as kv:
        await kv.set("a", "1")
        sent = len(cluster.requests)
        with pytest.raises(OversizedRequestError, match="the members accept 2000"):
            await kv.set("a", b"x" * 2000)
        assert len(cluster.requests) == sent
        cluster.limit = 4000
        await kv.set("a", b"x" * 2000)
        assert await kv.get("a") == b"x" * 2000


async def test_short_commands_whose_batch_is_too_long_are_sent(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    cluster.limit = 2000
    async with connected(cluster) as kv:
        async with anyio.create_task_group() as tasks:
            for n in range(100):
                tasks.start_soon(kv.set, f"k{n}", b"x" * 100)
        assert len(await kv.get_many([f"k{n}" for n in range(100)])) == 100
        assert max(len(words[4]) for words in cluster.requests) < 2000


async def test_a_connection_that_the_member_closes_for_its_request_is_not_used_again(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    """This user may not ask how long a request may be."""
    cluster.limit = 0
    async with connected(cluster) as kv:
        await kv.set("a", "1")
        cluster.judge = lambda _address, _words: resp.error("ERR Protocol error: too big request")
        dialled = len(cluster.dialled)
        with pytest.raises(OversizedRequestError, match="too big request"):
            await kv.set("a", b"x" * 2000)
        cluster.judge = lambda _address, _words: None
        assert await kv.get("a") == b"1"
        assert len(cluster.dialled) > dialled


async def test_a_change_of_users_is_sent_by_itself_and_never_twice(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    replies: list[Fault | bytes] = [b"+OK\r\n", b":1\r\n", resp.error("NOPERM"), Fault.LOST]
    async with connected(cluster) as kv:
        cluster.judge = lambda _address, words: replies.pop(0) if words[0] == b"ACL" else None
        assert await kv.execute("ACL", "SETUSER", "bob", ">secret") == b"OK"
        assert cluster.requests == [[b"ACL", b"SETUSER", b"bob", b">secret"]]
        assert await kv.execute("ACL", "DELUSER", "bob") == 1
        with pytest.raises(KeyValueError, match="NOPERM"):
            await kv.execute("ACL", "DELUSER", "bob")
        with pytest.raises(UnknownOutcomeError):
            await kv.execute("ACL", "DELUSER", "bob")
        assert len(cluster.requests) == 4
