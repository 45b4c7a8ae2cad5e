"""A cached prefix: it begins with all keys, and what changes arrives by itself."""

import anyio
import pytest

from quorate.errors import KeyValueError, NoLeaderError
from quorate.keyvalue.state import changes
from quorate.keyvalue.state.changes import Change
from quorate.recipes.cache import Cache, cached
from tests.support.played import played
from tests.support.recipes_world import PolledWatch, World


@played()
async def test_it_begins_with_all_keys_of_the_prefix_and_no_other(world: World) -> None:
    kv = world.store()
    await kv.mset({"config/a": b"1", "config/b": b"2", "confi": b"x", "config0": b"x"})
    async with cached(kv, "config/") as cache:
        assert dict(cache.items()) == {b"a": b"1", b"b": b"2"}
        assert cache["a"] == cache[b"a"] == b"1"
        assert cache.get("nosuch") is None
        assert "a" in cache
        assert "nosuch" not in cache
        assert [*cache] == [b"a", b"b"]


@played()
async def test_special_characters_of_patterns_in_a_prefix_mean_themselves(world: World) -> None:
    kv = world.store()
    await kv.mset({"a*[^]?\\/k": b"1", "abc": b"2"})
    async with cached(kv, "a*[^]?\\/") as cache:
        assert dict(cache.items()) == {b"k": b"1"}


@played()
async def test_changes_arrive_those_of_one_entry_together(world: World) -> None:
    kv = world.store()
    async with cached(kv, "c/") as cache:
        before = cache.position
        await kv.mset({"c/a": b"1", "c/b": b"2"})
        assert await cache.changed(before) > before
        assert dict(cache.items()) == {b"a": b"1", b"b": b"2"}
        before = cache.position
        await kv.delete("c/a")
        await cache.changed(before)
        assert dict(cache.items()) == {b"b": b"2"}


@played()
async def test_an_expired_key_disappears(world: World) -> None:
    kv = world.store()
    await kv.set("c/a", "1", px=2000)
    async with cached(kv, "c/") as cache:
        assert cache["a"] == b"1"
        with anyio.fail_after(4):
            await cache.changed()
        assert len(cache) == 0


@played()
async def test_flushall_empties_it(world: World) -> None:
    kv = world.store()
    await kv.mset({"c/a": b"1", "c/b": b"2", "d": b"3"})
    async with cached(kv, "c/") as cache:
        before = cache.position
        await kv.execute("FLUSHALL")
        await cache.changed(before)
        assert len(cache) == 0


@played()
async def test_what_was_read_already_is_not_set_back_by_the_watch(world: World) -> None:
    """The watch begins before the keys are read, and returns older changes of them."""
    kv = world.store()
    seen: list[bytes | None] = []

    async def write() -> None:
        for number in range(100):
            await kv.set("c/a", str(number))

    async with anyio.create_task_group() as group:
        group.start_soon(write)
        await anyio.sleep(0.5)
        async with cached(kv, "c/") as cache:
            while cache.get("a") != b"99":
                seen.append(cache.get("a"))
                await cache.changed()
    numbers = [int(value) for value in seen if value is not None]
    assert numbers == sorted(set(numbers))
    assert len(numbers) > 50


@played()
async def test_a_key_that_came_and_went_while_the_keys_were_read_does_not_appear(
    world: World,
) -> None:
    link, kv = world.link(), world.store()
    shown: list[bytes | None] = []

    def fate(payload: bytes) -> None:
        if b"SCAN" in payload:
            world.fed.apply("SET c/k old")
            world.fed.apply("DEL c/k")

    async def watch(cache: Cache) -> None:
        while True:
            shown.append(cache.get("k"))
            await cache.changed()

    link.fate = fate
    async with cached(link.kv, "c/") as cache, anyio.create_task_group() as group:
        group.start_soon(watch, cache)
        await anyio.sleep(1)
        assert shown == [None]
        await kv.set("c/k", "new")
        await anyio.sleep(1)
        assert shown == [None, b"new"]
        group.cancel_scope.cancel()


