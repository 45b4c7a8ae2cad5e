"""One program leads at a time, and everybody sees which."""

from functools import partial
from random import Random

import anyio
import pytest

from quorate.errors import LeaseLostError
from quorate.recipes import Election, Holder, election
from tests.support.recipes_world import DeafWatch, Run, World

TTL_S = 3.0


def of(world: World, name: str) -> Election:
    return election(world.store(), "mailer", ttl_s=TTL_S, name=name, rng=Random(name))


async def observe(world: World, seen: list[tuple[str, int] | None]) -> None:
    async for leader in of(world, "observer").observe():
        seen += [leader and leader[:2]]


async def lead(world: World, name: str, seconds: float, tokens: dict[str, int]) -> None:
    async with of(world, name).lead() as held:
        tokens[name] = held.token
        await anyio.sleep(seconds)


def test_observers_see_each_leader_once_with_its_token(run: Run) -> None:
    async def scenario(world: World) -> None:
        seen: list[tuple[str, int] | None] = []
        late: list[tuple[str, int] | None] = []
        tokens: dict[str, int] = {}
        async with anyio.create_task_group() as group:
            group.start_soon(observe, world, seen)
            await anyio.sleep(1)
            group.start_soon(lead, world, "a", 30, tokens)
            await anyio.sleep(1)
            group.start_soon(lead, world, "b", 5, tokens)
            await anyio.sleep(15)
            # The leader has renewed its lease by now.
            group.start_soon(observe, world, late)
            await anyio.sleep(30)
            group.cancel_scope.cancel()
        assert tokens["a"] < tokens["b"]
        leaders = [("a", tokens["a"]), ("b", tokens["b"])]
        assert [leader for leader in seen if leader] == leaders
        assert [leader for leader in late if leader] == leaders
        assert (seen[0], seen[-1], late[0], late[-1]) == (None, None, leaders[0], None)
        assert world.keys() == []

    run(scenario)


def test_an_observer_whose_watch_is_silent_sees_the_leader_all_the_same(run: Run) -> None:
    async def scenario(world: World) -> None:
        world.watch_class = DeafWatch
        tokens: dict[str, int] = {}
        seen: list[tuple[str, int] | None] = []
        async with anyio.create_task_group() as group:
            group.start_soon(observe, world, seen)
            await anyio.sleep(1)
            group.start_soon(lead, world, "a", 60, tokens)
            await anyio.sleep(12)
            assert [leader and leader[0] for leader in seen] == [None, "a"]
            group.cancel_scope.cancel()

    run(scenario)


def test_a_leader_that_dies_is_replaced(run: Run) -> None:
    async def scenario(world: World) -> None:
        tokens: dict[str, int] = {}
        link = world.link()

        async def die() -> None:
            async with election(link.kv, "mailer", ttl_s=TTL_S, name="a").lead() as held:
                tokens["a"] = held.token
                link.fate = lambda _: "stuck"
                await anyio.sleep_forever()

        async def doomed() -> None:
            with pytest.raises(
                LeaseLostError, match=r"^leadership 'mailer', token \d+, was lost: "
            ):
                await die()

        async with anyio.create_task_group() as group:
            group.start_soon(doomed)
            await anyio.sleep(0.5)
            group.start_soon(partial(lead, world, "b", 1, tokens))
        assert 0 < tokens["a"] < tokens["b"]
        assert anyio.current_time() < TTL_S + 3

    run(scenario)


def test_who_does_not_wait_does_not_lead_next_to_another(run: Run) -> None:
    async def scenario(world: World) -> None:
        async with of(world, "a").lead():
            with pytest.raises(TimeoutError, match=r"^leadership 'mailer' was not free"):
                async with of(world, "b").lead(wait_s=0):
                    raise AssertionError

    run(scenario)


def test_a_leader_is_a_name_a_token_and_a_number() -> None:
    assert Holder._fields == ("name", "token", "number")
