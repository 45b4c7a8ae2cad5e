"""A lock has one owner at a time, and the others get it in the order in which they came."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast

import anyio
import anyio.abc
import pytest

from quorate.client.blocking import BlockingKeyValue
from quorate.errors import ConfigurationError, KeyValueError, LeaseLostError, NoLeaderError
from quorate.keyvalue.programs.client import KeyValue
from quorate.keyvalue.programs.watch import Watch
from quorate.recipes import Counter, Lease, Party, Queue, cached, election, lock, rw_lock, semaphore
from tests.support.played import played
from tests.support.recipes_world import BACKENDS, LATENCY_S, DeafWatch, Link, Run, World, play

OWNER = b"quorate:lock:{jobs}:owner"
TTL_S = 3.0


class Book:
    """Who holds the lock, and who has held it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.inside: list[str] = []
        self.entries: list[str] = []
        self.tokens: list[int] = []
        self.links: dict[str, Link] = {}

    async def take(self, name: str, hold_s: float = 1.0, *, wait_s: float | None = None) -> None:
        """Take the lock from a program of its own."""
        link = self.links.setdefault(name, self.world.link())
        rng = Random(name)
        async with lock(link.kv, "jobs", ttl_s=TTL_S, wait_s=wait_s, name=name, rng=rng) as held:
            await self.hold(name, held, hold_s)

    async def hold(self, name: str, held: Lease, hold_s: float) -> None:
        """Be inside for a while."""
        assert self.inside == []
        self.inside.append(name)
        self.entries.append(name)
        self.tokens.append(held.token)
        try:
            await anyio.sleep(hold_s)
        finally:
            self.inside.remove(name)

    def cut_off(self, name: str) -> None:
        """Leave all requests of a program without an answer from now on."""
        self.links[name].fate = lambda _: "stuck"

    def check(self) -> None:
        """Nothing stays behind, and tokens rose."""
        assert self.inside == []
        assert self.world.keys() == []
        assert self.tokens == sorted(set(self.tokens))


async def in_a_row(book: Book, group: anyio.abc.TaskGroup, *names: str) -> None:
    for name in names:
        group.start_soon(book.take, name)
        await anyio.sleep(0.2)


def test_a_free_lock_costs_one_write_and_its_release_another(run: Run) -> None:
    async def scenario(world: World) -> None:
        book = Book(world)
        await book.take("a", 0.5)
        assert len(book.links["a"].commands) == 2
        book.check()

    run(scenario)


def test_waiters_get_the_lock_in_the_order_in_which_they_came(run: Run) -> None:
    async def scenario(world: World) -> None:
        book = Book(world)
        names = list("abcdefghij")
        async with anyio.create_task_group() as group:
            await in_a_row(book, group, *names)
        assert book.entries == names
        book.check()

    run(scenario)


def test_the_lock_is_handed_over_without_waiting_for_a_poll(run: Run) -> None:
    async def scenario(world: World) -> None:
        book = Book(world)
        start = anyio.current_time()
        async with anyio.create_task_group() as group:
            await in_a_row(book, group, *"abcde")
        assert anyio.current_time() - start < 5 + 5 * 0.2

    run(scenario)


def test_a_release_at_any_moment_of_a_waiters_steps_is_noticed(run: Run) -> None:
    """Between its reads and the beginning of its watch, too."""

    async def scenario(world: World) -> None:
        book = Book(world)
        for at in range(30):
            async with anyio.create_task_group() as group:
                group.start_soon(book.take, "a", 0.2)
                await anyio.sleep(0.22 - at * LATENCY_S / 2)
                start = anyio.current_time()
                await book.take("b", 0)
                assert anyio.current_time() - start < 0.5
        book.check()

    run(scenario)


def test_who_comes_later_does_not_overtake_who_waits(run: Run) -> None:
    async def scenario(world: World) -> None:
        book = Book(world)
        async with anyio.create_task_group() as group:
            await in_a_row(book, group, "a", "b")
            for _ in range(40):
                await anyio.sleep(0.05)
                with pytest.raises(TimeoutError):
                    await book.take("impatient", wait_s=0)
                if book.entries == ["a", "b"]:
                    break
        assert book.entries == ["a", "b"]

    run(scenario)


def test_the_lock_of_a_dead_owner_is_free_when_its_lease_has_expired(run: Run) -> None:
    async def scenario(world: World) -> None:
        book = Book(world)
        async with anyio.create_task_group() as group:
            lost = partial(expecting, LeaseLostError, book.take, "dead", 60.0)
            group.start_soon(lost)
            await anyio.sleep(1)
            book.cut_off("dead")
            start = anyio.current_time()
            await book.take("b")
            assert anyio.current_time() - start < TTL_S + 1.5
        assert book.entries == ["dead", "b"]
        book.check()

    run(scenario)


async def expecting(kind: type[Exception], call: Callable[..., object], *args: object) -> None:
    with pytest.raises(kind):
        await call(*args)  # type: ignore[misc]