@played()
async def test_what_was_written_while_the_keys_were_read_is_in_it_when_the_block_begins(
    world: World,
) -> None:
    link = world.link()

    def fate(payload: bytes) -> None:
        if b"RECORDS" in payload:
            world.fed.apply("SET c/new 1")
            world.fed.apply("DEL c/old")
            world.fed.apply("SET other 1")

    await link.kv.mset({"c/old": b"1", "c/stays": b"1"})
    link.fate = fate
    async with cached(link.kv, "c/") as cache:
        assert dict(cache.items()) == {b"stays": b"1", b"new": b"1"}


class SlowWatch(PolledWatch):
    """A watch that takes a second to find a member."""

    async def _fetch(self) -> list[Change]:
        await anyio.sleep(1)
        return await super()._fetch()


@played()
async def test_it_begins_although_its_watch_is_slow(world: World) -> None:
    link = world.link()
    world.watch_class = SlowWatch

    def fate(_payload: bytes) -> None:
        world.fed.apply("SET c/a 1")

    link.fate = fate
    with anyio.fail_after(5):
        async with cached(link.kv, "c/") as cache:
            assert dict(cache.items()) == {b"a": b"1"}


@played()
async def test_a_prefix_of_many_keys_is_read_in_pieces(world: World) -> None:
    kv = world.store()
    await kv.mset({f"c/{number:04}": b"%d" % number for number in range(250)})
    async with cached(kv, "c/") as cache:
        assert len(cache) == 250
        assert cache["0249"] == b"249"


@played("trio")
async def test_when_changes_are_no_longer_kept_all_keys_are_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "KEPT_CHANGES", 2)
    kv = world.store()
    await kv.mset({"c/gone": b"1", "c/stays": b"1"})
    async with cached(kv, "c/") as cache:
        await anyio.sleep(1)  # the watch waits
        world.fed.apply("DEL c/gone")
        for number in range(5):  # in one turn: the watch has no chance to follow
            world.fed.apply(f"SET c/new {number}")
        await cache.changed()
        assert dict(cache.items()) == {b"stays": b"1", b"new": b"4"}


@played("trio")
async def test_an_outage_leaves_the_copy_as_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "KEPT_CHANGES", 2)
    link = world.link()
    await link.kv.set("c/a", "1")
    async with cached(link.kv, "c/") as cache:
        await anyio.sleep(1)
        link.fate = lambda _: "refused"
        for number in range(5):
            world.fed.apply(f"SET c/b {number}")
        await anyio.sleep(60)
        assert dict(cache.items()) == {b"a": b"1"}
        link.fate = lambda _: None
        await anyio.sleep(2)
        assert dict(cache.items()) == {b"a": b"1", b"b": b"4"}


@played()
async def test_errors_come_out_as_themselves(world: World) -> None:
    link = world.link()
    link.fate = lambda _: "refused"
    with pytest.raises(NoLeaderError):
        async with cached(link.kv, "c/"):
            pass
    link.fate = lambda _: None
    with pytest.raises(KeyError):
        async with cached(link.kv, "c/") as cache:
            cache["nosuch"]


def refuse(_payload: bytes, _flags: int) -> bytes:
    return b"-NOPERM no\r\n"


@played("trio")
async def test_an_error_that_a_repeat_does_not_help_ends_the_block(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "KEPT_CHANGES", 2)
    refused = pytest.raises(KeyValueError, match="NOPERM")
    with anyio.fail_after(9), refused:
        async with cached(world.store(), "c/"):
            await anyio.sleep(1)
            monkeypatch.setattr(world.fed.service, "query", refuse)
            for number in range(5):
                world.fed.apply(f"SET c/b {number}")
            await anyio.sleep_forever()
