"""A semaphore lets so many in, and the others in the order in which they came."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from quorate.errors import ConfigurationError, LeaseLostError
from quorate.recipes import semaphore
from tests.recipes.test_lock import fate
from tests.support.recipes_world import BACKENDS, Link, Run, World, play

TTL_S = 3.0


class Book:
    """Who is inside, of three."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.inside: list[str] = []
        self.entries: list[str] = []
        self.most = 0

    async def take(self, name: str, hold_s: float = 1.0, link: Link | None = None) -> None:
        """Take a permit."""
        link = link or self.world.link()
        async with semaphore(link.kv, "pool", 3, ttl_s=TTL_S, name=name, rng=Random(name)):
            self.inside.append(name)
            self.entries.append(name)
            self.most = max(self.most, len(self.inside))
            assert len(self.inside) <= 3
            try:
                await anyio.sleep(hold_s)
            finally:
                self.inside.remove(name)


def test_so_many_are_let_in_in_the_order_of_arrival(run: Run) -> None:
    async def scenario(world: World) -> None:
        book = Book(world)
        start = anyio.current_time()
        async with anyio.create_task_group() as group:
            for name in "abcdefghi":
                group.start_soon(book.take, name, 2)
                await anyio.sleep(0.1)
        assert book.entries == list("abcdefghi")
        assert book.most == 3
        assert anyio.current_time() - start < 3 * 2 + 1
        assert world.keys() == []

    run(scenario)


def test_a_full_semaphore_is_reported(run: Run) -> None:
    async def scenario(world: World) -> None:
        kv = world.store()
        async with semaphore(kv, "pool", 2, name="a"), semaphore(kv, "pool", 2):
            with pytest.raises(TimeoutError, match=r"^semaphore 'pool' was not free: "):
                async with semaphore(kv, "pool", 2, wait_s=0):
                    raise AssertionError
        assert world.keys() == []

    run(scenario)


@pytest.mark.parametrize("permits", [0, -1, 10_001, 1.5, "3", True, None])
def test_a_wrong_number_of_permits_is_refused(run: Run, permits: Any) -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(ConfigurationError, match=r"^permits = .*: expected 1 to 10000"):
            async with semaphore(world.store(), "pool", permits):
                raise AssertionError

    run(scenario)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_storm_lets_in_no_more(backend: str, seed: int, tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        book, rng = Book(world), Random(seed)

        async def program(name: str) -> None:
            link = world.link()
            link.fate = partial(fate, rng)
            for _ in range(6):
                await anyio.sleep(rng.random())
                with anyio.move_on_after(rng.expovariate(0.2)), suppress(LeaseLostError):
                    await book.take(name, rng.random() * 3, link)

        async with anyio.create_task_group() as group:
            for name in "abcdefgh":
                group.start_soon(program, name)
        await anyio.sleep(10)
        assert world.keys() == []
        assert book.most == 3
        assert len(book.entries) > 8

    play(backend, tmp_path, scenario)
