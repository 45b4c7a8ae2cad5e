"""A queue: first in, first out; each item is removed once, by one owner whose block ended well."""

# pyright: reportPrivateUsage=false

from contextlib import suppress
from random import Random

import anyio
import pytest

from quorate.errors import (
    ConfigurationError,
    ConflictError,
    LeaseLostError,
    NoLeaderError,
    UnknownOutcomeError,
)
from quorate.recipes.queue import Item, Queue
from tests.support.played import played
from tests.support.recipes_world import Link, World


def queue_at(link: Link, seed: int = 0) -> Queue:
    return Queue(link.kv, "jobs", ttl_s=3, worker=f"w{seed}", rng=Random(seed))


async def value_taken(queue: Queue) -> bytes:
    async with queue.take(wait_s=0) as item:
        return item.value


@played()
async def test_items_are_taken_in_the_order_in_which_they_were_put(world: World) -> None:
    queue = queue_at(world.link())
    assert [await queue.put(value) for value in ("a", b"b", "c")] == [1, 2, 3]
    other = queue_at(world.link(), 1)
    assert [await value_taken(one) for one in (queue, other, queue)] == [b"a", b"b", b"c"]
    with pytest.raises(TimeoutError, match=r"^queue 'jobs' had no free item$"):
        await value_taken(queue)
    assert world.keys() == [b"quorate:queue:{jobs}:tail"]


@played()
async def test_a_taken_item_is_nobody_elses(world: World) -> None:
    queue, other = queue_at(world.link()), queue_at(world.link(), 1)
    await queue.put("a")
    await queue.put("b")
    async with queue.take() as item:
        assert (item.number, item.value) == (1, b"a")
        await anyio.sleep(20)  # its lease is renewed
        assert await value_taken(other) == b"b"
        with pytest.raises(TimeoutError):
            await value_taken(other)


@played()
async def test_an_item_whose_block_fails_is_the_first_one_again(world: World) -> None:
    queue = queue_at(world.link())
    await queue.put("a")
    await queue.put("b")
    with pytest.raises(ZeroDivisionError):
        async with queue.take():
            raise ZeroDivisionError
    assert [await value_taken(queue) for _ in range(2)] == [b"a", b"b"]


@played()
async def test_an_item_whose_owner_dies_is_taken_by_the_one_that_waits(world: World) -> None:
    link = world.link()
    await queue_at(link).put("a")
    taken: list[bytes] = []

    async def die() -> None:
        with anyio.CancelScope() as scope:
            async with queue_at(link).take():
                link.fate = lambda _: "refused"  # nothing of its goes through from now on
                scope.cancel()

    async def take() -> None:
        async with queue_at(world.link(), 1).take(wait_s=30) as item:
            taken.append(item.value)

    began = anyio.current_time()
    async with anyio.create_task_group() as group:
        group.start_soon(die)
        await anyio.sleep(0.5)
        await take()
    assert taken == [b"a"]
    assert 2 < anyio.current_time() - began < 8


@played()
async def test_one_that_waits_takes_an_item_as_soon_as_it_is_put(world: World) -> None:
    async with anyio.create_task_group() as group:

        async def put() -> None:
            await anyio.sleep(20.6)
            await queue_at(world.link(), 1).put("a")

        began = anyio.current_time()
        group.start_soon(put)
        async with queue_at(world.link()).take() as item:
            assert item.value == b"a"
            assert 20.6 < anyio.current_time() - began < 20.8


@played()
async def test_nothing_to_take_in_time(world: World) -> None:
    with pytest.raises(TimeoutError, match="within 2 s"):
        async with queue_at(world.link()).take(wait_s=2):
            pass


@played()
async def test_an_owner_that_loses_its_lease_removes_nothing(world: World) -> None:
    queue, other = queue_at(world.link()), queue_at(world.link(), 1)
    await queue.put("a")
    lost = pytest.raises(LeaseLostError)
    with anyio.fail_after(10), lost:
        async with queue.take():
            world.fed.apply("DEL quorate:queue:{jobs}:taken:1")
            await anyio.sleep_forever()
    assert await value_taken(other) == b"a"


@played()
async def test_a_write_in_one_transaction_with_the_removal_is_done_once(world: World) -> None:
    link = world.link()
    queue = queue_at(link)
    await queue.put("5")
    items: list[Item] = []
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block raises it
        async with queue.take() as item:
            async with link.kv.transaction() as t:
                await item.remove_in(t)
                t.increment("sum", int(item.value))
            items.append(item)
            raise ZeroDivisionError  # after the work was done
    with pytest.raises(TimeoutError):
        await value_taken(queue)
    assert await link.kv.get("sum") == b"5"
    with pytest.raises(LeaseLostError):
        async with link.kv.transaction() as t:
            await items[0].remove_in(t)


@played()
async def test_a_removal_of_unknown_outcome_is_found_out(world: World) -> None:
    link = world.link()
    queue = queue_at(link)
    await queue.put("a")
    unheard = ["unheard", "unheard"]
    async with queue.take() as item:
        assert item.value == b"a"
        link.fate = lambda payload: unheard.pop() if unheard and b"WATCH" in payload else None
    assert unheard == []
    with pytest.raises(TimeoutError):
        await value_taken(queue)


