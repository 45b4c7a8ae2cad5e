"""Slots move while a client writes: nothing is lost, and nothing is done twice.

Keys: b, c and n have slots of partition 0 at the beginning, a and d of partition 1.
"""

from collections.abc import Awaitable, Callable
from random import Random

import anyio
import pytest
from trio.testing import MockClock

from quorate.errors import (
    ConflictError,
    NoLeaderError,
    UnknownOutcomeError,
)
from quorate.keyvalue.programs.client import KeyValue
from quorate.keyvalue.programs.transaction import Transaction
from quorate.transport import Address
from tests.client.partitioned.conftest import Connect
from tests.support.fake_cluster import Fault
from tests.support.fake_partitions import FakePartitions


async def listed(kv: KeyValue, pattern: str) -> list[bytes]:
    return sorted({key async for key in kv.scan(pattern)})


async def add_one(t: Transaction) -> int:
    value = int(await t.get("n") or 0) + 1
    t.set("n", str(value))
    return value


async def values_of(kv: KeyValue) -> list[bytes | None]:
    return [each and each.value for each in await kv.records(["n", "b", "{n}"])]


CALLS: dict[str, tuple[Callable[[KeyValue], Awaitable[object]], object]] = {
    "get": (lambda kv: kv.get("n"), b"1"),
    "increment": (lambda kv: kv.increment("n"), 2),
    "mget": (lambda kv: kv.mget("n", "{n}"), [b"1", b"0"]),
    "get_many": (lambda kv: kv.get_many(["n", "a", "b"]), {b"n": b"1", b"a": b"1"}),
    "records": (values_of, [b"1", None, b"0"]),
    "delete": (lambda kv: kv.delete("n", "a", "b"), 2),
    "set": (lambda kv: kv.set("n", "5"), True),
    "scan": (lambda kv: listed(kv, "{n}*"), [b"{n}"]),
    "walk": (lambda kv: listed(kv, "*"), [b"a", b"n", b"{n}"]),
    "transact": (lambda kv: kv.transact(add_one), 2),
    "count": (lambda kv: kv.execute("DBSIZE"), 3),
}


@pytest.mark.parametrize("exactly_once", [True, False])
@pytest.mark.parametrize("name", CALLS)
async def test_every_call_finds_a_slot_that_has_moved(
    world: FakePartitions,
    connected: Connect,
    autojump_clock: MockClock,
    name: str,
    exactly_once: bool,  # noqa: FBT001
) -> None:
    call, expected = CALLS[name]
    async with connected(exactly_once=exactly_once) as kv:
        await kv.mset({"n": "1", "{n}": "0"})
        await kv.set("a", "1")
        world.move(b"n")
        with anyio.fail_after(0.05):
            assert await call(kv) == expected


