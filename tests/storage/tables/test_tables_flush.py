"""When tables are flushed: after a while, and before they take much memory or much to replay."""

from pathlib import Path

import pytest
import trio
from trio.abc import Clock

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


async def test_no_flush_comes_shortly_before_a_snapshot(tmp_path: Path) -> None:
    step = (256 << 20) // 64
    async with running(open_tables(tmp_path)) as tables:
        position, flushed = 0, set[int]()
        for batch in range(1, 4 * 72 + 1):
            tables.put(b"a", record(b"%d" % batch))
            tables.advance(position := position + step, batch)
            if batch % 72 == 0:  # late, for the rule is looked at now and then
                list(await tables.save())
            await trio.sleep(0.001)
            flushed.add(tables.position // step)
    assert flushed == {0, 72, 144, 216, 288}
