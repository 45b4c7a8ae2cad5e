"""A cached prefix: it begins with all keys, and what changes arrives by itself."""

import pytest
import trio

from quorate.errors import KeyValueError, NoLeaderError
from quorate.keyvalue.state import changes
from quorate.recipes.cache import cached
from tests.support.lone_store import LoneStore, on_lone_store


@on_lone_store
async def test_it_begins_with_all_keys_of_the_prefix_and_no_other(store: LoneStore) -> None:
    await store.kv.mset({"config/a": b"1", "config/b": b"2", "confi": b"x", "config0": b"x"})
    async with cached(store.kv, "config/") as cache:
        assert dict(cache.items()) == {b"a": b"1", b"b": b"2"}
        assert cache["a"] == cache[b"a"] == b"1"
        assert cache.get("nosuch") is None
        assert "a" in cache
        assert "nosuch" not in cache
        assert [*cache] == [b"a", b"b"]
        with pytest.raises(KeyError):
            cache["nosuch"]


@on_lone_store
async def test_special_characters_of_patterns_in_a_prefix_mean_themselves(store: LoneStore) -> None:
    await store.kv.mset({"a*[^]?\\/k": b"1", "abc": b"2"})
    async with cached(store.kv, "a*[^]?\\/") as cache:
        assert dict(cache.items()) == {b"k": b"1"}


@on_lone_store
async def test_changes_arrive_those_of_one_entry_together(store: LoneStore) -> None:
    async with cached(store.kv, "c/") as cache:
        before = cache.position
        await store.kv.mset({"c/a": b"1", "c/b": b"2"})
        assert await cache.changed(before) > before
        assert dict(cache.items()) == {b"a": b"1", b"b": b"2"}
        before = cache.position
        await store.kv.delete("c/a")
        await cache.changed(before)
        assert dict(cache.items()) == {b"b": b"2"}


@on_lone_store
async def test_an_expired_key_disappears(store: LoneStore) -> None:
    await store.kv.set("c/a", "1", px=2000)
    async with cached(store.kv, "c/") as cache:
        assert cache["a"] == b"1"
        with trio.fail_after(4):
            await cache.changed()
        assert len(cache) == 0


@on_lone_store
async def test_flushall_empties_it(store: LoneStore) -> None:
    await store.kv.mset({"c/a": b"1", "c/b": b"2", "d": b"3"})
    async with cached(store.kv, "c/") as cache:
        before = cache.position
        await store.kv.execute("FLUSHALL")
        await cache.changed(before)
        assert len(cache) == 0


@on_lone_store
async def test_what_was_read_already_is_not_set_back_by_the_watch(store: LoneStore) -> None:
    """The watch begins before the keys are read, and returns older changes of them."""
    seen: list[bytes | None] = []
    async with trio.open_nursery() as nursery:

        async def write() -> None:
            for number in range(200):
                await store.kv.set("c/a", str(number))

        nursery.start_soon(write)
        await trio.sleep(0.1)
        async with cached(store.kv, "c/") as cache:
            while cache.get("a") != b"199":
                seen.append(cache.get("a"))
                await cache.changed()
    numbers = [int(value) for value in seen if value is not None]
    assert numbers == sorted(numbers)


@on_lone_store
async def test_a_prefix_of_many_keys_is_read_in_pieces(store: LoneStore) -> None:
    await store.kv.mset({f"c/{number:04}": b"%d" % number for number in range(250)})
    async with cached(store.kv, "c/") as cache:
        assert len(cache) == 250
        assert cache["0249"] == b"249"


@on_lone_store
async def test_when_changes_are_no_longer_kept_all_keys_are_read_again(
    store: LoneStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "KEPT_CHANGES", 2)
    await store.kv.mset({"c/gone": b"1", "c/stays": b"1"})
    async with cached(store.kv, "c/") as cache:
        await trio.sleep(1)  # the watch waits
        store.fed.apply("DEL c/gone")
        for number in range(5):  # in one turn: the watch has no chance to follow
            store.fed.apply(f"SET c/new {number}")
        await cache.changed()
        assert dict(cache.items()) == {b"stays": b"1", b"new": b"4"}


@on_lone_store
async def test_an_outage_leaves_the_copy_as_it_was(
    store: LoneStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "KEPT_CHANGES", 2)
    await store.kv.set("c/a", "1")
    async with cached(store.kv, "c/") as cache:
        await trio.sleep(1)
        store.down = True
        for number in range(5):
            store.fed.apply(f"SET c/b {number}")
        await trio.sleep(60)
        assert dict(cache.items()) == {b"a": b"1"}
        store.down = False
        await trio.sleep(2)
        assert dict(cache.items()) == {b"a": b"1", b"b": b"4"}


@on_lone_store
async def test_errors_come_out_as_themselves(store: LoneStore) -> None:
    store.down = True
    with pytest.raises(NoLeaderError):
        async with cached(store.kv, "c/"):
            pass
    store.down = False
    with pytest.raises(KeyError):
        async with cached(store.kv, "c/") as cache:
            cache["nosuch"]


@on_lone_store
async def test_an_error_that_a_repeat_does_not_help_ends_the_block(
    store: LoneStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "KEPT_CHANGES", 2)
    refused = pytest.raises(KeyValueError, match="NOPERM")
    with trio.fail_after(9), refused:
        async with cached(store.kv, "c/"):
            await trio.sleep(1)
            monkeypatch.setattr(store.fed.service, "query", lambda *_: b"-NOPERM no\r\n")
            for number in range(5):
                store.fed.apply(f"SET c/b {number}")
            await trio.sleep_forever()