@pytest.mark.parametrize("dead", ["b", "c"])
def test_a_waiter_that_dies_holds_up_nobody_for_long(run: Run, dead: str) -> None:
    async def scenario(world: World) -> None:
        book = Book(world)
        async with anyio.create_task_group() as group:
            await in_a_row(book, group, *"abcd")
            book.cut_off(dead)
            await anyio.sleep(TTL_S + 4)
            assert book.entries == [name for name in "abcd" if name != dead]
            group.cancel_scope.cancel()

    run(scenario)


def test_a_waiter_that_is_cut_off_for_long_waits_again_at_the_end(run: Run) -> None:
    async def scenario(world: World) -> None:
        book = Book(world)
        async with anyio.create_task_group() as group:
            group.start_soon(book.take, "a", 8)
            await anyio.sleep(0.2)
            await in_a_row(book, group, "b", "c")
            book.links["b"].fate = lambda _: "lost"
            await anyio.sleep(TTL_S + 1)
            book.links["b"].fate = lambda _: None
        assert book.entries == ["a", "c", "b"]
        book.check()

    run(scenario)


def test_a_wait_has_an_end_and_leaves_nothing_behind(run: Run) -> None:
    async def scenario(world: World) -> None:
        book = Book(world)
        async with anyio.create_task_group() as group:
            group.start_soon(book.take, "a", 10)
            await anyio.sleep(0.2)
            start = anyio.current_time()
            with pytest.raises(TimeoutError, match=r"^lock 'jobs' .* 2 s: 'a' is before us, token"):
                await book.take("b", wait_s=2)
            assert 2 <= anyio.current_time() - start < 2.5
            with pytest.raises(TimeoutError, match=r"^lock 'jobs' was not free: 'a' is"):
                await book.take("b", wait_s=0)
            assert world.keys() == [OWNER]
        book.check()

    run(scenario)


def test_a_cancelled_waiter_leaves_nothing_behind(run: Run) -> None:
    async def scenario(world: World) -> None:
        book = Book(world)
        async with anyio.create_task_group() as group:
            group.start_soon(book.take, "a", 10)
            await anyio.sleep(0.2)
            for pause in range(1, 40):
                with anyio.move_on_after(pause / 100):
                    await book.take("b")
                assert world.keys() == [OWNER], pause
        book.check()

    run(scenario)


@pytest.mark.parametrize("trouble", ["deaf", "none", "lost"])
def test_a_watch_that_fails_holds_up_nobody_for_ever(run: Run, trouble: str) -> None:
    async def scenario(world: World) -> None:
        book = Book(world)
        async with anyio.create_task_group() as group:
            group.start_soon(book.take, "a", 5)
            await anyio.sleep(0.2)
            if trouble == "deaf":
                world.watch_class = DeafWatch
            elif trouble == "none":
                link = book.links["b"] = world.link()
                link.kv = KeyValue(link)
            group.start_soon(book.take, "b")
            await anyio.sleep(1)
            if trouble == "lost":
                changes = world.fed.service.changes
                changes.restart(changes.position)
        assert book.entries == ["a", "b"]
        assert anyio.current_time() < 5 + TTL_S + 2 + 1
        book.check()

    run(scenario)


def test_flushall_ends_the_owner_and_starts_the_waiters_anew(run: Run) -> None:
    async def scenario(world: World) -> None:
        book = Book(world)
        async with anyio.create_task_group() as group:
            group.start_soon(partial(expecting, LeaseLostError, book.take, "a", 60))
            await anyio.sleep(0.2)
            group.start_soon(book.take, "b", 3)
            await anyio.sleep(1)
            book.inside = Deaf()  # "a" cannot know it before its next renewal
            await world.store().execute("FLUSHALL")
        assert book.entries == ["a", "b"]
        assert world.keys() == []

    run(scenario)


class Deaf(list[str]):
    """Nobody is noted as being inside."""

    def append(self, _name: str) -> None:
        pass

    def remove(self, _name: str) -> None:
        pass


def test_other_clients_may_take_the_lock_by_its_key(run: Run) -> None:
    async def scenario(world: World) -> None:
        book = Book(world)
        other = world.store()
        assert await other.compare_and_set(OWNER, None, "by hand", px=4000)
        with pytest.raises(TimeoutError, match="'by hand' is before us"):
            await book.take("a", wait_s=0)
        start = anyio.current_time()
        await book.take("a", 0)
        assert 3.5 < anyio.current_time() - start < 4.5
        book.check()

    run(scenario)


def test_a_task_that_takes_its_lock_again_gets_an_error(run: Run) -> None:
    async def scenario(world: World) -> None:
        kv = world.store()
        async with lock(kv, "jobs"), lock(kv, "other"):
            with pytest.raises(RuntimeError, match="holds lock 'jobs' already"):
                async with lock(kv, "jobs"):
                    raise AssertionError
        async with lock(kv, "jobs"):
            pass
        assert world.keys() == []

    run(scenario)


