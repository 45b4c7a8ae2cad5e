"""A client keeps its promises whatever happens to the members between it and its keys."""

from collections.abc import AsyncGenerator, Awaitable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from random import Random

import anyio
import pytest
from trio.testing import MockClock

from quorate.client.connect import open_through
from quorate.client.dialling import HangUpError
from quorate.client.lanes import LANES
from quorate.errors import (
    HandshakeError,
    KeyValueError,
    NoLeaderError,
    OversizedRequestError,
    RefusedError,
    UnknownOutcomeError,
)
from quorate.keyvalue.limits import KEPT_REPLIES
from quorate.keyvalue.programs.client import KeyValue
from quorate.transport import Address
from tests.support.fake_cluster import LATENCY, FakeCluster, FakeDialler, FakeStream, Fault, stamps
from tests.support.service_world import Fed, open_service


@pytest.fixture
def cluster(tmp_path: Path) -> Generator[FakeCluster]:
    service = open_service(tmp_path)
    yield FakeCluster(Fed(service))
    service.close()


def connected(
    cluster: FakeCluster,
    dialler: FakeDialler | None = None,
    *,
    exactly_once: bool = True,
    patience_s: float = 60.0,
    session_timeout_s: float = 300.0,
) -> AbstractAsyncContextManager[KeyValue]:
    return open_through(
        dialler or FakeDialler(cluster),
        cluster.addresses,
        exactly_once=exactly_once,
        session_timeout_s=session_timeout_s,
        patience_s=patience_s,
    )


async def test_the_usual_commands(cluster: FakeCluster, autojump_clock: MockClock) -> None:
    async with connected(cluster) as kv:
        assert await kv.set("a", "1")
        assert await kv.get("a") == b"1"
        assert await kv.get("missing") is None
        assert await kv.increment("n", 5) == 5
        assert await kv.compare_and_set("a", "1", "2") > 0
        assert await kv.compare_and_set("a", "1", "3") == 0
        assert await kv.set("a", "x", nx=True) is False
        assert await kv.execute("SET", "a", "new", "GET") == b"2"
        assert await kv.mget("a", "n") == [b"new", b"5"]
        assert [key async for key in kv.scan()] == [b"a", b"n"]
        assert await kv.delete("a", "missing") == 1


async def test_it_is_the_same_on_asyncio(cluster: FakeCluster) -> None:
    async def main() -> int:
        async with connected(cluster) as kv:
            async with anyio.create_task_group() as tasks:
                for _ in range(30):
                    tasks.start_soon(kv.increment, "n")
            with anyio.move_on_after(0):
                await kv.get("n")
            return await kv.increment("n")

    def run() -> int:
        return anyio.run(main, backend="asyncio")

    assert await anyio.to_thread.run_sync(run) == 31


