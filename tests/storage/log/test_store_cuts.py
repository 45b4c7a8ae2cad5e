"""Cutting the log at both ends: truncation of what conflicts, pruning of what is old."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import trio

from quorate.errors import PrunedError, StorageError
from quorate.storage import TermRow, ThreadExecutor, Write
from quorate.storage.log.store import PRUNE_STEP
from quorate.storage.testing import InlineExecutor
from tests.support.storage_world import (
    MAP_BYTES,
    batch_at,
    begin_term,
    fill,
    headers,
    open_store,
    recorded_in,
    running,
)

T = TypeVar("T")


async def test_batches_that_are_appended_while_all_before_are_dropped_stay(tmp_path: Path) -> None:
    async with running(open_store(tmp_path)) as store:
        await begin_term(store, 0)
        end = store.append_position
        read = store.executor.read

        async def read_and_append(fn: Callable[[], T]) -> T:
            found = await read(fn)
            if store.submitted_position == end:
                store.append(batch_at(end, term=0))
            return found

        setattr(store.executor, "read", read_and_append)  # noqa: B010 - of this one store
        await store.drop_prefix(end)
        await store.settled()
        assert store.start_position == end
        assert [header.position for header in headers(list(store.scan(end)))] == [end]
    assert recorded_in(tmp_path).append_position > end


async def test_truncation_drops_batches_and_terms_behind(tmp_path: Path) -> None:
    async with running(open_store(tmp_path)) as store:
        ends = [await begin_term(store, term, timestamp_ms=term) for term in range(5)]
        await store.ensure_coherent(term=6, base=ends[-1], end=None, timestamp_ms=9)
        await store.truncate(ends[2])
        assert store.append_position == store.submitted_position == ends[2]
        assert store.terms[2:] == (TermRow(2, ends[1], ends[2], 2), TermRow(3, ends[2], None, 3))
        assert store.last_timestamp_ms == 2
        assert len(list(store.scan(0))) == 3
        await store.truncate(ends[0])
        assert store.terms == (TermRow(0, 0, ends[0], 0), TermRow(1, ends[0], None, 1))
        after = store.recorded
    again = open_store(tmp_path)
    assert again.recorded == after
    async with running(again):
        await again.append_durably(batch_at(ends[0], term=4, timestamp_ms=9))
        assert again.terms[1] == TermRow(1, ends[0], ends[0], 1)
        assert [header.term for header in headers(await again.read(0))] == [0, 4]


async def test_truncation_to_nothing_leaves_an_empty_log(tmp_path: Path) -> None:
    async with running(open_store(tmp_path)) as store:
        await begin_term(store, 0, timestamp_ms=5)
        await store.truncate(0)
        assert (store.append_position, store.last_timestamp_ms) == (0, 0)
        assert store.terms == (TermRow(0, 0, None, 5),)
        assert await store.read(0) == []
        after = store.recorded
    assert recorded_in(tmp_path) == after


async def test_truncation_comes_after_the_appends_before_it(tmp_path: Path) -> None:
    async with running(open_store(tmp_path)) as store:
        end = await begin_term(store, 0)
        for _ in range(5):
            store.append(batch_at(store.submitted_position))
        await store.truncate(end)
        assert store.append_position == end
        await store.append_durably(batch_at(end))
        assert len(await store.read(0)) == 2


async def test_reading_while_the_end_comes_and_goes_meets_no_damage(tmp_path: Path) -> None:
    async with running(open_store(tmp_path, ThreadExecutor)) as store:
        end = await begin_term(store, 0)

        async def write() -> None:
            for _ in range(30):
                await fill(store, 3)
                await store.truncate(end)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            while True:
                for position in range(0, 5 * end, end):
                    batches = await store.read(position)
                    assert headers(batches[:1]) == [] or headers(batches)[0].position == position


async def test_truncation_at_the_end_changes_nothing(tmp_path: Path) -> None:
    async with running(open_store(tmp_path)) as store:
        await store.truncate(0)
        end = await begin_term(store, 0)
        before = store.recorded
        await store.truncate(end)
        assert store.recorded == before


async def test_truncation_to_what_is_no_boundary_is_refused(tmp_path: Path) -> None:
    async with running(open_store(tmp_path)) as store:
        end = await begin_term(store, 0)
        await fill(store, 3)
        before = store.recorded
        for position in (end + 32, end // 2, store.append_position + 32):
            with pytest.raises(StorageError):
                await store.truncate(position)
        assert store.recorded == before


async def test_truncation_below_the_first_kept_batch_is_refused(tmp_path: Path) -> None:
    async with running(open_store(tmp_path)) as store:
        end = await begin_term(store, 0)
        await fill(store, 3)
        await store.drop_prefix(2 * end)
        with pytest.raises(PrunedError, match=f"the log starts at {2 * end}"):
            await store.truncate(end)
        await store.truncate(2 * end)
        assert store.start_position == store.append_position == 2 * end


async def test_dropping_a_prefix_keeps_the_batch_that_covers_the_position(tmp_path: Path) -> None:
    async with running(open_store(tmp_path)) as store:
        end = await begin_term(store, 0)
        batches = await fill(store, 9)
        await store.drop_prefix(end - 32)
        assert store.start_position == 0
        await store.drop_prefix(3 * end + 32)
        assert store.start_position == 3 * end
        assert await store.read(3 * end) == batches[3:]
        for position in (0, 3 * end - 32):
            with pytest.raises(PrunedError):
                await store.read(position)
            with pytest.raises(PrunedError):
                list(store.scan(position))
        after = store.recorded
    assert recorded_in(tmp_path) == after


async def test_dropping_everything_keeps_the_place_in_the_log(tmp_path: Path) -> None:
    async with running(open_store(tmp_path)) as store:
        await begin_term(store, 0, timestamp_ms=3)
        end = await begin_term(store, 1, timestamp_ms=4)
        await store.drop_prefix(end + 1000)
        assert store.start_position == store.append_position == end
        assert (store.log_term, store.last_timestamp_ms) == (1, 4)
        after = store.recorded
    again = open_store(tmp_path)
    assert again.recorded == after
    assert again.last_commit_position == end
    async with running(again):
        await again.append_durably(batch_at(end, term=1, timestamp_ms=5))
        assert len(await again.read(end)) == 1


async def test_a_long_prefix_is_dropped_in_steps(tmp_path: Path) -> None:
    async with running(open_store(tmp_path, partial(InlineExecutor[Write], latency=0))) as store:
        end = await begin_term(store, 0)
        await fill(store, 2 * PRUNE_STEP + 10)
        starts: list[int] = []

        async def watch() -> None:
            while True:
                if store.start_position not in starts:
                    starts.append(store.start_position)
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await store.drop_prefix(store.append_position)
            nursery.cancel_scope.cancel()
        assert starts[:3] == [0, PRUNE_STEP * end, 2 * PRUNE_STEP * end]
        assert store.start_position == store.append_position


async def test_space_that_was_pruned_is_used_again(tmp_path: Path) -> None:
    async with running(open_store(tmp_path, partial(InlineExecutor[Write], latency=0))) as store:
        await begin_term(store, 0)
        sizes: list[int] = []
        for _ in range(6):
            for _ in range(10):
                store.append(batch_at(store.submitted_position, size=100_000))
            await store.append_durably(batch_at(store.submitted_position))
            await store.drop_prefix(store.append_position)
            sizes.append((tmp_path / "data.mdb").stat().st_size)
        assert sizes[-1] <= sizes[2] < MAP_BYTES
