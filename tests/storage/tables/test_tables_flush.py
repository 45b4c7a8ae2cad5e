"""When tables are flushed: after a while, and before they take much memory or much to replay."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
from trio.abc import Clock

from quorate.keyvalue.state.service import PACES
from quorate.storage.tables import flush
from quorate.storage.tables import tables as tables_module
from quorate.storage.tables.memtable import ENTRY_BYTES
from quorate.storage.tables.tables import FLUSH_LOG_BYTES, LOG_PATIENCE, PATIENCE
from tests.support.storage_world import running
from tests.support.tables_world import open_tables, record


async def test_changes_are_flushed_after_the_interval(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    async with running(open_tables(tmp_path)) as tables:
        tables.put(b"a", record(b"1"))
        tables.advance(320, 5000)
        await trio.sleep(29)
        assert tables.position == 0
        await trio.sleep(2)
        assert tables.position == 320


async def test_memory_is_bounded_by_flushing(tmp_path: Path) -> None:
    limit = 100_000
    async with running(open_tables(tmp_path, flush_bytes=limit)) as tables:
        most = 0
        for batch in range(1, 120):
            for i in range(20):
                tables.put(b"%d:%d" % (batch, i), record(bytes(1000)))
            tables.advance(batch * 32, batch)
            most = max(most, tables.memtable_bytes)
            for _ in range(4):
                await trio.lowlevel.checkpoint()
        assert most < 2 * limit
        assert tables.position > 80 * 32
        assert len(tables) == 119 * 20


@pytest.mark.parametrize("records", [0, 1])
async def test_so_it_is_after_a_snapshot(tmp_path: Path, records: int) -> None:
    """Which cuts, too, whether there was something to flush or not."""
    limit = 100_000
    async with running(open_tables(tmp_path, flush_bytes=limit)) as tables:
        for i in range(records):
            tables.put(b"%d" % i, record(b"1"))
        tables.advance(32, 1)
        await trio.sleep(0.001)
        list(await tables.save())
        most = 0
        for batch in range(2, 120):
            tables.put(b"%d" % batch, record(bytes(20_000)))
            tables.advance(batch * 32, batch)
            most = max(most, tables.memtable_bytes)
            for _ in range(4):
                await trio.lowlevel.checkpoint()
        assert most < 2 * limit


async def test_what_a_restart_has_to_replay_is_bounded_by_flushing(tmp_path: Path) -> None:
    async with running(open_tables(tmp_path)) as tables:
        for batch in range(1, 20):
            tables.put(b"a", record(b"%d" % batch))
            tables.advance(batch * (FLUSH_LOG_BYTES // 8), batch)
            for _ in range(4):
                await trio.lowlevel.checkpoint()
            assert tables.position >= (batch - 10) * (FLUSH_LOG_BYTES // 8)
        assert tables.memtable_bytes < 1000


async def test_patient_tables_let_more_gather_in_memory_and_still_not_without_bound(
    tmp_path: Path,
) -> None:
    limit = 10_000
    async with running(open_tables(tmp_path, flush_bytes=limit)) as tables:
        tables.patient = True
        most = batch = 0
        while not tables.position:
            batch += 1
            tables.put(b"%d" % batch, record(bytes(1000)))
            tables.advance(batch * 32, batch)
            most = max(most, tables.memtable_bytes)
            for _ in range(4):
                await trio.lowlevel.checkpoint()
        assert PATIENCE * limit < most < (PATIENCE + 1) * limit
        for more in range(5):
            tables.put(b"more %d" % more, record(bytes(5000)))
        tables.advance(batch * 32 + 32, batch)
        await trio.sleep(0.001)
        assert tables.position == batch * 32
        tables.patient = False
        tables.advance(batch * 32 + 64, batch)
        await trio.sleep(0.001)
        assert tables.position == batch * 32 + 64


async def test_patient_tables_bound_what_a_restart_has_to_replay(tmp_path: Path) -> None:
    async with running(open_tables(tmp_path)) as tables:
        tables.patient = True
        flushed: list[int] = []
        for batch in range(1, 10 * LOG_PATIENCE):
            tables.put(b"a", record(b"%d" % batch))
            tables.advance(batch * (FLUSH_LOG_BYTES // 4), batch)
            for _ in range(4):
                await trio.lowlevel.checkpoint()
            if tables.position and tables.position not in flushed:
                flushed.append(tables.position)
        steps = [at // (FLUSH_LOG_BYTES // 4) for at in flushed]
        assert steps == [4 * LOG_PATIENCE + 1, 8 * LOG_PATIENCE + 2]


async def test_tables_with_another_share_flush_at_other_times_and_as_often(
    tmp_path: Path, autojump_clock: Clock
) -> None:
    flushed = {1.0: list[int](), 0.5: list[int]()}

    async def feed(share: float) -> None:
        limit = 8 * (10_000 + len(b"30") + ENTRY_BYTES) + 1
        opened = open_tables(tmp_path / str(share), flush_bytes=limit, share=share)
        async with running(opened) as tables:
            for batch in range(1, 60):
                if batch == 30:  # the interval is over: what was full does not count any more
                    await trio.sleep(31)
                tables.put(b"%02d" % batch, record(bytes(10_000)))
                tables.advance(32 * batch, batch)
                await trio.sleep(0.01)
                if tables.position // 32 not in [0, *flushed[share][-1:]]:
                    flushed[share].append(tables.position // 32)

    for share in flushed:
        (tmp_path / str(share)).mkdir()
        await feed(share)
    assert flushed == {1.0: [9, 18, 27, 29, 38, 47, 56], 0.5: [5, 14, 23, 29, 34, 43, 52]}


async def test_a_flush_pauses_after_so_many_bytes_of_large_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(flush, "time", SimpleNamespace(sleep=pauses.append))
    async with running(open_tables(tmp_path)) as tables:
        for n in range(100):
            tables.put(b"%d" % n, record(bytes(10_000)))
        tables.advance(32, 1)
        await tables.flush()
    assert len(pauses) == 100 // 27 + 1  # more than 256 KiB each time, and a step of rows


@pytest.mark.parametrize("order", [1, -1, 7919])
async def test_a_flush_pauses_after_each_step_whatever_order_the_keys_came_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    pauses: list[bool] = []
    async with running(open_tables(tmp_path)) as tables:
        disk = tables._disk  # pyright: ignore[reportPrivateUsage]

        def pause(_seconds: float) -> None:
            pauses.append(disk.writing)

        monkeypatch.setattr(flush, "time", SimpleNamespace(sleep=pause))
        for n in range(10_000):
            tables.put(b"%05d" % (n * order % 10_000), record(b"1", expires_at_ms=9000))
            if n % 100 == 99:
                tables.advance(32 * n, n)
        await tables.flush()
        assert len(tables) == 10_000
    steps = -(-10_000 // 256)
    assert pauses == [True] * 2 * steps  # of records, and of deadlines
    assert not disk.writing


async def test_the_event_loop_gives_way_to_a_flush_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: Clock
) -> None:
    async with running(open_tables(tmp_path)) as tables:
        pauses: list[float] = []
        monkeypatch.setattr(tables_module, "time", SimpleNamespace(sleep=pauses.append))
        tables.advance(32, 1)
        assert pauses == []
        tables._disk.writing = True  # pyright: ignore[reportPrivateUsage]
        for n in range(10):
            tables.advance(64 + n, 2)
        assert len(pauses) == 1
        await trio.sleep(0.003)
        tables.advance(128, 2)
        assert len(pauses) == 2
        tables._disk.writing = False  # pyright: ignore[reportPrivateUsage]


async def test_no_flush_comes_shortly_before_a_snapshot(tmp_path: Path) -> None:
    step = (256 << 20) // 64
    for share in (1 - n / (2 * PACES) for n in range(PACES)):
        (tmp_path / str(share)).mkdir()
        async with running(open_tables(tmp_path / str(share), share=share)) as tables:
            position, flushed = 0, set[int]()
            for batch in range(1, 4 * 72 + 1):
                tables.put(b"a", record(b"%d" % batch))
                tables.advance(position := position + step, batch)
                if batch % 72 == 0:  # late, for the rule is looked at now and then
                    list(await tables.save())
                await trio.sleep(0.001)
                flushed.add(tables.position // step)
        assert flushed == {0, 72, 144, 216, 288}
