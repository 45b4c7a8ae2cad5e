"""A party, a barrier and a counter: who is here, and how many."""

from random import Random

import anyio
import pytest

from quorate.errors import ConfigurationError
from quorate.keyvalue.programs.session import open_session
from quorate.recipes.barrier import Barrier
from quorate.recipes.counter import Counter
from quorate.recipes.party import Party
from tests.support.played import played
from tests.support.recipes_world import Link, World


def party_at(link: Link, seed: int = 0) -> Party:
    return Party(link.kv, "web", ttl_s=3, rng=Random(seed))


def barrier_at(link: Link, seed: int = 0) -> Barrier:
    return Barrier(link.kv, "start", 3, ttl_s=3, rng=Random(seed))


async def names(party: Party) -> list[str]:
    return [member.name for member in await party.members()]


@played()
async def test_a_member_is_here_as_long_as_its_block_runs(world: World) -> None:
    one, other = party_at(world.link()), party_at(world.link(), 1)
    assert await names(one) == []
    async with one.join("b:1"):
        async with other.join("a:1"):
            assert await names(one) == ["b:1", "a:1"]
            await anyio.sleep(20)
            assert await names(one) == ["b:1", "a:1"]
        assert await names(one) == ["b:1"]
    assert await names(one) == []


@played()
async def test_those_who_observe_hear_of_each_member_and_of_no_renewal(world: World) -> None:
    seen: list[list[str]] = []
    link = world.link()

    async def observe() -> None:
        async with party_at(world.link(), 1).observe() as changes:
            async for members in changes:
                seen.append([member.name for member in members])  # noqa: PERF401 - it never ends

    async with anyio.create_task_group() as group:
        group.start_soon(observe)
        await anyio.sleep(1)
        with anyio.CancelScope() as scope:
            async with party_at(link).join("a"):
                await anyio.sleep(10)
                async with party_at(world.link(), 2).join("b"):
                    await anyio.sleep(10)
                link.fate = lambda _: "refused"  # it dies
                scope.cancel()
        await anyio.sleep(6)
        group.cancel_scope.cancel()
    assert seen == [[], ["a"], ["a", "b"], ["a"], []]


@played()
async def test_a_barrier_lets_as_many_through_as_it_is_for_and_then_again(world: World) -> None:
    through: list[tuple[int, float]] = []

    async def wait(seed: int) -> None:
        await anyio.sleep(seed)
        index = await barrier_at(world.link(), seed).wait()
        through.append((index, anyio.current_time()))

    began = anyio.current_time()
    async with anyio.create_task_group() as group:
        for seed in range(6):
            group.start_soon(wait, seed)
    assert [index for index, _ in sorted(through, key=lambda one: (one[1] > began + 3, one))] == [
        *range(3),
        *range(3),
    ]
    assert [round(at - began) for _, at in through] == [2, 2, 2, 5, 5, 5]


@played()
async def test_a_barrier_does_not_count_the_dead(world: World) -> None:
    link = world.link()
    through: list[int] = []

    async def wait(seed: int) -> None:
        through.append(await barrier_at(world.link(), seed).wait())

    async with anyio.create_task_group() as group:
        with anyio.move_on_after(1):
            async with anyio.create_task_group() as dying:
                dying.start_soon(barrier_at(link).wait)
                await anyio.sleep(0.5)
                link.fate = lambda _: "refused"
        group.start_soon(wait, 1)
        await anyio.sleep(5)
        group.start_soon(wait, 2)
        await anyio.sleep(5)
        assert through == []
        group.start_soon(wait, 3)
        await anyio.sleep(1)
        assert sorted(through) == [0, 1, 2]


@played()
async def test_in_a_storm_a_barrier_lets_through_whole_groups(world: World) -> None:
    """Requests are lost, late and unanswered."""
    random, through = Random(5), list[int]()
    fates = ["refused", "lost", "unheard", "late"]

    async def wait(seed: int) -> None:
        link = world.link()
        link.fate = lambda _: random.choice(fates) if random.random() < 0.1 else None
        barrier = barrier_at(link, seed)
        for _ in range(4):
            through.append(await barrier.wait())

    async with anyio.create_task_group() as group:
        for seed in range(3):
            group.start_soon(wait, seed)
    assert sorted(through) == sorted([*range(3)] * 4)


@played()
async def test_a_barrier_that_is_not_reached_in_time(world: World) -> None:
    with pytest.raises(TimeoutError, match=r"^barrier 'start' did not open within 2 s"):
        await barrier_at(world.link()).wait(wait_s=2)
    assert world.keys() == []
    with pytest.raises(TimeoutError):
        await barrier_at(world.link()).wait(wait_s=0)
    alone = Barrier(world.store(), "alone", 1)
    assert await alone.wait(wait_s=0) == 0


@played("trio")
async def test_a_barrier_of_none_is_refused(world: World) -> None:
    with pytest.raises(ConfigurationError, match="parties = 0: expected 1 to 500"):
        Barrier(world.store(), "start", 0)


@played()
async def test_a_counter_adds_up(world: World) -> None:
    one, other = Counter(world.store(), "hits"), Counter(world.store(), "hits")
    assert await one.value() == 0
    assert await one.add() == 1
    assert await other.add(-5) == -4
    assert await one.value() == -4


@played()
async def test_in_a_session_a_counter_counts_once_what_was_sent_twice(world: World) -> None:
    link = world.link()
    async with open_session(link) as kv:
        counter = Counter(kv, "hits")
        assert await counter.add(2) == 2
        unheard = ["unheard", "unheard"]
        link.fate = lambda _: unheard.pop() if unheard else None
        assert await counter.add(3) == 5
        assert unheard == []
