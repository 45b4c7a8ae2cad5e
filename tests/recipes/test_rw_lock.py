"""Readers share a lock, a writer has it alone, and neither starves the other."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

import anyio
import pytest

from quorate.errors import LeaseLostError
from quorate.node.requests.request import UNSTAMPED, Stamp
from quorate.recipes import RWLock, rw_lock
from quorate.recipes.line import Line
from quorate.recipes.waiting import Owned
from tests.recipes.test_lock import fate
from tests.support.recipes_world import BACKENDS, LATENCY_S, Link, Run, World, play

TTL_S = 3.0


class Book:
    """Who reads and who writes; names of writers begin with "w"."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.inside: list[str] = []
        self.entries: list[str] = []
        self.most = 0

    def lock(self, name: str, wait_s: float | None = None) -> RWLock:
        kv = self.world.store()
        return rw_lock(kv, "book", ttl_s=TTL_S, wait_s=wait_s, name=name, rng=Random(name))

    async def take(self, name: str, hold_s: float = 1.0, shared: RWLock | None = None) -> None:
        """Read or write."""
        shared = shared or self.lock(name)
        async with shared.writing() if name.startswith("w") else shared.reading():
            writers = [each for each in self.inside if each.startswith("w")]
            assert not writers
            assert not (name.startswith("w") and self.inside)
            self.inside.append(name)
            self.entries.append(name)
            self.most = max(self.most, len(self.inside))
            try:
                await anyio.sleep(hold_s)
            finally:
                self.inside.remove(name)


def test_readers_share_and_a_writer_is_alone_in_the_order_of_arrival(run: Run) -> None:
    async def scenario(world: World) -> None:
        book = Book(world)
        names = ["r1", "r2", "w1", "r3", "r4", "w2", "w3", "r5"]
        start = anyio.current_time()
        async with anyio.create_task_group() as group:
            for name in names:
                group.start_soon(book.take, name)
                await anyio.sleep(0.2)
        assert sorted(book.entries[:2]) == ["r1", "r2"]
        assert book.entries[2] == "w1"
        assert sorted(book.entries[3:5]) == ["r3", "r4"]
        assert book.entries[5:] == ["w2", "w3", "r5"]
        assert book.most == 2
        assert anyio.current_time() - start < 7.5
        assert world.keys() == []

    run(scenario)


def test_a_lock_that_is_not_free_at_once_is_reported(run: Run) -> None:
    async def scenario(world: World) -> None:
        book = Book(world)
        async with book.lock("r").reading():
            async with book.lock("r2", wait_s=0).reading():
                pass
            with pytest.raises(TimeoutError, match=r"^rw_lock 'book' .*: 'r' is before us"):
                async with book.lock("w", wait_s=0).writing():
                    raise AssertionError
        async with book.lock("w", wait_s=0).writing():
            with pytest.raises(TimeoutError, match="'w' is before us"):
                async with book.lock("r", wait_s=0).reading():
                    raise AssertionError
        assert world.keys() == []

    run(scenario)


def test_a_task_that_reads_cannot_begin_to_write(run: Run) -> None:
    async def scenario(world: World) -> None:
        shared = Book(world).lock("r")
        async with shared.reading():
            with pytest.raises(RuntimeError, match="holds rw_lock 'book' already"):
                async with shared.writing():
                    raise AssertionError

    run(scenario)


def test_a_waiter_whose_ticket_has_ended_early_waits_behind_those_who_came_since(run: Run) -> None:
    async def scenario(world: World) -> None:
        book = Book(world)

        async def lose() -> None:
            with pytest.raises(LeaseLostError):
                await book.take("r1", 60)

        async with anyio.create_task_group() as group:
            group.start_soon(lose)
            await anyio.sleep(0.2)
            group.start_soon(book.take, "w2", 1)
            await anyio.sleep(0.9)
            world.ahead_s = 2 * TTL_S  # log time jumps, which ends both leases
            book.inside.clear()
            book.inside = Forgetful()
            group.start_soon(book.take, "w3", 2)
        assert book.entries == ["r1", "w3", "w2"]
        assert world.keys() == []

    run(scenario)


class Forgetful(list[str]):
    """Those who are inside, without those of an earlier list."""

    def remove(self, name: str) -> None:
        if name in self:
            super().remove(name)


class Joined(Link):
    """A connection that sends the requests of many tasks as one entry of the log."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._waiting: list[bytes] = []
        self._replies: list[bytes] = []

    async def command(self, payload: bytes, flags: int = 0, stamp: Stamp = UNSTAMPED) -> bytes:
        place = len(self._waiting)
        self._waiting.append(payload)
        await anyio.sleep(LATENCY_S)
        if place == 0:
            reply = self.world.apply(b"".join(self._waiting), flags, stamp)
            self._replies = reply.splitlines(keepends=True)
            self._waiting = []
        await anyio.sleep(LATENCY_S / 2)
        return self._replies[place]


def test_tickets_of_one_entry_have_an_order(run: Run) -> None:
    async def scenario(world: World) -> None:
        book = Book(world)
        link = Joined(world)
        async with anyio.create_task_group() as group:
            for name in ("w1", "w2", "r1", "r2", "w3"):
                shared = rw_lock(link.kv, "book", ttl_s=TTL_S, name=name, rng=Random(name))
                group.start_soon(book.take, name, 1.0, shared)
            await anyio.sleep(LATENCY_S * 5)
            tokens = {ticket.holder.token for ticket in await tickets(link)}
            assert len(tokens) == 1
        assert len(book.entries) == 5
        assert world.keys() == []

    run(scenario)


async def tickets(link: Link) -> list[Owned]:
    prefix = b"quorate:rw_lock:{book}:"
    return await Line(link.kv, prefix, ttl_s=TTL_S, name=None, rng=None, title="book").tickets()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_storm_lets_nobody_in_next_to_a_writer(backend: str, seed: int, tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        book, rng = Book(world), Random(seed)

        async def program(name: str) -> None:
            link = world.link()
            link.fate = partial(fate, rng)
            shared = rw_lock(link.kv, "book", ttl_s=TTL_S, name=name, rng=rng)
            for _ in range(6):
                await anyio.sleep(rng.random())
                with anyio.move_on_after(rng.expovariate(0.2)), suppress(LeaseLostError):
                    await book.take(name, rng.random() * 2, shared)

        async with anyio.create_task_group() as group:
            for name in ("r1", "r2", "r3", "r4", "w1", "w2"):
                group.start_soon(program, name)
        await anyio.sleep(10)
        assert world.keys() == []
        assert book.most > 1
        assert len(book.entries) > 5

    play(backend, tmp_path, scenario)
