"""Damage is reported with member, term and position, wherever it is met, and never skipped."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from quorate.errors import (
    DamagedRecordError,
    LostStoreError,
    StorageError,
    StoreMismatchError,
)
from quorate.storage import SnapshotRow, TermRow, describe, dump, open_readonly, verify
from quorate.storage.log.log_table import KEY
from quorate.storage.rows.meta_rows import ORIGIN_KEY, SUSPENDED_KEY
from quorate.storage.rows.term_table import encode_term
from quorate.storage.rows.vote import NODE_STATE_KEY
from quorate.storage.rows.voting_status import VOTING_STATUS_KEY
from quorate.storage.testing import InlineExecutor
from tests.support.storage_world import (
    batch_at,
    begin_term,
    fill,
    flipped,
    open_store,
    running,
    stored,
    tamper,
)

MEMBER = 5
open_fifth = partial(open_store, executor=InlineExecutor, member_id=MEMBER)


async def make(directory: Path) -> list[bytes]:
    """Make a store of three terms with four batches each."""
    async with running(open_fifth(directory)) as store:
        for term in range(3):
            await begin_term(store, term)
            await fill(store, 2, term=term)
        return list(store.scan(0))


def place(batches: list[bytes], index: int) -> tuple[int, int]:
    """Return term and position of a batch."""
    return index // 4, sum(map(len, batches[:index]))


async def test_a_flipped_bit_is_reported_on_read_scan_dump_and_verify(tmp_path: Path) -> None:
    batches = await make(tmp_path)
    term, position = place(batches, 6)
    tamper(tmp_path, b"log", KEY.pack(term, position), flipped(batches[6], 130))
    words = f"member 5: damaged record at term 1, position {position}: batch: checksum"

    async with running(open_fifth(tmp_path)) as store:
        assert await store.read(0, end=position) == batches[:6]
        assert await store.read(position + len(batches[6])) == batches[7:]
        for start in (0, position):
            with pytest.raises(DamagedRecordError, match=words) as caught:
                await store.read(start)
            assert (caught.value.member_id, caught.value.term) == (MEMBER, term)
            assert caught.value.position == position
        with pytest.raises(DamagedRecordError, match=words):
            list(store.scan(0))
    with pytest.raises(DamagedRecordError, match=words):
        list(dump(tmp_path))
    report = verify(tmp_path)
    assert not report.ok
    assert report.batches == 12
    (finding,) = report.findings
    assert (finding.member_id, finding.term, finding.position) == (MEMBER, term, position)
    assert "checksum" in str(finding)


async def test_a_bit_that_flips_in_the_file_is_found(tmp_path: Path) -> None:
    batches = await make(tmp_path)
    _, position = place(batches, 9)
    path = tmp_path / "data.mdb"
    content = path.read_bytes()
    assert content.count(batches[9]) >= 1
    changed = content.replace(batches[9], flipped(batches[9], 100))
    path.write_bytes(changed)
    (finding,) = verify(tmp_path).findings
    assert (finding.term, finding.position) == (2, position)


async def test_a_store_whose_last_batch_is_damaged_is_refused(tmp_path: Path) -> None:
    batches = await make(tmp_path)
    term, position = place(batches, 11)
    tamper(tmp_path, b"log", KEY.pack(term, position), flipped(batches[11], 70))
    with pytest.raises(DamagedRecordError, match=f"term 2, position {position}"):
        open_fifth(tmp_path)
    with open_readonly(tmp_path) as store:
        assert store.append_position == position
        assert list(store.scan(0)) == batches[:11]
    assert describe(tmp_path).append_position == position
    assert len(verify(tmp_path).findings) == 1


async def test_a_missing_batch_is_reported(tmp_path: Path) -> None:
    batches = await make(tmp_path)
    term, position = place(batches, 5)
    tamper(tmp_path, b"log", KEY.pack(term, position), None)
    async with running(open_fifth(tmp_path)) as store:
        assert await store.read(0, end=position) == batches[:5]
        for start in (0, position):
            with pytest.raises(DamagedRecordError, match="no batch begins here") as caught:
                await store.read(start)
            assert (caught.value.term, caught.value.position) == (term, position)
    (finding,) = verify(tmp_path).findings
    assert "hole" in finding.reason
    assert finding.position == place(batches, 6)[1]


async def test_a_batch_under_a_foreign_key_is_reported(tmp_path: Path) -> None:
    batches = await make(tmp_path)
    term, position = place(batches, 6)
    tamper(tmp_path, b"log", KEY.pack(term, position), batches[5])
    async with running(open_fifth(tmp_path)) as store:
        with pytest.raises(DamagedRecordError, match="its header says term 1, position"):
            await store.read(position)
    assert any("its header says" in finding.reason for finding in verify(tmp_path).findings)


@pytest.mark.parametrize("key", [b"short", bytes(17)])
async def test_a_foreign_key_is_reported(tmp_path: Path, key: bytes) -> None:
    await make(tmp_path)
    tamper(tmp_path, b"log", key, b"?")
    assert any("key" in finding.reason for finding in verify(tmp_path).findings)


async def test_a_damaged_row_of_the_recording_log_is_reported(tmp_path: Path) -> None:
    await make(tmp_path)
    key, _ = encode_term(TermRow(1, 0, None, 0))
    tamper(tmp_path, b"terms", key, flipped(stored(tmp_path, b"terms", key), 3))
    assert any(finding.term == 1 for finding in verify(tmp_path).findings)


async def test_terms_that_do_not_meet_are_reported(tmp_path: Path) -> None:
    batches = await make(tmp_path)
    end = place(batches, 8)[1]
    for row in (TermRow(1, 32, end, 0), TermRow(2, end + 32, None, 0)):
        tamper(tmp_path, b"terms", *encode_term(row))
    with pytest.raises(DamagedRecordError, match="term table"):
        open_fifth(tmp_path)
    reasons = [finding.reason for finding in verify(tmp_path).findings]
    assert any("it begins at 32, term 0 ends at" in reason for reason in reasons)
    assert any("its term covers" in reason for reason in reasons)


async def test_a_missing_row_of_the_recording_log_is_reported(tmp_path: Path) -> None:
    await make(tmp_path)
    key, _ = encode_term(TermRow(2, 0, None, 0))
    tamper(tmp_path, b"terms", key, None)
    assert any("not in the term table" in one.reason for one in verify(tmp_path).findings)


async def test_a_term_without_its_batches_is_reported(tmp_path: Path) -> None:
    batches = await make(tmp_path)
    end = sum(map(len, batches))
    tamper(tmp_path, b"terms", *encode_term(TermRow(2, place(batches, 8)[1], end + 320, 0)))
    tamper(tmp_path, b"terms", *encode_term(TermRow(3, end + 320, None, 0)))
    (finding,) = verify(tmp_path).findings
    assert (finding.term, finding.position) == (3, end + 320)


async def test_time_that_goes_back_and_commits_from_the_future_are_reported(
    tmp_path: Path,
) -> None:
    async with running(open_fifth(tmp_path)) as store:
        end = await begin_term(store, 0, timestamp_ms=5)
        await store.append_durably(batch_at(end, timestamp_ms=4, commit_position=end + 32))
    reasons = [finding.reason for finding in verify(tmp_path).findings]
    assert reasons == [
        "its timestamp 4 is below 5 before it",
        f"it says that {end + 32} is committed",
    ]


async def test_a_damaged_vote_is_refused(tmp_path: Path) -> None:
    await make(tmp_path)
    row = stored(tmp_path, b"meta", NODE_STATE_KEY)
    tamper(tmp_path, b"meta", NODE_STATE_KEY, flipped(row, 2))
    with pytest.raises(LostStoreError, match=r"node_state.*its vote is lost"):
        open_fifth(tmp_path)
    assert any("node_state" in finding.reason for finding in verify(tmp_path).findings)


@pytest.mark.parametrize(
    ("key", "words"),
    [(ORIGIN_KEY, "where its log begins is lost"), (SUSPENDED_KEY, "whether it is suspended")],
)
async def test_other_rows_that_nobody_else_has_are_named(
    tmp_path: Path, key: bytes, words: str
) -> None:
    await make(tmp_path)
    async with running(open_fifth(tmp_path)) as store:
        await store.save_suspended(suspended=True)
    tamper(tmp_path, b"meta", key, flipped(stored(tmp_path, b"meta", key), 0))
    with pytest.raises(LostStoreError, match=words):
        open_fifth(tmp_path)


async def test_a_store_that_does_not_know_whether_it_may_vote_is_refused(tmp_path: Path) -> None:
    await make(tmp_path)
    row = stored(tmp_path, b"meta", VOTING_STATUS_KEY)
    for damaged in (flipped(row, 0), None):
        tamper(tmp_path, b"meta", VOTING_STATUS_KEY, damaged)
        with pytest.raises(LostStoreError, match=r"standing.*whether it may vote is lost"):
            open_fifth(tmp_path)


async def test_a_damaged_snapshot_row_is_reported(tmp_path: Path) -> None:
    async with running(open_fifth(tmp_path)) as store:
        await store.add_snapshot(SnapshotRow(64, 3, 0, "x"))
    key = KEY.pack(64, 3)
    tamper(tmp_path, b"snapshots", key, flipped(stored(tmp_path, b"snapshots", key), 0))
    (finding,) = verify(tmp_path).findings
    assert (finding.term, finding.position) == (3, 64)
    async with running(open_fifth(tmp_path)) as store:  # others have one
        assert store.snapshots == ()
    assert verify(tmp_path).ok


async def test_a_broken_file_is_refused_in_our_words(tmp_path: Path) -> None:
    await make(tmp_path)
    path = tmp_path / "data.mdb"
    path.write_bytes(bytes(8192) + path.read_bytes()[8192:])
    with pytest.raises(StoreMismatchError):
        open_fifth(tmp_path)
    with pytest.raises(StoreMismatchError):
        verify(tmp_path)


@pytest.mark.parametrize("kept", [9, 11])
async def test_a_copy_is_refused_if_the_log_was_cut_while_its_place_was_looked_up(
    tmp_path: Path, kept: int
) -> None:
    batches = await make(tmp_path)
    _, end = place(batches, kept)
    async with running(open_fifth(tmp_path)) as store:
        read = store.executor.read

        async def read_and_cut(fn: Callable[[], object]) -> object:
            found = await read(fn)
            store.executor.read = read  # type: ignore[method-assign]
            await store.truncate(end)
            return found

        store.executor.read = read_and_cut  # type: ignore[method-assign,assignment]
        with pytest.raises(StorageError, match="ends behind the end of its term here"):
            await store.replace(batches[11])
        assert list(store.scan(0)) == batches[:kept]
    with open_readonly(tmp_path) as closed:
        assert closed.append_position == end
    assert verify(tmp_path).ok


async def test_nothing_may_be_appended_during_a_truncation(tmp_path: Path) -> None:
    batches = await make(tmp_path)
    async with running(open_fifth(tmp_path)) as store:
        read = store.executor.read

        async def read_and_append(fn: Callable[[], object]) -> object:
            found = await read(fn)
            store.append(batch_at(store.submitted_position, term=2))
            return found

        store.executor.read = read_and_append  # type: ignore[method-assign,assignment]
        with pytest.raises(AssertionError, match="appended during a truncation"):
            await store.truncate(place(batches, 9)[1])
