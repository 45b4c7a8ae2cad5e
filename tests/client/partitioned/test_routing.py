"""Each key goes to the partition that owns it, and calls with several keys are split or refused.

Keys: a and d have slots of partition 1, b and c of partition 0.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from trio.testing import MockClock

from quorate.client.blocking import BlockingKeyValue
from quorate.client.connect import open_through
from quorate.client.lanes import LANES
from quorate.client.thread import ClientThread
from quorate.errors import CrossSlotError, KeyValueError, NoLeaderError, RefusedError
from quorate.keyvalue.programs.client import KeyValue
from quorate.keyvalue.slots.hashing import key_slot, prefix_slot
from tests.client.partitioned.conftest import Connect
from tests.support.fake_cluster import FakeCluster, FakeDialler, FakeStream, Fault
from tests.support.fake_partitions import FakePartitions
from tests.support.service_world import Fed, open_service


async def use(kv: KeyValue) -> None:
    for key in "abcd":
        assert await kv.set(key, f"value of {key}")
        assert await kv.get(key) == f"value of {key}".encode()
    assert await kv.get("missing") is None
    assert await kv.set("a", "x", nx=True) is False
    assert [await kv.increment("n", 2), await kv.increment("n")] == [2, 3]
    assert await kv.compare_and_set("b", "value of b", "2") > 0
    assert await kv.compare_and_set("b", "value of b", "3") == 0
    assert await kv.expire("b", 10) is True
    assert 0 < await kv.ttl_ms("b") <= 10_000
    assert await kv.execute("APPEND", "c", "!") == 11


async def test_each_key_goes_to_its_owner(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    async with connected() as kv:
        await use(kv)
    first, second = ({key for _, key in each.values() if key} for each in world.partitions)
    assert first == {b"b", b"c", b"missing", b"n"}
    assert second == {b"a", b"d"}


async def test_it_is_the_same_on_asyncio(world: FakePartitions, connected: Connect) -> None:
    async def main() -> None:
        async with connected() as kv:
            await use(kv)
            assert await kv.get_many(["a", "b", "z"]) == {b"a": b"value of a", b"b": b"2"}
            assert sorted([key async for key in kv.scan()]) == [b"a", b"b", b"c", b"d", b"n"]

    await anyio.to_thread.run_sync(lambda: anyio.run(main, backend="asyncio"))


def test_it_is_the_same_without_an_event_loop(world: FakePartitions, connected: Connect) -> None:
    thread = ClientThread(connected())
    kv = BlockingKeyValue(thread.open(), thread)
    try:
        assert kv.set("a", "1")
        assert kv.set("b", "2")
        assert kv.get_many(["a", "b"]) == {b"a": b"1", b"b": b"2"}
        assert sorted(kv.scan()) == [b"a", b"b"]
        with kv.transaction() as t:
            t.set("{a}2", t.get("a") or b"")
        with pytest.raises(CrossSlotError):
            kv.mget("a", "b")
    finally:
        thread.close()


async def test_a_cluster_without_partitions_is_asked_once(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    service = open_service(tmp_path)
    cluster, asked = FakeCluster(Fed(service)), list[list[bytes]]()
    answer = cluster.answer

    def noting(stream: FakeStream, words: list[bytes]) -> bytes:
        asked.append(words)
        return answer(stream, words)

    cluster.answer = noting  # type: ignore[method-assign]
    async with open_through(
        FakeDialler(cluster),
        cluster.addresses,
        exactly_once=True,
        session_timeout_s=300,
        patience_s=60,
    ) as kv:
        await kv.mset({"a": "1", "b": "2"})
        await anyio.sleep(100)
        assert await kv.mget("a", "b") == [b"1", b"2"]
        assert await kv.position() > 0
    assert asked.count([b"QUORATE.MAP"]) == 1
    service.close()


async def test_tasks_share_requests_to_each_partition(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    async with connected() as kv:
        async with anyio.create_task_group() as tasks:
            for n in range(300):
                tasks.start_soon(kv.set, f"key {n}", str(n))
        found = await kv.get_many(f"key {n}" for n in range(300))
        assert found == {f"key {n}".encode(): b"%d" % n for n in range(300)}
        values = await kv.records(["key 7", "missing", "key 8", "key 7"])
        assert [each and each.value for each in values] == [b"7", None, b"8", b"7"]
    for partition in world.partitions:
        assert 1 < len(partition.requests) < 15
        assert len(partition.dialled) <= LANES + 1


async def test_reads_of_many_keys_are_one_request_for_each_partition(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    async with connected() as kv:
        await kv.get_many(f"key {n}" for n in range(900))
    assert [len(each.requests) for each in world.partitions] == [1, 1]


async def test_many_keys_are_deleted_in_few_requests(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    keys = [f"key {n}" for n in range(300)]
    async with connected() as kv:
        for key in keys[::3]:
            await kv.set(key, "1")
        before = sum(len(each.requests) for each in world.partitions)
        assert await kv.delete(*keys, "{key 0}") == 100
        assert sum(len(each.requests) for each in world.partitions) <= before + 4
        assert await kv.get_many(keys) == {}
        assert await kv.delete("a") == 0


ATOMIC: dict[str, Callable[[KeyValue], Awaitable[object]]] = {
    "mget": lambda kv: kv.mget("a", "b"),
    "mset": lambda kv: kv.mset({"a": "1", "b": "2"}),
    "set_many": lambda kv: kv.set_many({"a": "1", "b": "2"}),
    "rename": lambda kv: kv.execute("RENAME", "a", "b"),
    "del": lambda kv: kv.execute("DEL", "a", "b"),
}


@pytest.mark.parametrize("name", ATOMIC)
async def test_what_has_one_effect_needs_keys_of_one_slot(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock, name: str
) -> None:
    async with connected() as kv:
        with pytest.raises(CrossSlotError) as caught:
            await ATOMIC[name](kv)
        words = str(caught.value)
        assert "b'a' has slot 15495 (of partition 1), b'b' has slot 3300 (of partition 0)" in words
        assert "nothing was done" in words
        assert "{order 7}" in words
        assert caught.value.code == "CROSSSLOT"
        await kv.mset({"{x}1": "1", "{x}2": "2", "x": "3"})
        assert await kv.mget("{x}1", "{x}2", "x") == [b"1", b"2", b"3"]


async def test_a_transaction_has_keys_of_one_slot(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    async with connected() as kv:
        async with kv.transaction() as t:
            assert await t.get("{x}1") is None
            t.set("{x}1", "1")
            t.increment("{x}2")
            with pytest.raises(CrossSlotError, match=r"keys of a transaction .*'\{x\}1' has slot"):
                await t.get("a")
            with pytest.raises(CrossSlotError, match=r"b'a' has slot 15495"):
                t.delete("a")
            with pytest.raises(KeyValueError, match="DBSIZE has no key"):
                t.execute("DBSIZE")
        assert t.position > 0
        assert await kv.mget("{x}1", "{x}2") == [b"1", b"1"]
        async with kv.transaction():
            pass


async def test_watches_and_positions_need_a_prefix_of_one_slot(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    async with connected() as kv:
        with pytest.raises(CrossSlotError, match=r"prefix b'app/' have several slots, and may be"):
            kv.watch("app/")
        with pytest.raises(CrossSlotError, match="several slots"):
            await kv.position("{app")
        kv.watch("{app}/")
        assert await kv.position("{b}/") == world.partitions[0].fed.position
        assert await kv.position("{a}/") == world.partitions[1].fed.position
    with pytest.raises(RefusedError, match="the client is closed"):
        kv.watch("{app}/")


@pytest.mark.parametrize(
    ("prefix", "slot"),
    [
        (b"{b}/", key_slot(b"b")),
        (b"x{b}", key_slot(b"b")),
        (b"{b", None),
        (b"{}b{b}", None),
        (b"b}{", None),
        (b"", None),
    ],
)
def test_a_prefix_with_a_whole_tag_has_one_slot(prefix: bytes, slot: int | None) -> None:
    assert prefix_slot(prefix) == slot


async def test_a_walk_goes_through_all_partitions_unless_its_pattern_has_a_tag(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    async with connected() as kv:
        for n in range(100):
            await kv.set(f"key {n}", "1")
            await kv.set(f"{{b}}{n}", "2")
        found = [key async for key in kv.scan("key *", count=7)]
        assert sorted(found) == sorted(f"key {n}".encode() for n in range(100))
        assert len({key async for key in kv.scan()}) == 200
        items = dict([item async for item in kv.scan_items("*9")])
        assert len(items) == 20
        world.partitions[1].requests.clear()
        found = [key async for key in kv.scan("{b}*", count=9)]
        assert sorted(found) == sorted(b"{b}%d" % n for n in range(100))
        assert world.partitions[1].requests == []


async def test_commands_without_keys_go_everywhere_or_are_refused(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    async with connected() as kv:
        for key in "abcd":
            await kv.set(key, "1")
        assert await kv.execute("DBSIZE") == 4
        assert sorted(await kv.execute("KEYS", "*") or ()) == [b"a", b"b", b"c", b"d"]  # type: ignore[type-var, arg-type]
        for words in (["SCAN", "0"], ["QUORATE.POSITION"], ["QUORATE.SESSION", "OPEN"]):
            with pytest.raises(KeyValueError, match=f"{words[0]} has no key"):
                await kv.execute(*words)
        with pytest.raises(KeyValueError, match="wrong number of arguments for 'get' command"):
            await kv.execute("GET")
        assert await kv.execute("FLUSHALL") == b"OK"
        assert await kv.execute("DBSIZE") == 0


async def test_the_leader_of_a_partition_changes(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    first = world.partitions[0]
    async with connected() as kv:
        await kv.set("b", "1")
        assert first.dialled[-1] == first.leader
        first.leader = first.addresses[1]
        await kv.set("b", "2")
        assert first.dialled[-1] == first.leader
        first.down, first.leader = {first.addresses[1]}, first.addresses[0]
        assert await kv.increment("n") == 1
        assert await kv.get("b") == b"2"


async def test_one_partition_is_down_and_the_other_one_serves(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    async with connected(patience_s=5) as kv:
        world.partitions[0].down = {*world.partitions[0].addresses}
        await kv.set("a", "1")
        with pytest.raises(NoLeaderError, match=r"no answer within 5 s: no member can be reached"):
            await kv.get("b")
        with pytest.raises(NoLeaderError, match="no member can be reached"):
            await kv.get_many(["a", "b"])
        assert await kv.get("a") == b"1"
        world.partitions[0].down = set()
        assert await kv.get("b") is None


async def test_sessions_of_all_partitions_end_with_the_client(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    async with connected() as kv:
        await kv.set("a", "1")
        await kv.set("b", "1")
        assert await kv.execute("QUORATE.SESSIONS") == 2
    assert [each.fed.service.next_deadline_ms() for each in world.partitions] == [None, None]
    with pytest.raises(RefusedError, match="the client is closed; nothing was done"):
        await kv.set("a", "2")


async def test_a_dead_partition_delays_the_end_for_a_second(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    async with connected() as kv:
        await kv.set("a", "1")
        await kv.set("b", "1")
        for each in world.partitions:
            each.down = {*each.addresses}
        before = anyio.current_time()
    assert anyio.current_time() - before < 1.1


async def test_a_member_at_an_address_of_another_partition_is_left(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    """The ports of a machine were given to other partitions."""
    async with connected(patience_s=3) as kv:
        world.swap()
        with pytest.raises(NoLeaderError, match="it is a member of partition 1: expected 0"):
            await kv.set("b", "1")
        world.swap()
        await kv.set("b", "1")


async def test_a_silent_leader_is_left(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    first = world.partitions[0]
    async with connected() as kv:
        await kv.increment("n")
        old, new = first.addresses
        first.judge = lambda address, _words: Fault.SILENT if address == old else None
        first.leader = new
        assert await kv.increment("n") == 2