async def test_a_lone_get_travels_as_itself(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    arrived: list[list[bytes]] = []
    answer = cluster.answer

    def noting(stream: FakeStream, words: list[bytes]) -> bytes:
        arrived.append(words)
        return answer(stream, words)

    key = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"
    async with connected(cluster, exactly_once=False) as kv:
        await kv.set(key, "1")
        cluster.answer = noting  # type: ignore[method-assign]
        assert [await kv.get(key), await kv.get("missing")] == [b"1", None]
        assert arrived == [[b"GET", key], [b"GET", b"missing"]]
        arrived.clear()
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(kv.get, key)
        assert [words[0] for words in arrived] == [b"QUORATE.REQUEST"]
        cluster.judge = lambda _address, _words: b"-WRONGTYPE it is another one\r\n"
        with pytest.raises(KeyValueError, match=r"^WRONGTYPE"):
            await kv.get(key)


async def test_an_error_of_the_block_comes_out_as_itself_on_asyncio(cluster: FakeCluster) -> None:
    def run() -> None:
        anyio.run(raise_in_block, cluster, backend="asyncio")

    with pytest.raises(ValueError, match=r"^mine$"):
        await anyio.to_thread.run_sync(run)


async def raise_in_block(cluster: FakeCluster) -> None:
    async with raising(cluster):
        raise ValueError("mine")


async def test_a_lone_write_waits_for_nobody(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    async with connected(cluster) as kv:
        await kv.set("a", "1")
        before = anyio.current_time()
        await kv.set("a", "2")
        assert anyio.current_time() - before == pytest.approx(LATENCY)


async def test_tasks_share_requests_and_each_gets_its_own_reply(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    found: dict[str, bytes | None] = {}

    async def work(name: str) -> None:
        await kv.set(name, f"value of {name}")
        found[name] = await kv.get(name)

    async with connected(cluster) as kv, anyio.create_task_group() as tasks:
        for n in range(200):
            tasks.start_soon(work, f"key {n}")
    assert found == {f"key {n}": b"value of key %d" % n for n in range(200)}
    assert len(cluster.requests) < 20


async def test_an_error_is_that_of_one_task(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    failed: list[str] = []
    sums: list[int] = []

    async def count(key: str) -> None:
        try:
            sums.append(await kv.increment(key))
        except KeyValueError as error:
            failed.append(f"{key}: {error.code}")

    async with connected(cluster) as kv:
        await kv.set("word", "no number")
        async with anyio.create_task_group() as tasks:
            for key in ("a", "word", "b", "word", "c"):
                tasks.start_soon(count, key)
    assert failed == ["word: ERR"] * 2
    assert sums == [1, 1, 1]


async def test_every_write_counts_once_through_lost_connections(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    rng = Random(1)

    def judge(_address: Address, _words: list[bytes]) -> Fault | None:
        return rng.choice([None, None, None, Fault.LOST, Fault.DONE])

    async def count() -> None:
        for _ in range(20):
            await kv.increment("n")
            await kv.get("n")

    async with connected(cluster) as kv:
        cluster.judge = judge
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(count)
        assert await kv.get("n") == b"200"
        cluster.judge = lambda _address, _words: None


async def test_without_a_session_a_lost_reply_is_an_unknown_outcome(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    async with connected(cluster, exactly_once=False) as kv:
        await kv.set("n", "0")
        cluster.judge = lambda _address, _words: Fault.DONE
        with pytest.raises(UnknownOutcomeError, match=r"10\.0\.0\.1:7000: the connection was"):
            await kv.increment("n")
        cluster.judge = lambda _address, _words: None
        assert await kv.get("n") == b"1", "it was sent once"
    assert stamps(cluster.requests) == []


async def test_without_a_session_a_write_is_repeated_while_nothing_has_happened(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    async with connected(cluster, exactly_once=False) as kv:
        cluster.judge = lambda _address, _words: b"-CLUSTERDOWN no leader; nothing was done\r\n"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kv.increment, "n")
            await anyio.sleep(3)
            cluster.judge = lambda _address, _words: None
        assert await kv.get("n") == b"1"


async def test_a_cancelled_task_gets_no_reply_of_another_one(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    """MGET does not travel in a batch: its connection is closed with it."""
    async with connected(cluster) as kv:
        await kv.mset({f"k{n}": str(n) for n in range(9)})
        for n in range(9):
            with anyio.move_on_after(LATENCY / 2) as scope:
                await kv.mget(f"k{n}")
            assert scope.cancelled_caught
            assert await kv.mget(f"k{8 - n}") == [b"%d" % (8 - n)]


async def test_a_write_is_done_though_its_task_was_cancelled(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    async with connected(cluster) as kv:
        await kv.set("a", "1")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kv.increment, "n")
            with anyio.move_on_after(LATENCY / 2):
                await kv.increment("n")
        assert await kv.get("n") == b"2"


async def test_it_goes_to_the_leader_and_follows_it(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    first, second, third = cluster.addresses
    cluster.leader = second
    async with connected(cluster) as kv:
        assert cluster.dialled == [first, second]
        await kv.set("a", "1")
        cluster.leader = third
        before = anyio.current_time()
        await kv.set("a", "2")
        assert anyio.current_time() - before < 5 * LATENCY, "nothing was done, so there is no pause"
        assert cluster.dialled == [first, second, third]


async def test_members_pass_requests_on_to_a_leader_that_we_cannot_reach(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    cluster.leader = Address("192.168.0.7", 7000)
    async with connected(cluster) as kv:
        await kv.set("a", "1")
        assert await kv.get("a") == b"1"
        await kv.mget("a")
    assert cluster.dialled.count(cluster.leader) == 1


async def test_it_goes_to_the_next_leader_though_members_still_name_the_dead_one(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    first, second, third = cluster.addresses
    async with connected(cluster) as kv:
        await kv.set("a", "1")
        cluster.down = {first}
        await kv.set("a", "2")
        assert cluster.dialled[-1] == second, "it passes requests on"
        cluster.leader = third
        await anyio.sleep(2)
        await kv.set("a", "3")
        await kv.set("a", "4")
        assert cluster.dialled[-1] == third


async def test_a_dead_leader_is_left(cluster: FakeCluster, autojump_clock: MockClock) -> None:
    first, second, _ = cluster.addresses
    async with connected(cluster) as kv:
        await kv.increment("n")
        cluster.down, cluster.leader = {first}, second
        assert await kv.increment("n") == 2
        assert await kv.get("n") == b"2"


async def test_all_members_are_down_for_ten_seconds(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    found: list[bytes | None] = []

    async def read() -> None:
        found.append(await kv.get("n"))

    async with connected(cluster) as kv:
        await kv.increment("n")
        cluster.down = {*cluster.addresses}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kv.increment, "n")
            tasks.start_soon(read)
            await anyio.sleep(10)
            cluster.down = set()
        assert await kv.get("n") == b"2"
    assert found[0] in {b"1", b"2"}


async def test_members_that_stay_down_are_named(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    async with connected(cluster, patience_s=5) as kv:
        await kv.set("a", "1")
        cluster.down = {*cluster.addresses}
        await anyio.sleep(1)
        with pytest.raises(UnknownOutcomeError, match="an earlier attempt may"):
            await kv.set("a", "2")  # first through the connection that is still open
        with pytest.raises(NoLeaderError, match=r"no answer within 5 s: .*10\.0\.0\.3:7000: conn"):
            await kv.get("a")
        with pytest.raises(NoLeaderError, match=r"10\.0\.0\.1:7000: connection refused"):
            await kv.set("a", "3")


async def test_it_begins_once_a_member_answers(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    cluster.down = {*cluster.addresses}
    with pytest.raises(NoLeaderError, match=r"no answer within 2 s: no member can be reached"):
        async with connected(cluster, patience_s=2):
            pass
    async with anyio.create_task_group() as tasks:

        async def rise() -> None:
            await anyio.sleep(3)
            cluster.down = {*cluster.addresses[:2]}

        tasks.start_soon(rise)
        cluster.leader = cluster.addresses[2]
        async with connected(cluster) as kv:
            assert await kv.get("a") is None


async def test_a_port_that_hangs_up_again_and_again_is_no_members(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    dialler = FakeDialler(cluster)
    dialler.error = HangUpError("closed by the other end (is it a client port?)")
    with pytest.raises(HandshakeError, match=r"10\.0\.0\.1:7000: closed.*is it a client port"):
        async with connected(cluster, dialler):
            pass
    assert anyio.current_time() < 2
    async with anyio.create_task_group() as tasks:

        async def end() -> None:
            await anyio.sleep(0.2)
            dialler.error = None

        tasks.start_soon(end)
        async with connected(cluster, dialler) as kv:
            assert await kv.get("a") is None


async def test_a_watch_ends_with_its_client(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    async with connected(cluster) as kv:
        begun = kv.watch("a/")
        closed = kv.watch("a/")
        await closed.aclose()
    with pytest.raises(RefusedError, match="the client is closed, and this watch with it"):
        await anext(begun)
    with pytest.raises(StopAsyncIteration):
        await anext(closed)
    with pytest.raises(RefusedError, match="the client is closed; nothing was done"):
        kv.watch("a/")


async def test_what_waits_for_a_reply_at_the_end_is_told_what_that_means(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    found: dict[str, Exception] = {}

    async def work(name: str, call: Awaitable[object]) -> None:
        try:
            await call
        except (RefusedError, UnknownOutcomeError) as error:
            found[name] = error

    async with anyio.create_task_group() as tasks, connected(cluster) as kv:
        await kv.set("a", "1")
        cluster.judge = lambda _address, _words: Fault.SILENT
        tasks.start_soon(work, "read", kv.get("a"))
        tasks.start_soon(work, "write", kv.set("a", "2"))
        await anyio.sleep(0.1)
    assert isinstance(found["write"], UnknownOutcomeError)
    assert "it may or may not take effect" in str(found["write"])
    assert isinstance(found["read"], RefusedError)
    assert "may not" not in str(found["read"])


async def test_a_silent_member_is_left_for_another_one(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    first, second, _ = cluster.addresses
    async with connected(cluster) as kv:
        await kv.increment("n")
        cluster.judge = lambda address, _words: Fault.SILENT if address == first else None
        cluster.leader = second
        assert await kv.increment("n") == 2
        assert await kv.increment("n") == 3


@pytest.mark.parametrize("error", [HandshakeError("no member"), KeyValueError("WRONGPASS no")])
async def test_what_no_patience_mends_is_raised_at_once(
    cluster: FakeCluster, autojump_clock: MockClock, error: Exception
) -> None:
    dialler = FakeDialler(cluster)
    dialler.error = error
    with pytest.raises(type(error)):
        async with connected(cluster, dialler):
            pass
    assert anyio.current_time() < 1


async def test_a_password_that_is_changed_later_is_a_refusal(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    dialler = FakeDialler(cluster)
    async with connected(cluster, dialler) as kv:
        await kv.set("a", "1")
        dialler.error = KeyValueError("WRONGPASS invalid username-password pair")
        cluster.leader = cluster.addresses[1]
        with pytest.raises(RefusedError, match="WRONGPASS"):
            await kv.get("a")
        with pytest.raises(RefusedError, match="WRONGPASS"):
            await kv.set("a", "2")


async def test_suspended_writes_are_refused(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    async with connected(cluster) as kv:
        await kv.set("a", "1")
        cluster.judge = lambda _address, _words: b"-REFUSED the cluster is suspended\r\n"
        with pytest.raises(RefusedError, match=r"^the cluster is suspended$"):
            await kv.set("a", "2")
        cluster.judge = lambda _address, _words: None


async def test_a_request_that_is_too_large_is_not_sent_again(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    async with connected(cluster) as kv:
        await kv.set("a", "1")
        cluster.judge = lambda _address, _words: b"-ERR Protocol error: too big request\r\n"
        before = len(cluster.requests)
        with pytest.raises(OversizedRequestError, match="too big request"):
            await kv.set("a", b"x" * 200_000)
        assert len(cluster.requests) == before + 1
        cluster.judge = lambda _address, _words: None


async def test_a_lost_session_is_replaced(cluster: FakeCluster, autojump_clock: MockClock) -> None:
    async with connected(cluster, session_timeout_s=1) as kv:
        assert await kv.increment("n") == 1
        cluster.fed.pass_time(2000)
        assert await kv.increment("n") == 2


async def test_the_session_is_closed_at_the_end(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    async with connected(cluster) as kv:
        await kv.set("a", "1")
    assert cluster.fed.service.next_deadline_ms() is None
    with pytest.raises(RefusedError, match="the client is closed; nothing was done"):
        await kv.set("a", "2")
    with pytest.raises(RefusedError, match="the client is closed; nothing was done"):
        await kv.compare_and_set("a", "1", "2")


async def test_a_dead_cluster_delays_the_end_for_a_second(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    async with connected(cluster) as kv:
        await kv.set("a", "1")
        cluster.down = {*cluster.addresses}
        before = anyio.current_time()
    assert anyio.current_time() - before < 1.1


async def test_stamps_in_flight_stay_within_what_a_session_keeps(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    """GETDEL travels alone, so each has a number of its own."""
    stuck = anyio.Event()

    async def slow() -> None:
        await kv.execute("GETDEL", "slow")
        stuck.set()

    def judge(_address: Address, words: list[bytes]) -> bytes | None:
        return b"-CLUSTERDOWN not yet\r\n" if b"slow" in words[4] else None

    async with connected(cluster) as kv:
        cluster.judge = judge
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slow)
            await anyio.sleep(0.1)
            for _ in range(300):
                tasks.start_soon(kv.execute, "GETDEL", "fast")
            await anyio.sleep(20)
            assert max(map(int, stamps(cluster.requests))) <= KEPT_REPLIES
            assert not stuck.is_set()
            cluster.judge = lambda _address, _words: None
        assert stuck.is_set()


async def test_it_keeps_few_connections(cluster: FakeCluster, autojump_clock: MockClock) -> None:
    async with connected(cluster) as kv, anyio.create_task_group() as tasks:
        for n in range(100):
            tasks.start_soon(kv.mget, f"k{n}")
            tasks.start_soon(kv.get, f"k{n}")
    assert len(cluster.dialled) <= LANES


@asynccontextmanager
async def raising(cluster: FakeCluster) -> AsyncGenerator[KeyValue]:
    async with connected(cluster) as kv:
        await kv.set("a", "1")
        yield kv


async def test_an_error_of_the_block_comes_out_as_itself(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    with pytest.raises(ValueError, match=r"^mine$"):
        async with raising(cluster):
            raise ValueError("mine")
    with anyio.move_on_after(1) as scope:
        async with raising(cluster):
            await anyio.sleep(2)
    assert scope.cancelled_caught


async def test_an_error_of_a_task_of_the_client_comes_out_as_itself(
    cluster: FakeCluster, autojump_clock: MockClock
) -> None:
    def judge(_address: Address, _words: list[bytes]) -> None:
        cluster.judge = lambda _address, _words: None
        raise KeyboardInterrupt

    async def use() -> None:
        async with connected(cluster) as kv:
            cluster.judge = judge
            await kv.get("a")

    with pytest.raises(KeyboardInterrupt):
        await use()
