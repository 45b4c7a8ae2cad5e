"""The materialised tables: layers that read as one, cuts at batch boundaries, reopening."""

import hashlib
from pathlib import Path

import pytest
import trio
from trio.abc import Clock

from quorate.errors import StoreBusyError, StoreMismatchError
from quorate.storage.tables.disk import TablesDisk
from quorate.storage.tables.memtable import HASHED_BYTES, MAX_PLAIN_BYTES, stored_key
from quorate.storage.tables.tables import Tables
from tests.support.storage_world import running
from tests.support.tables_world import Disk, contents, open_tables, record

ODD_KEYS = [
    b"",
    b"\0",
    b"\xff",
    b"a" * MAX_PLAIN_BYTES,
    b"a" * HASHED_BYTES,
    b"a" * 511,
    b"a" * 512,
    b"a" * 5000,
    b"a" * 4999 + b"b",
    b"\0" * 448 + hashlib.sha256(b"").digest()[:31],
]


async def test_new_tables_are_empty_and_at_position_zero(tmp_path: Path) -> None:
    async with running(open_tables(tmp_path / "tables")) as tables:
        assert (tables.position, tables.timestamp_ms, len(tables)) == (0, 0, 0)
        assert tables.get(b"a") is None
        assert tables.page(b"", 10) == ([], None)


async def test_reopened_tables_are_those_of_exactly_the_flushed_position(tmp_path: Path) -> None:
    disk = Disk()
    tables = open_tables(tmp_path, disk)
    async with running(tables):
        tables.put(b"a", record(b"1"))
        tables.put(b"b", record(b"1"))
        tables.advance(320, 5000)
        await tables.flush()
        tables.put(b"a", record(b"2"))
        tables.delete(b"b")
        tables.put(b"c", record(b"2"))
        tables.advance(640, 6000)
        assert contents(tables) == {b"a": b"2", b"c": b"2"}
        assert (tables.position, tables.timestamp_ms) == (320, 5000)
        disk.cut_power()
    async with running(open_tables(tmp_path)) as again:
        assert (again.position, again.timestamp_ms, len(again)) == (320, 5000, 2)
        assert contents(again) == {b"a": b"1", b"b": b"1"}
        assert again.get(b"a") == record(b"1")


async def test_an_orderly_end_flushes(tmp_path: Path) -> None:
    async with running(open_tables(tmp_path)) as tables:
        tables.put(b"a", record(b"1"))
        tables.advance(320, 5000)
    async with running(open_tables(tmp_path)) as again:
        assert again.position == 320
        assert contents(again) == {b"a": b"1"}


@pytest.mark.parametrize("steps", range(6))
async def test_a_start_that_is_cancelled_at_any_step_ends(tmp_path: Path, steps: int) -> None:
    """Otherwise a member that is stopped while it starts would hang for ever."""
    disk, ended = Disk(), trio.Event()
    tables = open_tables(tmp_path, disk)

    async def live(scope: trio.CancelScope) -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(tables.run)
                await trio.sleep_forever()
        ended.set()

    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        nursery.start_soon(live, scope)
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert ended.is_set()
    tables.close()


async def test_an_orderly_end_amidst_a_batch_keeps_none_of_it(tmp_path: Path) -> None:
    async with running(open_tables(tmp_path)) as tables:
        tables.put(b"a", record(b"1"))
        tables.advance(320, 5000)
        await tables.flush()
        tables.put(b"b", record(b"1"))
    async with running(open_tables(tmp_path)) as again:
        assert contents(again) == {b"a": b"1"}


async def test_reads_and_writes_go_on_during_a_flush(tmp_path: Path, autojump_clock: Clock) -> None:
    async with running(open_tables(tmp_path, Disk(latency=1.0))) as tables:
        tables.put(b"a", record(b"1"))
        tables.put(b"b", record(b"1"))
        tables.advance(320, 5000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tables.flush)
            await trio.sleep(0.5)
            assert contents(tables) == {b"a": b"1", b"b": b"1"}
            tables.put(b"a", record(b"2"))
            tables.delete(b"b")
            tables.put(b"c", record(b"2"))
            tables.advance(640, 6000)
            assert contents(tables) == {b"a": b"2", b"c": b"2"}
            assert (len(tables), tables.position) == (2, 0)
        assert contents(tables) == {b"a": b"2", b"c": b"2"}
        assert (len(tables), tables.position) == (2, 320)
        await tables.flush()
        assert contents(tables) == {b"a": b"2", b"c": b"2"}
        assert (len(tables), tables.position) == (2, 640)


