"""What a store mends by itself when it is opened, and what it refuses to guess."""

from functools import partial
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.errors import DamagedRecordError, StorageError
from quorate.storage import SnapshotRow, Store, TermRow, open_readonly, verify
from quorate.storage.log.founding import force
from quorate.storage.log.log_table import KEY
from quorate.storage.log.mending import TermTableRepair
from quorate.storage.rows.log_end import EMPTY_LOG, LogEnd
from quorate.storage.rows.meta_rows import LOST_KEY, encode_lost
from quorate.storage.rows.term_table import encode_term
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

open_strictly = partial(open_store, executor=InlineExecutor, member_id=5)


def open_with_peers(directory: Path) -> Store:
    return Store.open(
        directory,
        cluster="testing",
        member_id=5,
        rng=Random(1),
        executor=InlineExecutor,
        peers=True,
    )


async def make(directory: Path) -> list[bytes]:
    """Make a store of the terms 0, 1 (empty) and 2, with four batches in 0 and 2."""
    async with running(open_strictly(directory)) as store:
        await begin_term(store, 0)
        await fill(store, 2)
        await store.ensure_coherent(
            term=1, base=store.append_position, end=store.append_position, timestamp_ms=0
        )
        await begin_term(store, 2)
        await fill(store, 2, term=2)
        return list(store.scan(0))


def place(batches: list[bytes], index: int) -> tuple[int, int]:
    return index // 4 * 2, sum(map(len, batches[:index]))


def spoil(directory: Path, batches: list[bytes], *which: int) -> None:
    for index in which:
        key = KEY.pack(*place(batches, index))
        tamper(directory, b"log", key, flipped(batches[index], 70))