@played()
async def test_the_head_moves_over_removed_items_and_never_over_one_to_come(world: World) -> None:
    link = world.link()
    queue, slow = queue_at(link), queue_at(world.link(), 1)
    for number in range(36):
        await queue.put(str(number))
    drawn = await link.kv.increment("quorate:queue:{jobs}:tail")  # by one that is slow
    assert [await value_taken(queue) for _ in range(36)] == [b"%d" % n for n in range(36)]
    await queue.put("last")
    assert await value_taken(queue) == b"last"
    assert await link.kv.get("quorate:queue:{jobs}:head") == b"33"
    assert drawn == 37
    world.fed.apply("SET quorate:queue:{jobs}:head 200")
    assert await slow.put("late") == 200
    assert await value_taken(queue) == b"late"


@played()
async def test_the_head_does_not_move_over_an_item_that_has_just_appeared(world: World) -> None:
    queue, kv = queue_at(world.link()), world.store()
    window = await queue._look(range(1, 33))
    assert window == [(False, False)] * 32
    await kv.set("quorate:queue:{jobs}:item:5", "x")
    await queue._advance(range(1, 33))
    assert await kv.get("quorate:queue:{jobs}:head") is None
    await kv.delete("quorate:queue:{jobs}:item:5")
    await queue._advance(range(1, 33))
    assert await kv.get("quorate:queue:{jobs}:head") == b"33"
    await queue._advance(range(1, 33))  # by one that has looked long ago
    await queue._advance(range(65, 97))
    assert await kv.get("quorate:queue:{jobs}:head") == b"33"


@played()
async def test_many_workers_take_each_item_once(world: World) -> None:
    taken: list[bytes] = []

    async def work(seed: int) -> None:
        random, queue = Random(seed), queue_at(world.link(), seed)
        with anyio.move_on_after(15):
            while True:
                try:
                    async with queue.take() as item:
                        await anyio.sleep(random.random())
                        _ = 1 / (random.random() > 0.2)
                except ZeroDivisionError:
                    continue
                taken.append(item.value)

    async with anyio.create_task_group() as group:
        for seed in range(3):
            group.start_soon(work, seed)
        queue = queue_at(world.link(), 9)
        for number in range(12):
            await queue.put(str(number))
            await anyio.sleep(0.2)
    assert sorted(taken) == sorted(b"%d" % number for number in range(12))


@played()
async def test_of_many_idle_workers_few_ask_for_an_item(world: World) -> None:
    asked, taken = 0, 0

    def count(_payload: bytes) -> None:
        nonlocal asked
        asked += 1

    async def work(number: int) -> None:
        nonlocal taken
        link = world.link()
        link.fate = count
        queue = Queue(link.kv, "jobs", ttl_s=100, rng=Random(number))
        while True:
            async with queue.take():
                taken += 1

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(work, number)
        await anyio.sleep(1)
        queue = queue_at(world.link(), 99)
        for number in range(16):
            if number == 8:  # by now they know that they are many
                asked = 0
            await queue.put("x")
            await anyio.sleep(0.7)
        group.cancel_scope.cancel()
    assert taken == 16
    assert asked < 8 * 30  # all of them together; a look of each takes five requests


@played()
async def test_a_worker_that_is_alone_takes_each_item_at_once(world: World) -> None:
    late: list[float] = []

    async def work() -> None:
        queue = queue_at(world.link())
        while True:
            async with queue.take():
                late.append(anyio.current_time() - put_at)

    put_at = 0.0
    async with anyio.create_task_group() as group:
        group.start_soon(work)
        await anyio.sleep(1)
        for _ in range(5):
            put_at = anyio.current_time()
            await queue_at(world.link(), 1).put("x")
            await anyio.sleep(0.5)
        group.cancel_scope.cancel()
    assert len(late) == 5
    assert max(late) < 0.2


@pytest.mark.parametrize("seed", range(3))
@played()
async def test_in_a_storm_each_item_counts_once(world: World, seed: int) -> None:
    """Requests are lost, late and unanswered, and workers fail; one transaction counts an item."""
    random, put = Random(seed), set[int]()
    fates = ["refused", "lost", "unheard", "late"]

    def flaky() -> Link:
        link = world.link()
        link.fate = lambda _: random.choice(fates) if random.random() < 0.1 else None
        return link

    async def produce(number: int) -> None:
        queue = queue_at(flaky(), number)
        for at in range(5):
            with suppress(NoLeaderError, UnknownOutcomeError):
                put.add(await queue.put(str(10 * number + at)))
            await anyio.sleep(random.random())

    async def work(number: int) -> None:
        link = flaky()
        while True:
            with suppress(NoLeaderError, UnknownOutcomeError, LeaseLostError, ConflictError):
                async with queue_at(link, number).take() as item:
                    await anyio.sleep(random.random())
                    async with link.kv.transaction() as t:
                        await item.remove_in(t)
                        t.increment(f"done:{item.number}")

    with anyio.move_on_after(60):
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(produce, number)
                group.start_soon(work, number + 3)
    kv = world.store()
    done = {int(key[5:]): value async for key, value in kv.scan_items("done:*")}
    assert put <= set(done)
    assert len(put) > 5
    assert set(done.values()) == {b"1"}
    assert [key async for key in kv.scan("quorate:queue:{jobs}:item:*")] == []


@played("trio")
async def test_wrong_arguments_are_named(world: World) -> None:
    with pytest.raises(ConfigurationError, match="ttl_s = 0: expected seconds"):
        Queue(world.store(), "jobs", ttl_s=0)
    with pytest.raises(ConfigurationError, match="name of the queue = ''"):
        Queue(world.store(), "")