async def test_members_that_have_not_heard_of_a_new_map_say_where_the_slot_went(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    async with connected() as kv:
        await kv.set("n", "1")
        move = world.freeze([b"n"])
        move.own()
        move.release()  # and nobody writes the map
        with anyio.fail_after(0.05):
            assert await kv.increment("n") == 2
        world.partitions[0].requests.clear()
        assert await kv.get("n") == b"2"
        assert world.partitions[0].requests == [], "it was noted"


async def test_a_map_is_enough_if_members_do_not_say_where_a_slot_went(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    world.names_owners = False
    async with connected() as kv:
        await kv.set("n", "1")
        move = world.freeze([b"n"])
        move.own()
        move.release()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kv.increment, "n")
            await anyio.sleep(3)
            move.publish()
        assert await kv.get("n") == b"2"


async def test_one_machine_that_has_heard_of_the_map_is_enough(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    world.names_owners, world.late = False, {"10.0.1.0"}
    async with connected() as kv:
        await kv.set("n", "1")
        world.move(b"n")
        with anyio.fail_after(5):
            assert await kv.increment("n") == 2


async def test_nobody_serves_the_slot(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    world.names_owners = False
    async with connected(patience_s=5) as kv:
        await kv.set("n", "1")
        move = world.freeze([b"n"])
        move.own()
        move.release()
        for name in ("get", "set", "get_many"):
            before = anyio.current_time()
            with pytest.raises(NoLeaderError, match=r"slot 3432 was not served.* nothing was done"):
                await CALLS[name][0](kv)
            assert 4 < anyio.current_time() - before < 6
        move.publish()
        assert await kv.get("n") == b"1"


@pytest.mark.parametrize("ends", ["owned", "dropped"])
async def test_calls_wait_while_a_slot_is_frozen(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock, ends: str
) -> None:
    found: dict[str, object] = {}

    async def note(name: str, call: Awaitable[object]) -> None:
        found[name] = await call

    async with connected() as kv:
        await kv.set("n", "1")
        await kv.set("b", "1")
        move = world.freeze([b"n"])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(note, "increment", kv.increment("n"))
            tasks.start_soon(note, "next to it", kv.increment("b"))
            tasks.start_soon(note, "cas", kv.compare_and_set("{n}", None, "x"))
            tasks.start_soon(note, "get_many", kv.get_many(["{n}y", "a"]))
            await anyio.sleep(2)
            assert found == {}
            if ends == "owned":
                move.own()
                move.release()
                move.publish()
            else:
                move.thaw()
        assert found["increment"] == found["next to it"] == 2
        assert found["get_many"] == {}
        assert await kv.mget("n", "{n}") == [b"2", b"x"]


FAULTS = [Fault.LOST, Fault.DONE, Fault.SILENT]


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_write_without_a_reply_is_done_once_though_its_slot_has_moved(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock, fault: Fault
) -> None:
    """The slot moves between the first attempt and the second."""
    source, target = world.partitions

    def judge(_address: Address, words: list[bytes]) -> Fault | bytes | None:
        if b"INCRBY" not in words[4]:
            return None
        if not lost:
            lost.append(1)
            tasks.start_soon(move)
            return fault
        return None

    async def move() -> None:
        world.move(b"n")

    lost: list[int] = []
    async with connected() as kv:
        await kv.set("n", "1")
        await kv.set("a", "1")
        source.judge = judge
        source.leader = source.addresses[1]  # a silent member is left for another leader
        async with anyio.create_task_group() as tasks:
            assert await kv.increment("n") == 2
        assert await kv.get("n") == b"2"
    attempts = [one for one in target.values() if one[0] == b"INCRBY"]
    assert len(attempts) == (1 if fault is Fault.LOST else 0), "the old partition has the reply"


async def test_a_write_of_unknown_outcome_never_goes_to_the_new_owner(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    source, target = world.partitions
    async with connected(patience_s=5) as kv:
        await kv.set("n", "1")
        source.judge = lambda _address, words: Fault.DONE if b"INCRBY" in words[4] else None
        async with anyio.create_task_group() as tasks:

            async def move() -> None:
                await anyio.sleep(0.01)
                source.down = {*source.addresses}
                world.move(b"n")

            tasks.start_soon(move)
            with pytest.raises(UnknownOutcomeError):
                await kv.increment("n")
        assert b"INCRBY" not in {name for name, _ in target.values()}
        assert await kv.get("n") == b"2"


async def test_without_a_session_a_lost_reply_is_an_unknown_outcome(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    async with connected(exactly_once=False) as kv:
        await kv.set("n", "1")
        world.judge(lambda _address, _words: Fault.DONE)
        with pytest.raises(UnknownOutcomeError):
            await kv.increment("n")
        world.calm()
        world.move(b"n")
        assert await kv.increment("n") == 3


async def test_a_batch_is_divided_when_some_of_its_slots_have_moved(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    first, keys = world.partitions[0], [f"key {n}" for n in range(200)]
    async with connected() as kv:
        moving = [key.encode() for key in keys[::7] if world.owner_of(key.encode()) is first]
        for _ in range(3):
            world.move(*moving)
            async with anyio.create_task_group() as tasks:
                for key in keys:
                    tasks.start_soon(kv.increment, key)
        assert await kv.get_many(keys) == {key.encode(): b"3" for key in keys}
    assert sum(len(each.requests) for each in world.partitions) < 60


async def test_every_write_counts_once_through_moves_and_lost_connections(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    rng, working = Random(1), [True]

    def judge(_address: Address, _words: list[bytes]) -> Fault | None:
        return rng.choice([None, None, None, None, Fault.LOST, Fault.DONE])

    async def count(keys: str) -> None:
        for _ in range(8):
            for key in keys:
                await kv.increment(key)
                await kv.get(key)
            await kv.transact(add_one, attempts=100, rng=rng)

    async def move() -> None:
        while working:
            moving = [key for key in (b"n", b"b", b"c") if rng.random() < 0.6]
            owners = {world.owner_of(key).number for key in moving}
            if len(owners) != 1:
                moving = [b"n"]
            frozen = world.freeze(moving)
            await anyio.sleep(rng.uniform(0, 0.1))
            if rng.random() < 0.3:
                frozen.thaw()
            else:
                frozen.own()
                await anyio.sleep(rng.uniform(0, 0.05))
                frozen.release()
                await anyio.sleep(rng.uniform(0, 0.05))
                frozen.publish()
            await anyio.sleep(rng.uniform(0, 0.2))

    async with connected() as kv:
        world.judge(judge)
        async with anyio.create_task_group() as mover:
            mover.start_soon(move)
            async with anyio.create_task_group() as tasks:
                for keys in ("b", "c", "bc", "a", "cab"):
                    tasks.start_soon(count, keys)
            working.clear()
        world.calm()
        found = await kv.get_many(["a", "b", "c", "n"])
    assert found == {b"a": b"16", b"b": b"24", b"c": b"24", b"n": b"40"}
    assert world.map.epoch > 4


async def test_a_transaction_is_valid_over_a_move(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    async with connected() as kv:
        await kv.mset({"{n}1": "1", "{n}2": "2"})
        before = await kv.position("{n}")
        async with kv.transaction() as t:
            assert await t.get("{n}1") == b"1"
            world.move(b"n")
            t.set("{n}2", "3")
        assert t.position > before, "revisions rise over moves"
        assert await kv.mget("{n}1", "{n}2") == [b"1", b"3"]


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_transaction_without_a_reply_is_done_once_though_its_slot_has_moved(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock, fault: Fault
) -> None:
    source = world.partitions[0]
    lost = anyio.Event()

    def judge(_address: Address, words: list[bytes]) -> Fault | None:
        if lost.is_set() or words[3] != b"2":
            return None
        lost.set()
        return fault

    async with connected() as kv:
        await kv.set("n", "1")
        source.judge = judge
        source.leader = source.addresses[1]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kv.transact, add_one)
            await lost.wait()
            world.move(b"n")
        assert await kv.get("n") == b"2"


async def test_a_transaction_meets_its_conflict_after_a_move(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    async def body(t: Transaction) -> None:
        await t.get("n")
        await kv.set("n", "4")
        world.move(b"n")
        t.set("n", "5")

    async with connected() as kv:
        await kv.set("n", "1")
        with pytest.raises(ConflictError):
            await kv.transact(body, attempts=1)
        assert await kv.get("n") == b"4"


async def test_fencing_tokens_rise_over_moves(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    tokens: list[int] = []
    async with connected() as kv:
        for _ in range(5):
            tokens.append(await kv.compare_and_set("n", None, "x"))
            await kv.delete("n")
            world.move(b"n")
    assert tokens == sorted(set(tokens))


async def test_a_deletion_in_several_partitions_that_fails_says_that_some_may_be_gone(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    async with connected(patience_s=3) as kv:
        await kv.set("a", "1")
        world.partitions[0].down = {*world.partitions[0].addresses}
        with pytest.raises(UnknownOutcomeError, match=r"keys of 2 slots .* some may be deleted"):
            await kv.delete("a", "b")
        assert await kv.get("a") is None
        world.partitions[0].down = set()


async def test_a_walk_misses_no_key_whose_slot_moves_behind_it(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    """The slot is in the partition that is walked through last, and moves to the first one."""
    async with connected() as kv:
        for name in ("a", "b", "c", "d"):
            await kv.set(name, "1")
        found: list[bytes] = []
        async for key in kv.scan(count=1):
            found.append(key)
            if len(found) == 2:
                world.move(b"a")
        assert sorted(set(found)) == [b"a", b"b", b"c", b"d"]


async def test_a_walk_of_one_slot_begins_again_at_the_new_owner(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    async with connected() as kv:
        for n in range(50):
            await kv.set(f"{{n}}{n}", "1")
        found: list[bytes] = []
        async for key in kv.scan("{n}*", count=10):
            found.append(key)
            if len(found) in {15, 60}:
                world.move(b"n")
        assert len(set(found)) == 50


async def test_a_walk_ends_though_slots_always_move(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    walks: list[int] = []

    def judge(_address: Address, words: list[bytes]) -> None:
        if b"SCAN" in words[4]:
            walks.append(1)
            if len(walks) != 2:  # the partition that has got it has its turn just now
                world.move(b"n")

    async with connected() as kv:
        await kv.set("n", "1")
        world.judge(judge)
        with pytest.raises(NoLeaderError, match="slots moved all the time"):
            await listed(kv, "*")
    assert len(walks) < 20
