"""Recipes work in a cluster with partitions: all keys of one recipe have one slot; it may move."""

from collections.abc import Callable
from random import Random

import anyio
import pytest
from trio.testing import MockClock

from quorate import recipes
from quorate.errors import CrossSlotError, LeaseLostError
from quorate.keyvalue.programs.client import KeyValue
from quorate.keyvalue.programs.transaction import Transaction
from quorate.keyvalue.slots.hashing import key_slot
from quorate.recipes.names import prefix_of
from tests.client.partitioned.conftest import Connect
from tests.support.fake_partitions import FakePartitions

NAMES = ("n", "a", "jobs", "täglich")


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_recipe_is_the_tag_of_its_keys(name: str) -> None:
    for recipe in ("lock", "queue"):
        assert key_slot(prefix_of(recipe, name) + b"x{y}") == key_slot(name.encode())


async def hold_lock(kv: KeyValue, name: str, rng: Random, inside: list[str]) -> None:
    async with recipes.lock(kv, name, ttl_s=2, rng=rng) as held:
        inside.append(name)
        assert inside == [name]
        await anyio.sleep(1)

        async def body(t: Transaction) -> None:
            await held.fence(t)
            t.increment(f"{{{name}}}:count")

        await kv.transact(body, rng=rng)
        inside.clear()


async def permit(kv: KeyValue, name: str, rng: Random, inside: list[str]) -> None:
    async with recipes.semaphore(kv, name, 2, ttl_s=2, rng=rng):
        inside.append(name)
        assert len(inside) <= 2
        await anyio.sleep(1)
        inside.remove(name)
    await kv.increment(f"{{{name}}}:count")


async def write(kv: KeyValue, name: str, rng: Random, inside: list[str]) -> None:
    async with recipes.rw_lock(kv, name, ttl_s=2, rng=rng).writing():
        inside.append(name)
        assert inside == [name]
        await anyio.sleep(1)
        inside.clear()
    await kv.increment(f"{{{name}}}:count")


async def lead(kv: KeyValue, name: str, rng: Random, inside: list[str]) -> None:
    async with recipes.election(kv, name, ttl_s=2, rng=rng).lead():
        inside.append(name)
        assert inside == [name]
        await anyio.sleep(1)
        inside.clear()
    await kv.increment(f"{{{name}}}:count")


async def wait_for_others(kv: KeyValue, name: str, rng: Random, inside: list[str]) -> None:
    await recipes.Barrier(kv, name, 3, ttl_s=2, rng=rng).wait()
    await kv.increment(f"{{{name}}}:count")


async def work(kv: KeyValue, name: str, rng: Random, inside: list[str]) -> None:
    queue = recipes.Queue(kv, name, ttl_s=2, rng=rng)
    await queue.put(b"1")
    async with queue.take() as job:

        async def finish(t: Transaction) -> None:
            await job.remove_in(t)
            t.increment(f"{{{name}}}:count", int(job.value))

        await kv.transact(finish, rng=rng)


async def count(kv: KeyValue, name: str, rng: Random, inside: list[str]) -> None:
    await recipes.Counter(kv, name).add()
    async with recipes.Party(kv, name, ttl_s=2, rng=rng).join(f"worker {rng.random()}"):
        await anyio.sleep(1)
    await kv.increment(f"{{{name}}}:count")


@pytest.mark.parametrize("recipe", [hold_lock, permit, write, lead, wait_for_others, work, count])
async def test_three_programs_use_a_recipe_while_its_slot_moves(
    world: FakePartitions,
    connected: Connect,
    autojump_clock: MockClock,
    recipe: Callable[..., object],
) -> None:
    inside: list[str] = []

    async def move() -> None:
        while True:
            await anyio.sleep(1.3)
            world.move(b"n")

    async with connected() as kv, anyio.create_task_group() as tasks:
        tasks.start_soon(move)
        async with anyio.create_task_group() as programs:
            for seed in range(3):
                programs.start_soon(recipe, kv, "n", Random(seed), inside)  # type: ignore[arg-type]
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            assert await kv.get("{n}:count") == b"3"


async def test_a_lock_fences_transactions_of_keys_with_its_name_as_their_tag(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    async with connected() as kv, recipes.lock(kv, "n") as held:
        async with kv.transaction() as t:
            await held.fence(t)
            t.set("{n}:balance", "1")
        async with kv.transaction() as t:
            await held.fence(t)
            with pytest.raises(CrossSlotError):
                t.set("a", "1")
        world.move(b"n")
        await kv.delete(held.key)
        with pytest.raises(LeaseLostError):
            await kv.transact(held.fence)


async def test_a_cached_prefix_needs_a_tag(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    async with connected() as kv:
        with pytest.raises(CrossSlotError, match="text in braces"):
            async with recipes.cached(kv, "config/"):
                pass
