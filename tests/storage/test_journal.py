"""The journal in front of the log table: what is in it counts, whatever comes in between."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
from storage_world import JOURNAL_BYTES, batch_at, begin_term, open_store, recorded_in, running

from quorate.errors import DamagedRecordError, LostStoreError
from quorate.storage import (
    InlineExecutor,
    NodeState,
    Store,
    TermRow,
    ThreadExecutor,
    Write,
    describe,
    dump,
    open_readonly,
    verify,
)
from quorate.storage.environment import Environment
from quorate.storage.journal import JOURNAL_FILE, load_row, read_journal
from quorate.storage.state import MAX_DBS, Databases

if TYPE_CHECKING:
    from pathlib import Path

    from quorate.storage.journal import Tail

at_once = partial(open_store, executor=InlineExecutor[Write])
BLOCK = 4096


async def append(store: Store, count: int, *, size: int = 100) -> list[bytes]:
    """Append small batches one after the other, each durable before the next."""
    made: list[bytes] = []
    for _ in range(count):
        made.append(batch_at(store.appended_position, term=store.log_term, size=size))
        await store.append_durably(made[-1])
    return made


async def begin(store: Store) -> int:
    """Write the first batch of a term, and the one that makes the journal: both go to LMDB."""
    await begin_term(store, 0)
    await append(store, 1)
    return store.append_position


def cut_power(store: Store) -> None:
    """Leave the journal as it is: in an orderly end it is carried over."""
    assert isinstance(store.executor, InlineExecutor)
    store.executor.cut_power()


async def make(directory: Path, count: int) -> list[bytes]:
    """Make a store of one term: two batches in LMDB, and so many more in the journal."""
    async with running(at_once(directory)) as store:
        await begin(store)
        await append(store, count)
        cut_power(store)
        return list(store.scan(0))


def in_lmdb(directory: Path) -> int:
    """Count the batches in LMDB alone."""
    environment = Environment.open_readonly(directory, max_dbs=MAX_DBS)
    dbs = environment.databases(Databases)
    try:
        return environment.read(lambda txn: txn.stat(dbs.log)["entries"])
    finally:
        environment.close()


def spoil(directory: Path, at: int) -> None:
    """Flip a bit of the journal."""
    path = directory / JOURNAL_FILE
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


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


async def test_the_journal_of_another_store_is_void(tmp_path: Path) -> None:
    await make(tmp_path / "one", 4)
    async with running(at_once(tmp_path / "two", seed=2)) as store:
        await begin(store)
        await append(store, 1)
        cut_power(store)
    (tmp_path / "one" / JOURNAL_FILE).replace(tmp_path / "two" / JOURNAL_FILE)
    assert verify(tmp_path / "two").batches == 2


async def test_the_last_group_may_be_torn_anywhere(tmp_path: Path) -> None:
    whole = await make(tmp_path, 3)
    path = tmp_path / JOURNAL_FILE
    data = path.read_bytes()
    group = 48 + len(whole[-1])
    for at in [*range(0, group, 7), group - 1]:
        torn = data[: 2 * BLOCK + at] + bytes(BLOCK - at) + data[3 * BLOCK :]
        path.write_bytes(torn)
        left = tail_of(tmp_path, whole)
        assert left.damage is None
        assert len(left.records) == (3 if at > group - 140 else 2)  # the batch ends in zeros
    assert verify(tmp_path).ok
    path.write_bytes(data)
    spoil(tmp_path, 2 * BLOCK + 60)
    async with running(at_once(tmp_path)) as store:
        assert list(store.scan(0)) == whole[:4]
        again = await append(store, 2)
    async with running(at_once(tmp_path)) as store:
        assert list(store.scan(0)) == [*whole[:4], *again]


@pytest.mark.parametrize("size", [None, 0, BLOCK])
async def test_a_journal_that_is_missing_or_cut_short_is_damage(
    tmp_path: Path, size: int | None
) -> None:
    whole = await make(tmp_path, 3)
    path = tmp_path / JOURNAL_FILE
    if size is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:size])
    assert [finding.reason for finding in verify(tmp_path).findings] != []
    with pytest.raises(DamagedRecordError, match="the journal is damaged"):
        at_once(tmp_path)
    async with running(at_once(tmp_path, peers=True)) as store:
        assert list(store.scan(0)) == whole[:2]
        assert store.recorded.lost == (0, sum(map(len, whole[:2])) + JOURNAL_BYTES)  # at most
        await begin_term(store, 1)
        assert store.recorded.lost == (-1, 0)


async def test_a_size_that_was_changed_makes_the_file_anew(tmp_path: Path) -> None:
    whole = await make(tmp_path, 3)
    async with running(at_once(tmp_path, journal_bytes=3 * BLOCK + 5)) as store:
        assert list(store.scan(0)) == whole
        whole += await append(store, 7)
        cut_power(store)
    assert (tmp_path / JOURNAL_FILE).stat().st_size == 3 * BLOCK
    async with running(at_once(tmp_path)) as again:
        assert list(again.scan(0)) == whole


async def test_what_a_client_has_put_into_a_value_is_never_a_group(tmp_path: Path) -> None:
    """The groups of older generations, and with them values, lie at borders of blocks."""
    whole = await make(tmp_path, 2)
    group = (tmp_path / JOURNAL_FILE).read_bytes()[BLOCK : 2 * BLOCK]
    async with running(at_once(tmp_path)) as store:
        await append(store, 1)
        await append(store, 1)
        cut_power(store)
        now = list(store.scan(0))
    assert now[: len(whole)] == whole
    data = bytearray((tmp_path / JOURNAL_FILE).read_bytes())
    data[BLOCK : 2 * BLOCK] = group  # of another salt
    (tmp_path / JOURNAL_FILE).write_bytes(data)
    report = verify(tmp_path)
    assert (report.ok, report.batches) == (True, len(now))


@pytest.mark.parametrize("at", [2, 20, 60, 150])
async def test_damage_in_front_of_a_whole_group_is_noticed(tmp_path: Path, at: int) -> None:
    whole = await make(tmp_path, 5)
    spoil(tmp_path, 2 * BLOCK + at)
    end = sum(map(len, whole[:4]))
    assert [(f.term, f.position) for f in verify(tmp_path).findings] == [(0, end)]
    with open_readonly(tmp_path) as store:
        assert list(store.scan(0)) == whole[:4]
    with pytest.raises(DamagedRecordError, match="the journal is damaged at byte 8192") as caught:
        at_once(tmp_path)
    assert caught.value.position == end


async def test_with_other_members_what_is_damaged_is_noted_as_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = await make(tmp_path, 5)
    spoil(tmp_path, 2 * BLOCK + 60)
    at_once(tmp_path, peers=True).close()
    assert "votes for nobody who lacks it" in caplog.text
    async with running(at_once(tmp_path)) as store:
        assert store.recorded.lost == (0, sum(map(len, whole)))
        assert list(store.scan(0)) == whole[:4]
        for batch in whole[4:]:
            await store.append_durably(batch)
        assert store.recorded.lost == (-1, 0)
    assert recorded_in(tmp_path).lost == (-1, 0)


async def test_a_journal_that_does_not_continue_the_log_is_damage(tmp_path: Path) -> None:
    whole = await make(tmp_path, 2)
    path = tmp_path / JOURNAL_FILE
    data = path.read_bytes()
    path.write_bytes(data[BLOCK : 2 * BLOCK] + data[BLOCK:])
    assert tail_of(tmp_path, whole).lost == (0, sum(map(len, whole)))
    with pytest.raises(DamagedRecordError, match="the journal is damaged at byte 0"):
        at_once(tmp_path)


def tail_of(directory: Path, whole: list[bytes]) -> Tail:
    """Judge the journal of a store whose LMDB has the first two batches."""
    environment = Environment.open_readonly(directory, max_dbs=MAX_DBS)
    dbs = environment.databases(Databases)
    row = environment.read(lambda txn: load_row(txn, dbs))
    environment.close()
    return read_journal(directory).tail(1, row, (0, len(whole[0]) + len(whole[1])))


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
        base = store.appended_position
        await store.append_durably(batch_at(base, term=4), term_row=TermRow(4, base, None, 0))
        await append(store, 2)
        terms = store.terms
        cut_power(store)
    assert recorded_in(tmp_path).terms == terms
    assert verify(tmp_path).ok


async def test_a_journal_that_is_gone_is_lost_in_the_newest_term(tmp_path: Path) -> None:
    """A follower writes the row of a term before its first batch, which is in the journal alone."""
    async with running(at_once(tmp_path)) as store:
        end = await begin(store)
        await store.ensure_coherent(term=1, base=end, end=None, timestamp_ms=0)
        await append(store, 5)
        acknowledged = 1, store.append_position
        cut_power(store)
    (tmp_path / JOURNAL_FILE).unlink()
    async with running(at_once(tmp_path, peers=True)) as store:
        assert store.recorded.lost >= acknowledged
        await append(store, 1)
        assert store.recorded.lost >= acknowledged


@pytest.mark.parametrize("seed", [1, 2], ids=["of this run", "of an earlier run"])
async def test_an_lmdb_that_was_put_back_has_lost_its_vote(tmp_path: Path, seed: int) -> None:
    async with running(at_once(tmp_path / "store")) as store:
        await begin(store)
        await append(store, 3)
        shutil.copy(tmp_path / "store" / "data.mdb", tmp_path / "old")
        await store.save_node_state(NodeState(7, 2))
        await append(store, 3)
        cut_power(store)
    if seed == 2:
        async with running(at_once(tmp_path / "store", seed=seed)) as store:
            await append(store, 3)
            cut_power(store)
    shutil.copy(tmp_path / "old", tmp_path / "store" / "data.mdb")
    with pytest.raises(LostStoreError, match=r"newer than data\.mdb"):
        at_once(tmp_path / "store", peers=True)
