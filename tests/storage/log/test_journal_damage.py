"""Journals that are torn, damaged, gone, or of another LMDB."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from quorate.errors import DamagedRecordError, LostStoreError
from quorate.storage import NodeState, open_readonly, verify
from quorate.storage.log.journal import (
    JOURNAL_FILE,
    MAX_JOURNAL_BYTES,
    Journal,
    JournalRow,
    read_journal,
)
from tests.support.journal_world import (
    BLOCK,
    append,
    at_once,
    begin,
    cut_power,
    make,
    spoil,
    tail_of,
)
from tests.support.storage_world import JOURNAL_BYTES, begin_term, recorded_in, running

if TYPE_CHECKING:
    from pathlib import Path


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
    assert "votes only for candidates that have them" in caplog.text
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


async def test_the_journal_of_another_store_is_not_taken(tmp_path: Path) -> None:
    await make(tmp_path / "one", 4)
    async with running(at_once(tmp_path / "two", seed=2)) as store:
        await begin(store)
        await append(store, 1)
        cut_power(store)
    (tmp_path / "one" / JOURNAL_FILE).replace(tmp_path / "two" / JOURNAL_FILE)
    report = verify(tmp_path / "two")
    assert (report.ok, report.batches) == (False, 2)


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


@pytest.mark.parametrize(
    "size", [JOURNAL_BYTES + BLOCK, 4 * MAX_JOURNAL_BYTES], ids=["by a block", "beyond all bounds"]
)
async def test_a_journal_that_is_too_long_is_damage_and_not_read_whole(
    tmp_path: Path, size: int
) -> None:
    whole = await make(tmp_path, 3)
    os.truncate(tmp_path / JOURNAL_FILE, size)
    assert len(read_journal(tmp_path).data) == min(size, MAX_JOURNAL_BYTES + 1)
    (finding,) = verify(tmp_path).findings
    assert finding.reason.startswith("the journal is damaged at byte ")
    with pytest.raises(DamagedRecordError, match="the journal is damaged"):
        at_once(tmp_path)
    async with running(at_once(tmp_path, peers=True)) as store:
        assert list(store.scan(0)) == whole[:2]
        assert store.recorded.lost == (0, sum(map(len, whole[:2])) + JOURNAL_BYTES)
        await append(store, 1)
        assert (tmp_path / JOURNAL_FILE).stat().st_size == JOURNAL_BYTES  # made anew


def test_no_journal_is_made_that_could_not_be_read_again(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="could not be read again"):
        Journal(tmp_path, JournalRow(), salt=0, size=MAX_JOURNAL_BYTES + 1)


@pytest.mark.parametrize("runs", [1, 2], ids=["of this run", "of an earlier run"])
async def test_an_older_journal_beside_a_newer_lmdb_is_damage(tmp_path: Path, runs: int) -> None:
    """Nothing in it is the log's, and it does not say what was in the right one."""
    path = tmp_path / JOURNAL_FILE
    async with running(at_once(tmp_path)) as store:
        await begin(store)
        await append(store, 3)
        older = path.read_bytes()
        await append(store, 20 if runs == 1 else 1)  # eight fill it
        cut_power(store)
    if runs == 2:
        async with running(at_once(tmp_path, seed=2)) as store:
            await append(store, 3)
            cut_power(store)
    acknowledged = store.append_position
    path.write_bytes(older)
    (finding,) = verify(tmp_path).findings
    assert finding.reason.startswith("the journal is older than data.mdb")
    with pytest.raises(DamagedRecordError, match=r"the journal is older than data\.mdb"):
        at_once(tmp_path)
    async with running(at_once(tmp_path, peers=True)) as again:
        assert again.append_position < acknowledged
        assert again.recorded.lost >= (0, acknowledged)


async def test_a_blank_journal_beside_an_lmdb_that_has_one_is_damage(tmp_path: Path) -> None:
    """Its first group is durable before LMDB says that there is one."""
    await make(tmp_path, 3)
    path = tmp_path / JOURNAL_FILE
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(DamagedRecordError, match=r"the journal is older than data\.mdb"):
        at_once(tmp_path)


@pytest.mark.parametrize("count", [1, 2], ids=["in front of its first group", "behind it"])
async def test_a_run_may_end_at_the_beginning_of_its_journal(tmp_path: Path, count: int) -> None:
    """Its first batch goes to LMDB; what an earlier run has left in the file says nothing then."""
    whole = await make(tmp_path, 20)
    for seed in (2, 3, 4):
        async with running(at_once(tmp_path, seed=seed)) as store:
            whole += await append(store, count)
            cut_power(store)
        assert verify(tmp_path).ok
    async with running(at_once(tmp_path, seed=5)) as store:
        assert list(store.scan(0)) == whole