def test_an_outage_at_the_start_is_waited_for_or_reported(run: Run) -> None:
    async def scenario(world: World) -> None:
        book = Book(world)
        link = book.links["a"] = world.link()
        link.fate = lambda _: "refused"
        with pytest.raises(NoLeaderError):
            await book.take("a", wait_s=0)
        with pytest.raises(TimeoutError, match="not answer within 2 s: not done"):
            await book.take("a", wait_s=2)
        link.fate = lambda _: "stuck"
        with pytest.raises(
            TimeoutError, match=r"^lock 'jobs': the cluster did not answer within 2 s$"
        ):
            await book.take("a", wait_s=2)
        link.fate = lambda _: "refused"
        async with anyio.create_task_group() as group:
            group.start_soon(book.take, "a")
            await anyio.sleep(5)
            link.fate = lambda _: None
        assert book.entries == ["a"]
        book.check()

    run(scenario)


def test_an_outage_after_answers_is_named_when_the_wait_is_over(run: Run) -> None:
    async def scenario(world: World) -> None:
        link = world.link()

        async def silence() -> None:
            await anyio.sleep(1)
            link.fate = lambda _: "refused"

        async with lock(world.store(), "jobs"), anyio.create_task_group() as group:
            group.start_soon(silence)
            last = "'.*' is before us, token .*; the cluster has not answered last: not done$"
            with pytest.raises(
                TimeoutError, match=f"^lock 'jobs' was not free within 30 s: {last}"
            ):
                async with lock(link.kv, "jobs", wait_s=30):
                    raise AssertionError

    run(scenario)


def test_what_is_no_async_store_is_refused_before_the_block() -> None:
    for wrong in (None, "kv", BlockingKeyValue):
        kv: Any = wrong
        for made in (lock, semaphore_of_one, election, rw_lock, Party, Queue, Counter, cached):
            make: Any = made
            with pytest.raises(ConfigurationError, match=r"^kv = .*do not work with `connect_bl"):
                make(kv, "jobs")


def semaphore_of_one(kv: Any, name: str) -> object:
    return semaphore(kv, name, 1)


def test_an_owner_name_that_is_no_text_is_refused_before_the_block(run: Run) -> None:
    async def scenario(world: World) -> None:
        kv, wrong = world.store(), cast("Any", 5)
        for make in (lock, election, rw_lock):
            with pytest.raises(ConfigurationError, match=r"^name = 5: expected a str"):
                make(kv, "jobs", name=wrong)
        with pytest.raises(ConfigurationError, match=r"^name = 5: expected a str"):
            Party(kv, "jobs").join(wrong)

    run(scenario)


def test_an_error_of_the_store_is_no_reason_to_wait(run: Run) -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(KeyValueError, match="NOPERM"):
            async with lock(Refusing(world).kv, "jobs"):
                raise AssertionError

    run(scenario)


class Refusing(Link):
    """A user who may not read."""

    async def query(self, payload: bytes, flags: int = 0) -> bytes:
        return b"-NOPERM no\r\n"


@pytest.mark.parametrize(
    "name", ["", "a b", "{a}", "a*", "x" * 201, "ü" * 101, "a\n", "\ud800", None, 7, b"jobs"]
)
def test_a_name_that_would_not_be_plain_is_refused(run: Run, name: Any) -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(
            ConfigurationError, match=r"^name of the lock = .*: expected a str of 1 to 200"
        ):
            async with lock(world.store(), name):
                raise AssertionError

    run(scenario)


def test_a_wait_that_is_no_time_is_refused(run: Run) -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(ConfigurationError, match=r"^wait_s = -1: expected seconds"):
            await Book(world).take("a", wait_s=-1)

    run(scenario)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_storm_never_lets_two_in(backend: str, seed: int, tmp_path: Path) -> None:
    """Requests are lost, late or unanswered, and programs are cancelled at any moment."""

    async def scenario(world: World) -> None:
        book, rng = Book(world), Random(seed)

        async def program(name: str) -> None:
            for _ in range(6):
                await anyio.sleep(rng.random())
                with anyio.move_on_after(rng.expovariate(0.2)):
                    with suppress(LeaseLostError):
                        await book.take(name, rng.random() * 2)

        async with anyio.create_task_group() as group:
            for name in "abcdef":
                link = book.links[name] = world.link()
                link.fate = partial(fate, rng)
                group.start_soon(program, name)
        await anyio.sleep(10)
        book.check()
        assert len(book.entries) > 5

    play(backend, tmp_path, scenario)


def fate(rng: Random, _payload: bytes) -> str | None:
    fates = "refused", "lost", "unheard", "late", "mute", "stuck"
    return rng.choice(fates) if rng.random() < 0.06 else None


@played()
async def test_a_wait_has_one_watch_however_long_it_takes(world: World) -> None:
    opened: list[Watch] = []
    open_it = world.watch

    def watch(prefix: bytes, after: int) -> Watch:
        opened.append(open_it(prefix, after))
        return opened[-1]

    async def wait() -> None:
        with suppress(TimeoutError):
            async with lock(world.store(), "jobs", wait_s=90):
                pass

    world.watch = watch  # type: ignore[method-assign]
    async with lock(world.store(), "jobs"), anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(wait)
    # One that waited may have found itself behind another one that gave up a moment earlier.
    assert 5 <= len(opened) <= 10