# --- the end of the log ---------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 4, 5, 8])
async def test_a_damaged_end_is_cut_off_remembered_and_comes_back(
    tmp_path: Path, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    batches = await make(tmp_path)
    first = len(batches) - count
    spoil(tmp_path, batches, *range(first, len(batches)))
    term, position = place(batches, len(batches) - 1)
    async with running(open_with_peers(tmp_path)) as store:
        assert store.append_position == place(batches, first)[1]
        assert store.recorded.lost == (term, position + 1)
        assert list(store.scan(0)) == batches[:first]
        assert store.log_term == (0 if count > 4 else 2)
    assert f"damaged record at term {term}, position {position}, at the end" in caplog.text
    (finding,) = verify(tmp_path).findings
    assert (finding.term, finding.position) == (term, position)
    assert "cut off" in finding.reason
    async with running(open_with_peers(tmp_path)) as store:  # once more: it is remembered
        for batch in batches[first:]:
            assert store.recorded.lost == (term, position + 1)
            await store.append_durably(batch)
        assert store.recorded.lost == EMPTY_LOG
        assert list(store.scan(0)) == batches
    assert f"the end of the log is mended: it goes to {sum(map(len, batches))}" in caplog.text
    assert verify(tmp_path).ok
    open_strictly(tmp_path).close()


async def test_what_a_newer_leader_has_in_its_place_will_do(tmp_path: Path) -> None:
    batches = await make(tmp_path)
    spoil(tmp_path, batches, 7)
    async with running(open_with_peers(tmp_path)) as store:
        await store.append_durably(batch_at(store.append_position, term=2))  # of other bytes
        end = store.append_position
        assert store.recorded.lost == EMPTY_LOG
        await store.append_durably(batch_at(end, term=3, timestamp_ms=9))
    assert verify(tmp_path).ok


async def test_a_shorter_log_does_not_bring_it_back_and_a_snapshot_behind_it_does(
    tmp_path: Path,
) -> None:
    batches = await make(tmp_path)
    spoil(tmp_path, batches, 6, 7)
    lost = place(batches, 7)[1] + 1
    async with running(open_with_peers(tmp_path)) as store:
        await store.append_durably(batches[6])
        assert store.recorded.lost == (2, lost)
        end = sum(map(len, batches))
        await store.install(SnapshotRow(lost - 1, 2, 9, "x"), store.terms)
        assert store.recorded.lost == (2, lost)
        await store.install(SnapshotRow(end, 2, 9, "y"), store.terms)
        assert store.recorded.lost == EMPTY_LOG
    assert open_with_peers(tmp_path).recorded.lost == EMPTY_LOG


async def test_without_other_members_nothing_is_cut_off(tmp_path: Path) -> None:
    batches = await make(tmp_path)
    spoil(tmp_path, batches, 7)
    with pytest.raises(DamagedRecordError, match=f"term 2, position {place(batches, 7)[1]}"):
        open_strictly(tmp_path)
    spoil(tmp_path, batches, 6)
    with open_readonly(tmp_path) as store:  # for tools
        assert store.recorded.lost == EMPTY_LOG
        assert store.append_position == place(batches, 6)[1]
        assert list(store.scan(0)) == batches[:6]


@pytest.mark.parametrize(("term", "shift"), [(2, 32), (3, 0), (9, 0)])
async def test_a_key_that_does_not_fit_is_not_believed(
    tmp_path: Path, term: int, shift: int
) -> None:
    batches = await make(tmp_path)
    own, position = place(batches, 7)
    tamper(tmp_path, b"log", KEY.pack(own, position), None)
    tamper(tmp_path, b"log", KEY.pack(term, position + shift), flipped(batches[7], 70))
    with pytest.raises(DamagedRecordError, match=f"term {term}"):
        open_with_peers(tmp_path)


async def test_a_damaged_note_of_what_was_lost_is_not_overlooked(tmp_path: Path) -> None:
    await make(tmp_path)
    tamper(tmp_path, b"meta", LOST_KEY, flipped(encode_lost(LogEnd(2, 33)), 1))
    with pytest.raises(StorageError, match="lost"):
        open_with_peers(tmp_path)


async def test_a_forced_quorum_goes_on_without_what_was_damaged(tmp_path: Path) -> None:
    batches = await make(tmp_path)
    row = stored(tmp_path, b"meta", b"standing")
    async with running(open_strictly(tmp_path)) as store:
        await store.save_voting_status(
            type(store.voting_status)(type(store.voting_status.kind).VOTER, ((5, 1),), EMPTY_LOG)
        )
    assert stored(tmp_path, b"meta", b"standing") != row
    spoil(tmp_path, batches, 7)
    forced = force(tmp_path, instance_id=3, timestamp_ms=5)
    assert forced.position == place(batches, 7)[1]
    async with running(open_with_peers(tmp_path)) as store:
        assert store.recorded.lost == EMPTY_LOG


# --- the term table -------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [False, True], ids=["damaged", "missing"])
@pytest.mark.parametrize("terms", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
async def test_rows_are_made_again_as_they_were(
    tmp_path: Path, terms: tuple[int, ...], *, missing: bool, caplog: pytest.LogCaptureFixture
) -> None:
    await make(tmp_path)
    before = open_strictly(tmp_path)
    before.close()
    if missing and terms == (0, 1):
        terms = (1,)  # the first rows are not missed
    for term in terms:
        if missing and term == 0:
            continue
        key, value = encode_term(before.terms[term])
        tamper(tmp_path, b"terms", key, None if missing else flipped(value, 3))
    after = open_strictly(tmp_path)
    after.close()
    unmissed = {1} if missing and 1 in terms else set[int]()  # it has no batches
    assert after.terms == tuple(row for row in before.terms if row.term not in unmissed)
    assert verify(tmp_path).ok
    mended = [term for term in terms if (term or not missing) and term not in unmissed]
    assert all(f"the row of term {term} was" in caplog.text for term in mended)


async def test_a_missing_row_amidst_others_is_made_again_from_the_log(tmp_path: Path) -> None:
    await make(tmp_path)
    async with running(open_strictly(tmp_path)) as store:
        for term in (2**40, 2**50):
            await begin_term(store, term)
            await fill(store, 2, term=term)
        before = store.terms
    for term in (2, 2**40):
        tamper(tmp_path, b"terms", encode_term(TermRow(term, 0, None, 0))[0], None)
    after = open_strictly(tmp_path)
    after.close()
    assert after.terms == before


async def test_an_open_term_without_a_batch_is_kept(tmp_path: Path) -> None:
    """The last row is a promise: a log of an older term is behind it."""
    await make(tmp_path)
    async with running(open_strictly(tmp_path)) as store:
        end = store.append_position
        await store.ensure_coherent(term=4, base=end, end=None, timestamp_ms=9)
        before = store.terms
    for row in before[-2:]:
        key, value = encode_term(row)
        tamper(tmp_path, b"terms", key, flipped(value, 3))
    after = open_strictly(tmp_path)
    after.close()
    assert [(row.term, row.base, row.end) for row in after.terms] == [
        (row.term, row.base, row.end) for row in before
    ]


async def test_what_is_pruned_is_not_guessed(tmp_path: Path) -> None:
    batches = await make(tmp_path)
    async with running(open_strictly(tmp_path)) as store:
        await store.drop_prefix(place(batches, 6)[1])
        rows = store.terms
    key, value = encode_term(rows[2])
    tamper(tmp_path, b"terms", key, flipped(value, 3))
    open_strictly(tmp_path).close()  # the row before says where it begins
    for term in (1, 2):
        key, value = encode_term(rows[term])
        tamper(tmp_path, b"terms", key, flipped(value, 3))
    with pytest.raises(DamagedRecordError, match=r"of term 2 before \d+ are pruned") as caught:
        open_with_peers(tmp_path)
    assert caught.value.term == 1


async def test_with_a_damaged_end_too_the_last_row_is_not_guessed(tmp_path: Path) -> None:
    batches = await make(tmp_path)
    async with running(open_strictly(tmp_path)) as store:
        end = store.append_position
        await store.ensure_coherent(term=3, base=end, end=None, timestamp_ms=9)
        rows = store.terms
    for term in (2, 3):
        key, value = encode_term(rows[term])
        tamper(tmp_path, b"terms", key, flipped(value, 3))
    spoil(tmp_path, batches, 7)
    with pytest.raises(DamagedRecordError, match="the last batch of the log is damaged, too"):
        open_with_peers(tmp_path)


lengths = st.lists(st.integers(0, 3), min_size=1, max_size=8)


@given(lengths=lengths, start=st.integers(0, 12), data=st.data())
def test_what_is_made_again_is_what_was_there_or_nothing(
    lengths: list[int], start: int, data: st.DataObject
) -> None:
    """Terms with these many batches of one byte; some rows are gone, and some log is pruned."""
    end = sum(lengths)
    start = min(start, end)
    rows: dict[int, TermRow] = {}
    for term, length in enumerate(lengths):
        base = sum(lengths[:term])
        last = term == len(lengths) - 1
        rows[term] = TermRow(term, base, None if last else base + length, 0)
    gone = data.draw(st.sets(st.sampled_from(sorted(rows))))

    def first_of(term: int) -> tuple[int, int] | None:
        row = rows[term]
        begin, stop = max(row.base, start), end if row.end is None else row.end
        return (begin, 0) if begin < stop else None

    left = {term: None if term in gone else row for term, row in rows.items()}
    try:
        made = TermTableRepair(left, first_of, start, end).mended()
    except StorageError:
        assert start > 0
    else:
        assert made == [rows[term] for term in sorted(gone)]


@pytest.mark.parametrize("bit", [0, 10, 40])
async def test_a_key_of_a_term_that_is_damaged_makes_up_no_term(tmp_path: Path, bit: int) -> None:
    await make(tmp_path)
    key = encode_term(TermRow(2, 0, None, 0))[0]
    row = stored(tmp_path, b"terms", key)
    tamper(tmp_path, b"terms", key, None)
    tamper(tmp_path, b"terms", (2 ^ 1 << bit).to_bytes(8, "big"), row)
    with pytest.raises(DamagedRecordError, match="term table"):
        open_with_peers(tmp_path)
