"""The journal in front of the log table: what is in it counts, whatever comes in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from quorate.storage import NodeState, ThreadExecutor, Write, describe, dump, open_readonly, verify
from quorate.storage.log.journal import JOURNAL_FILE
from quorate.storage.testing import InlineExecutor
from tests.support.journal_world import (
    BLOCK,
    append,
    at_once,
    begin,
    cut_power,
    group_of,
    in_lmdb,
    make,
    row_in,
)
from tests.support.storage_world import batch_at, open_store, recorded_in, running

if TYPE_CHECKING:
    from pathlib import Path


async def test_what_is_only_appended_is_in_the_journal_and_seen_by_all(tmp_path: Path) -> None:
    async with running(at_once(tmp_path)) as store:
        await begin(store)
        await append(store, 5)
        whole = list(store.scan(0))
        assert len(whole) == 7
        assert await store.read(0) == whole
        middle = len(whole[0]) * 3
        assert await store.read(middle) == whole[3:]
        assert await store.read(middle, limit_bytes=1) == whole[3:4]
        assert await store.read(0, end=middle) == whole[:3]
        assert await store.boundary(middle + 7) == middle
        assert await store.last_batch() == whole[-1]
    async with running(at_once(tmp_path)) as again:
        assert list(again.scan(0)) == whole


async def test_tools_see_what_is_in_the_journal_only(tmp_path: Path) -> None:
    whole = await make(tmp_path, 5)
    assert in_lmdb(tmp_path) == 2
    with open_readonly(tmp_path) as store:
        assert list(store.scan(0)) == whole
        assert store.append_position == sum(map(len, whole))
        assert store.boundary(len(whole[0]) + 1) == len(whole[0])
    found = describe(tmp_path)
    assert (found.batches, found.append_position) == (7, sum(map(len, whole)))
    assert [each.header.position for each in dump(tmp_path)][-1] == found.append_position - len(
        whole[-1]
    )
    report = verify(tmp_path)
    assert (report.ok, report.batches, report.bytes) == (True, 7, found.append_position)
    assert in_lmdb(tmp_path) == 2  # they touch nothing


async def test_a_full_journal_is_carried_over(tmp_path: Path) -> None:
    async with running(at_once(tmp_path)) as store:
        await begin(store)
        await append(store, 30)
        whole = list(store.scan(0))
        cut_power(store)
    assert 24 <= in_lmdb(tmp_path) < 32
    with open_readonly(tmp_path) as readonly:
        assert list(readonly.scan(0)) == whole
    assert recorded_in(tmp_path).append_position == sum(map(len, whole))
    assert in_lmdb(tmp_path) == 32  # opening for writing carries over


@pytest.mark.parametrize("executor", [ThreadExecutor, InlineExecutor])
async def test_an_orderly_end_leaves_nothing_in_the_journal(
    tmp_path: Path, executor: type[ThreadExecutor[Write]]
) -> None:
    async with running(open_store(tmp_path, executor)) as store:
        await begin(store)
        await append(store, 3)
        whole = list(store.scan(0))
    assert in_lmdb(tmp_path) == 5
    (tmp_path / JOURNAL_FILE).unlink()
    with open_readonly(tmp_path) as readonly:
        assert list(readonly.scan(0)) == whole


async def test_many_at_once_go_to_lmdb(tmp_path: Path) -> None:
    async with running(at_once(tmp_path, journal_bytes=1 << 20)) as store:
        await begin(store)
        await append(store, 2)
        await append(store, 1, size=200_000)
        await append(store, 1)
        cut_power(store)
    assert in_lmdb(tmp_path) == 5


async def test_a_vote_is_never_in_front_of_what_came_before_it(tmp_path: Path) -> None:
    async with running(at_once(tmp_path)) as store:
        await begin(store)
        await append(store, 3)
        await store.save_node_state(NodeState(7, 2))
        await append(store, 2)
        cut_power(store)
    assert in_lmdb(tmp_path) == 5
    recorded = recorded_in(tmp_path)
    assert recorded.node_state == NodeState(7, 2)
    assert verify(tmp_path).batches == 7


async def test_what_was_truncated_does_not_come_back(tmp_path: Path) -> None:
    """The journal's older groups lie behind the newer ones in the file, and fit in place."""
    async with running(at_once(tmp_path)) as store:
        end = await begin(store)
        await append(store, 5)
        await store.truncate(end)
        await append(store, 1, size=33)
        whole = list(store.scan(0))
        assert len(whole) == 3
        cut_power(store)
    async with running(at_once(tmp_path)) as again:
        assert list(again.scan(0)) == whole