async def test_keys_are_counted_once_however_many_layers_hold_them(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with running(open_tables(tmp_path, Disk(latency=1.0))) as tables:
        for position in (320, 640, 960):
            for key in (b"a", b"b", b"c"):
                tables.put(key, record(b"1"))
            tables.delete(b"b")
            tables.put(b"%d" % position, record(b"1"))
            tables.advance(position, 5000)
            assert len(tables) == 2 + position // 320
            async with trio.open_nursery() as nursery:
                nursery.start_soon(tables.flush)
                await trio.sleep(0.5)
                assert len(tables) == 2 + position // 320
                tables.put(b"a", record(b"2"))
                tables.delete(b"c")
                assert len(tables) == 1 + position // 320
                tables.put(b"c", record(b"2"))
                tables.advance(position + 160, 5000)
            assert len(tables) == 2 + position // 320


async def test_who_counts_now_and_then_never_waits_for_a_whole_memtable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    has = TablesDisk.has

    def counting(disk: TablesDisk, key: bytes) -> bool:
        nonlocal looks
        looks += 1
        return has(disk, key)

    monkeypatch.setattr(TablesDisk, "has", counting)
    async with running(open_tables(tmp_path)) as tables:
        for cut in range(4):
            for batch in range(10):
                for i in range(10):
                    tables.put(b"%d %d %d" % (cut, batch, i), record(b""))
                tables.advance(32 * (10 * cut + batch + 1), 0)
            looks = 0
            assert len(tables) == 100 * (cut + 1)
            assert looks == (100 if cut == 0 else 0)
            await tables.flush()
        for _ in range(2):  # nobody asks: nobody looks
            looks = 0
            tables.put(b"a", record(b""))
            tables.advance(10_000, 0)
            await tables.flush()
        assert looks == 0


async def test_a_flush_asked_for_amidst_a_batch_waits_for_its_end(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with running(open_tables(tmp_path)) as tables:
        tables.put(b"a", record(b"1"))
        with trio.move_on_after(60) as waited:
            await tables.flush()
        assert waited.cancelled_caught
        assert tables.position == 0
        tables.put(b"b", record(b"1"))
        tables.advance(320, 5000)  # the cancelled flush is made up for
        await tables.flush()
        assert tables.position == 320


async def test_a_flush_asked_for_during_a_flush_covers_what_came_between(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with running(open_tables(tmp_path, Disk(latency=1.0))) as tables:
        async with trio.open_nursery() as nursery:
            for position in (320, 640, 960):
                tables.put(b"%d" % position, record(b"1"))
                tables.advance(position, 5000)
                nursery.start_soon(tables.flush)
                await trio.sleep(0.1)
        assert tables.position == 960


async def test_overwriting_takes_no_more_memory(tmp_path: Path) -> None:
    async with running(open_tables(tmp_path)) as tables:
        tables.put(b"a", record(bytes(1000)))
        before = tables.memtable_bytes
        for _ in range(100):
            tables.put(b"a", record(bytes(1000)))
        assert tables.memtable_bytes == before
        tables.put(b"a", record(bytes(500)))
        assert tables.memtable_bytes == before - 500


async def test_a_map_that_is_too_small_grows(tmp_path: Path) -> None:
    async with running(open_tables(tmp_path, map_bytes=1 << 18)) as tables:
        for i in range(600):
            tables.put(b"%d" % i, record(bytes(4000)))
        tables.advance(320, 5000)
        await tables.flush()
        assert (tables.position, len(tables)) == (320, 600)
        assert tables.get(b"599") == record(bytes(4000))
    async with running(open_tables(tmp_path, map_bytes=1 << 18)) as again:
        assert (again.position, len(contents(again))) == (320, 600)


@pytest.mark.parametrize("flushed", [True, False])
async def test_any_key_can_be_kept(tmp_path: Path, *, flushed: bool) -> None:
    async with running(open_tables(tmp_path)) as tables:
        for key in ODD_KEYS:
            tables.put(key, record(key[-10:]))
        tables.advance(320, 5000)
        if flushed:
            await tables.flush()
        assert contents(tables) == {key: key[-10:] for key in ODD_KEYS}
        assert tables.scan(None, 100) == [
            (key, record(key[-10:])) for key in sorted(ODD_KEYS, key=stored_key)
        ]
        for key in ODD_KEYS[::2]:
            tables.delete(key)
        assert contents(tables) == {key: key[-10:] for key in ODD_KEYS[1::2]}
        assert len(tables) == len(ODD_KEYS[1::2])


def test_stored_keys_are_distinct_and_fit() -> None:
    stored = {stored_key(key) for key in ODD_KEYS}
    assert len(stored) == len(ODD_KEYS)
    assert all(0 < len(key) <= 511 for key in stored)


@pytest.mark.parametrize("first", [True, False])
async def test_clearing_hides_all_layers(
    tmp_path: Path, autojump_clock: Clock, *, first: bool
) -> None:
    async with running(open_tables(tmp_path, Disk(latency=1.0))) as tables:
        tables.put(b"disk", record(b"1", 99))
        tables.advance(320, 5000)
        await tables.flush()
        tables.put(b"frozen", record(b"1", 99))
        tables.advance(640, 5000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tables.flush)
            await trio.sleep(0.5 if first else 2)
            tables.put(b"memory", record(b"1", 99))
            tables.clear()
            assert (len(tables), contents(tables), tables.last_place()) == (0, {}, b"")
            assert tables.deadlines.first() is None
            tables.put(b"frozen", record(b"2"))
            tables.advance(960, 5000)
            assert (len(tables), contents(tables)) == (1, {b"frozen": b"2"})
        await tables.flush()
        assert (len(tables), contents(tables)) == (1, {b"frozen": b"2"})
    async with running(open_tables(tmp_path)) as again:
        assert (again.position, contents(again)) == (960, {b"frozen": b"2"})
        assert again.deadlines.by_key == {}


async def test_reset_tables_begin_at_position_zero(tmp_path: Path) -> None:
    async with running(open_tables(tmp_path)) as tables:
        tables.put(b"a", record(b"1"))
        tables.advance(320, 5000)
        await tables.flush()
        tables.reset()
        await tables.flush()
        assert (tables.position, len(tables)) == (0, 0)


async def test_deadlines_survive(tmp_path: Path) -> None:
    long_key = b"k" * 1000
    async with running(open_tables(tmp_path)) as tables:
        for key, deadline in ((b"a", 900), (b"b", 300), (b"c", 600), (long_key, 500)):
            tables.put(key, record(b"1", deadline))
        tables.put(b"never", record(b"1"))
        tables.advance(320, 100)
        await tables.flush()
        tables.put(b"a", record(b"2"))
        tables.put(b"b", record(b"2", 800))
        tables.delete(b"c")
        tables.advance(640, 100)
        assert tables.deadlines.first() == 500
    async with running(open_tables(tmp_path)) as again:
        assert again.deadlines.by_key == {b"b": 800, long_key: 500}
        assert again.deadlines.due(499, 10) == []
        assert again.deadlines.count_due(800) == 2
        assert again.deadlines.due(900, 10) == [long_key, b"b"]


async def test_scanning_merges_the_layers_in_order(tmp_path: Path) -> None:
    async with running(open_tables(tmp_path)) as tables:
        for i in range(0, 3000, 2):
            tables.put(b"%04d" % i, record(b"disk"))
        tables.advance(320, 5000)
        await tables.flush()
        for i in range(0, 3000, 3):
            tables.put(b"%04d" % i, record(b"memory"))
        for i in range(0, 3000, 5):
            tables.delete(b"%04d" % i)
        tables.advance(640, 5000)
        expected = [b"%04d" % i for i in range(3000) if i % 5 and (i % 2 == 0 or i % 3 == 0)]
        assert [key for key, _ in tables.scan(None, 10_000)] == expected
        assert list(contents(tables)) == expected
        assert [key for key, _ in tables.scan(b"1000", 2)] == [b"1002", b"1004"]
        assert len(tables) == len(expected)


@pytest.mark.parametrize("flushed", [False, True])
async def test_long_keys_make_a_page_short(tmp_path: Path, *, flushed: bool) -> None:
    keys = [b"%d" % i * 300_000 for i in range(1, 9)]
    async with running(open_tables(tmp_path, map_bytes=64 << 20)) as tables:
        for key in keys:
            tables.put(key, record(b""))
        tables.advance(32, 0)
        if flushed:
            await tables.flush()
        place: bytes | None = b""
        pages: list[list[bytes]] = []
        while place is not None:
            page, place = tables.page(place, 1000)
            pages.append(page)
        assert [len(page) for page in pages] == [4, 4]
        assert [key for page in pages for key in page] == keys


async def test_clearing_frees_memory_later_and_step_by_step(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with running(open_tables(tmp_path)) as tables:
        for i in range(2000):
            tables.put(b"%d" % i, record(b"", i + 1))
        tables.advance(32, 0)
        layer, deadlines = tables._layer, tables.deadlines  # pyright: ignore[reportPrivateUsage]
        tables.clear()
        assert (len(layer.records), len(deadlines.by_key)) == (2000, 2000)
        assert (tables.deadlines.first(), tables.deadlines.by_key, len(tables)) == (None, {}, 0)
        tables.put(b"1", record(b"", 5))
        assert tables.deadlines.first() == 5
        tables.advance(64, 0)
        await tables.flush()
        await trio.sleep(60)
        assert (layer.records, deadlines.by_key) == ({}, {})


async def test_tables_of_another_member_are_refused(tmp_path: Path) -> None:
    async with running(open_tables(tmp_path)):
        with pytest.raises(StoreBusyError):
            open_tables(tmp_path)
    for cluster, member_id in (("other", 1), ("test", 2)):
        with pytest.raises(StoreMismatchError, match="expected cluster"):
            Tables.open(tmp_path, cluster=cluster, member_id=member_id)
