"""The store: appending, terms, votes, snapshots, reading."""

from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from quorate.errors import StorageError, WireError
from quorate.storage import ExecutorFactory, NodeState, SnapshotRow, TermRow, ThreadExecutor, Write
from quorate.storage.testing import InlineExecutor
from tests.support.storage_world import (
    batch_at,
    begin_term,
    fill,
    headers,
    open_store,
    recorded_in,
    running,
    virtual,
)

both = pytest.mark.parametrize("executor", [ThreadExecutor, InlineExecutor])


@both
async def test_what_was_appended_durably_is_there_after_reopening(
    tmp_path: Path, executor: ExecutorFactory[Write]
) -> None:
    async with running(open_store(tmp_path, executor)) as store:
        first = batch_at(0, timestamp_ms=3)
        await store.append_durably(first)
        second = batch_at(len(first), count=5, timestamp_ms=8, commit_position=len(first))
        await store.append_durably(second)
        before = store.recorded
        assert before.append_position == len(first) + len(second)
    again = open_store(tmp_path)
    assert again.recorded == before
    assert (again.last_commit_position, again.last_timestamp_ms) == (len(first), 8)
    assert list(again.scan(0)) == [first, second]
    again.close()


async def test_positions_follow_what_is_durable(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
) -> None:
    reports: list[int] = []
    async with running(open_store(tmp_path, partial(InlineExecutor[Write], latency=1))) as store:
        store.on_durable = reports.append
        end = await begin_term(store, 0)
        done: list[int] = []
        for _ in range(3):
            batch = batch_at(store.submitted_position)
            store.append(batch, done=lambda: done.append(store.append_position))
        assert (store.append_position, store.submitted_position) == (end, 4 * end)
        await trio.sleep(0.9)
        assert (store.append_position, reports) == (end, [end])
        await trio.sleep(0.2)
    assert done == [2 * end, 3 * end, 4 * end]
    assert reports == [end, 4 * end]


async def test_several_appends_share_a_transaction(tmp_path: Path) -> None:
    reports: list[int] = []
    async with running(open_store(tmp_path, ThreadExecutor)) as store:
        store.on_durable = reports.append
        await begin_term(store, 0)
        for _ in range(200):
            store.append(batch_at(store.submitted_position))
        await store.append_durably(batch_at(store.submitted_position))
        end = store.append_position
    assert reports[-1] == end
    assert len(reports) < 50


async def test_batches_must_follow_each_other_and_their_term(tmp_path: Path) -> None:
    async with running(open_store(tmp_path)) as store:
        end = await begin_term(store, 1)
        with pytest.raises(AssertionError, match="the log ends elsewhere"):
            store.append(batch_at(end + 32, term=1))
        with pytest.raises(AssertionError, match="not in the term table"):
            store.append(batch_at(end, term=0))
        with pytest.raises(WireError):
            store.append(bytes(100))
        assert store.submitted_position == store.append_position == end
        await store.ensure_coherent(term=1, base=0, end=end, timestamp_ms=0)
        with pytest.raises(AssertionError, match="ends behind"):
            store.append(batch_at(end, term=1))