async def test_what_was_carried_over_is_not_taken_twice(tmp_path: Path) -> None:
    whole = await make(tmp_path, 4)
    before = (tmp_path / JOURNAL_FILE).read_bytes()
    recorded_in(tmp_path)
    assert (tmp_path / JOURNAL_FILE).read_bytes() == before  # void by its generation only
    async with running(at_once(tmp_path)) as store:
        await store.truncate(len(whole[0]))
    assert recorded_in(tmp_path).append_position == len(whole[0])


async def test_a_size_that_was_changed_makes_the_file_anew(tmp_path: Path) -> None:
    whole = await make(tmp_path, 3)
    async with running(at_once(tmp_path, journal_bytes=3 * BLOCK + 5)) as store:
        assert list(store.scan(0)) == whole
        whole += await append(store, 7)
        cut_power(store)
    assert (tmp_path / JOURNAL_FILE).stat().st_size == 3 * BLOCK
    async with running(at_once(tmp_path)) as again:
        assert list(again.scan(0)) == whole


@pytest.mark.parametrize("known", [False, True], ids=["guessed", "known"])
async def test_what_a_client_has_put_into_a_value_is_never_a_group(
    tmp_path: Path, *, known: bool
) -> None:
    """Groups of older generations, and with them values, lie at borders of blocks.

    Nothing but the salt tells such a value from a group: with that it would be one.
    """
    whole = await make(tmp_path, 2)
    end, row = sum(map(len, whole)), row_in(tmp_path)
    if not known:
        row = attrs.evolve(row, salt=row.salt ^ 1)
    forged = group_of(row, batch_at(end))
    path = tmp_path / JOURNAL_FILE
    data = path.read_bytes()
    path.write_bytes(data[: 2 * BLOCK] + forged + data[3 * BLOCK :])
    report = verify(tmp_path)
    assert (report.ok, report.batches) == (True, 5 if known else 4)
    path.write_bytes(data[: 4 * BLOCK] + forged + data[5 * BLOCK :])
    report = verify(tmp_path)
    assert (report.ok, report.batches) == (not known, 4)  # as if one in front of it were damaged


@pytest.mark.parametrize("executor", [ThreadExecutor, InlineExecutor])
async def test_readers_and_the_writer_agree_while_it_is_carried_over(
    tmp_path: Path, executor: type[ThreadExecutor[Write]]
) -> None:
    async with running(open_store(tmp_path, executor)) as store:
        await begin(store)
        position = store.append_position
        async with trio.open_nursery() as nursery:
            nursery.start_soon(append, store, 200)
            while position < store.append_position or position < 200 * 200:
                batches = await store.read(position, limit_bytes=500)
                assert all(batches)
                position += sum(map(len, batches))
        assert len(list(store.scan(0))) == 202


async def test_terms_begin_in_lmdb(tmp_path: Path) -> None:
    async with running(at_once(tmp_path)) as store:
        await begin(store)
        await append(store, 2)
        base = store.submitted_position
        await store.append_durably(batch_at(base, term=4))
        await append(store, 2)
        terms = store.terms
        cut_power(store)
    assert recorded_in(tmp_path).terms == terms
    assert verify(tmp_path).ok