async def test_a_cancelled_append_is_durable_or_never_began(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with running(open_store(tmp_path, partial(InlineExecutor[Write], latency=1))) as store:
        end = await begin_term(store, 0)
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.append_durably(batch_at(end))
        assert store.submitted_position == end
        with trio.move_on_after(0.5):
            await store.append_durably(batch_at(end))
        assert store.submitted_position == 2 * end
        await trio.sleep(1)
        assert store.append_position == 2 * end


async def test_the_row_of_a_term_is_in_the_transaction_of_its_first_batch(tmp_path: Path) -> None:
    async with running(open_store(tmp_path)) as store:
        end = await begin_term(store, 0)
        store.append(batch_at(end, term=3, timestamp_ms=7))
        await trio.sleep(0.005)
        store.executor.cut_power()  # type: ignore[attr-defined]
    again = open_store(tmp_path)
    assert (again.log_term, again.append_position) == (0, end)
    async with running(again):
        await again.append_durably(batch_at(end, term=3, timestamp_ms=7))
        assert again.terms == (
            TermRow(0, 0, end, 0),
            TermRow(3, end, None, 7),
        )
        after = again.recorded
    last = open_store(tmp_path)
    assert last.recorded == after
    last.close()


async def test_ensure_coherent_closes_the_term_before_and_skips_others(tmp_path: Path) -> None:
    async with running(open_store(tmp_path)) as store:
        await store.ensure_coherent(term=1, base=0, end=None, timestamp_ms=5)
        assert list(store.terms) == [TermRow(1, 0, None, 5)]
        await store.append_durably(batch_at(0, term=1))
        end = store.append_position
        with pytest.raises(AssertionError):
            await store.ensure_coherent(term=2, base=0, end=None, timestamp_ms=6)
        await store.ensure_coherent(term=3, base=end, end=None, timestamp_ms=6)
        assert store.terms == (TermRow(1, 0, end, 5), TermRow(3, end, None, 6))
        await store.ensure_coherent(term=3, base=end, end=end, timestamp_ms=7)
        await store.ensure_coherent(term=2, base=end, end=None, timestamp_ms=7)
        assert store.terms[-1] == TermRow(3, end, end, 6)
        with pytest.raises(AssertionError):
            await store.ensure_coherent(term=3, base=end, end=end + 32, timestamp_ms=7)
        after = store.recorded
    assert recorded_in(tmp_path) == after


@both
async def test_a_vote_is_durable_when_it_is_saved(
    tmp_path: Path, executor: ExecutorFactory[Write]
) -> None:
    async with running(open_store(tmp_path, executor)) as store:
        await store.save_node_state(NodeState(4, -1))
        await store.save_node_state(NodeState(4, 2))
        assert store.node_state == NodeState(4, 2)
        for broken in (NodeState(3, 2), NodeState(4, 1), NodeState(4, -1)):
            with pytest.raises(AssertionError, match="can't become"):
                await store.save_node_state(broken)
    again = open_store(tmp_path)
    assert again.node_state == NodeState(4, 2)
    again.close()


@pytest.mark.parametrize("lease_ms", [0, 1, 600_000])
async def test_so_is_how_long_promises_last(tmp_path: Path, lease_ms: int) -> None:
    async with running(open_store(tmp_path)) as store:
        await store.save_node_state(NodeState(4, 2, 500))
        await store.save_node_state(NodeState(4, 2, lease_ms))
    again = open_store(tmp_path)
    assert again.node_state == NodeState(4, 2, lease_ms)
    again.close()


async def test_snapshots_are_kept_in_order(tmp_path: Path) -> None:
    rows = [SnapshotRow(position, 0, 5, f"snapshot-{position}") for position in (64, 32, 96)]
    async with running(open_store(tmp_path)) as store:
        for row in rows:
            await store.add_snapshot(row)
        assert [row.position for row in store.snapshots] == [32, 64, 96]
        await store.add_snapshot(SnapshotRow(64, 0, 6, "again"))
        assert store.snapshots[1] == SnapshotRow(64, 0, 6, "again")
        after = store.recorded
    assert recorded_in(tmp_path) == after


@both
async def test_reading_gives_whole_batches_within_limits(
    tmp_path: Path, executor: ExecutorFactory[Write]
) -> None:
    async with running(open_store(tmp_path, executor)) as store:
        await begin_term(store, 0)
        batches = await fill(store, 9)
        size = len(batches[0])
        assert await store.read(0) == batches
        assert await store.read(0, limit_bytes=1) == batches[:1]
        assert await store.read(size, limit_bytes=3 * size) == batches[1:4]
        assert await store.read(size, limit_bytes=3 * size - 1) == batches[1:3]
        assert await store.read(2 * size, end=4 * size) == batches[2:4]
        assert await store.read(2 * size, end=2 * size) == []
        assert await store.read(store.append_position) == []
        assert await store.read(store.append_position + 64) == []
        assert list(store.scan(8 * size)) == batches[8:]


async def test_reading_goes_over_term_boundaries(tmp_path: Path) -> None:
    async with running(open_store(tmp_path)) as store:
        for term in (0, 2, 3):
            await begin_term(store, term)
        await store.ensure_coherent(term=4, base=store.append_position, end=None, timestamp_ms=0)
        assert [header.term for header in headers(await store.read(0))] == [0, 2, 3]
        assert [header.term for header in headers(list(store.scan(0)))] == [0, 2, 3]


async def test_only_what_is_durable_is_read(tmp_path: Path) -> None:
    async with running(open_store(tmp_path)) as store:
        end = await begin_term(store, 0)
        store.append(batch_at(end))
        assert len(await store.read(0)) == 1


async def test_a_position_inside_of_a_batch_is_refused(tmp_path: Path) -> None:
    async with running(open_store(tmp_path)) as store:
        await begin_term(store, 0)
        end = await begin_term(store, 1)
        for position in (32, end - 32, end // 2 + 32, 1):
            with pytest.raises(StorageError, match="is inside the batch"):
                await store.read(position)
            with pytest.raises(StorageError, match="is inside the batch"):
                list(store.scan(position))


async def test_reading_while_writing_sees_a_growing_prefix(tmp_path: Path) -> None:
    async with running(open_store(tmp_path, ThreadExecutor, map_bytes=1 << 17)) as store:
        await begin_term(store, 0)

        async def write() -> None:
            for _ in range(40):
                for _ in range(4):
                    store.append(batch_at(store.submitted_position, count=4, size=4000))
                await store.append_durably(batch_at(store.submitted_position))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            position = 0
            while position < 40 * 4 * 16000:
                batches = await store.read(position)
                position += sum(map(len, batches))
        assert position <= store.append_position


@both
async def test_the_map_grows_with_the_log(tmp_path: Path, executor: ExecutorFactory[Write]) -> None:
    async with running(open_store(tmp_path, executor, map_bytes=1 << 16)) as store:
        await begin_term(store, 0)
        for _ in range(5):
            store.append(batch_at(store.submitted_position, size=1 << 20))
        batches = await fill(store, 3)
        assert sum(map(len, batches)) == store.append_position > 5 << 20
    again = open_store(tmp_path, map_bytes=1 << 16)
    assert list(again.scan(0)) == batches
    again.close()


async def test_a_store_works_in_virtual_time(
    tmp_path: Path,
    autojump_clock: trio.testing.MockClock,
) -> None:
    start = trio.current_time()
    async with running(open_store(tmp_path, virtual)) as store:
        for term in range(10):
            await begin_term(store, term)
        assert trio.current_time() == pytest.approx(start + 10 * 0.01)
        assert len(await store.read(0)) == 10
