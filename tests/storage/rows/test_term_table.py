"""The term table's rules, on rows alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.errors import DamagedRecordError
from quorate.storage import SnapshotRow, TermRow
from quorate.storage.rows.term_table import (
    cut_at,
    decode_snapshot_untrusted,
    decode_term_untrusted,
    encode_snapshot,
    encode_term,
    incoherences,
    row_of,
    term_at,
    with_end,
    with_term,
)

Rows = tuple[TermRow, ...]
ROWS: Rows = (
    TermRow(0, 0, 320, 1),
    TermRow(1, 320, 320, 2),
    TermRow(2, 320, 640, 3),
    TermRow(3, 640, None, 4),
)


def test_the_first_term_may_be_any() -> None:
    assert with_term((), TermRow(2, 0, None, 9)) == (TermRow(2, 0, None, 9),)


@pytest.mark.parametrize("term", [4, 6, 2**62])
def test_a_new_term_closes_the_open_one_and_skipped_terms_have_no_row(term: int) -> None:
    rows = with_term(ROWS, TermRow(term, 960, None, 9))
    assert rows == (*ROWS[:3], TermRow(3, 640, 960, 4), TermRow(term, 960, None, 9))
    assert row_of(rows, term) is rows[-1]
    assert row_of(rows, term - 1) is (rows[3] if term == 4 else None)
    assert with_end(rows, term, 992)[-1] == TermRow(term, 960, 992, 9)


def test_a_term_that_was_skipped_is_not_closed() -> None:
    rows = with_term(ROWS, TermRow(6, 960, None, 9))
    assert with_term(rows, TermRow(5, 960, 960, 9)) == rows


def test_a_term_that_is_there_only_gets_its_end() -> None:
    assert with_term(ROWS, TermRow(3, 640, None, 9)) == ROWS
    assert with_term(ROWS, TermRow(2, 320, 640, 9)) == ROWS
    assert with_term(ROWS, TermRow(3, 640, 960, 9)) == (*ROWS[:3], TermRow(3, 640, 960, 4))
    assert with_term(ROWS[2:], TermRow(0, 0, 320, 9)) == ROWS[2:]


@pytest.mark.parametrize(
    "row",
    [
        TermRow(4, 608, None, 0),  # begins before term 3 does
        TermRow(4, 960, 928, 0),
        TermRow(2, 320, 608, 0),
        TermRow(3, 640, 608, 0),
    ],
)
def test_rows_that_contradict_are_bugs(row: TermRow) -> None:
    with pytest.raises(AssertionError):
        with_term(ROWS, row)


def test_a_term_begins_where_the_closed_one_before_it_ends() -> None:
    with pytest.raises(AssertionError, match="does not begin at the end"):
        with_term(ROWS[:3], TermRow(3, 672, None, 0))


def test_closing_a_term() -> None:
    assert with_end(ROWS, 3, 960) == (*ROWS[:3], TermRow(3, 640, 960, 4))
    assert with_end(ROWS, 2, 640) == ROWS
    with pytest.raises(AssertionError):
        with_end(ROWS, 4, 960)
    with pytest.raises(AssertionError):
        with_end((), 0, 0)


@pytest.mark.parametrize(
    ("position", "left"),
    [
        (960, ROWS),
        (640, ROWS),
        (608, (*ROWS[:2], TermRow(2, 320, None, 3))),
        (320, (*ROWS[:2], TermRow(2, 320, None, 3))),
        (288, (TermRow(0, 0, None, 1),)),
        (0, (TermRow(0, 0, None, 1),)),
    ],
)
def test_truncation_drops_terms_behind_and_opens_the_last(position: int, left: Rows) -> None:
    assert cut_at(ROWS, position) == left


def test_truncation_at_the_end_of_a_closed_term_opens_it() -> None:
    assert cut_at(ROWS[:2], 320) == (ROWS[0], TermRow(1, 320, None, 2))
    assert cut_at(ROWS[:3], 640) == (*ROWS[:2], TermRow(2, 320, None, 3))


def test_truncation_may_drop_empty_terms_at_the_cut() -> None:
    assert cut_at(ROWS, 640, last_term=2) == (*ROWS[:2], TermRow(2, 320, None, 3))
    assert cut_at(ROWS, 320, last_term=1) == (ROWS[0], TermRow(1, 320, None, 2))
    assert cut_at(ROWS, 320, last_term=0) == (TermRow(0, 0, None, 1),)
    assert cut_at(ROWS, 0, last_term=-1) == ()


@pytest.mark.parametrize(("position", "last_term"), [(640, 1), (960, 2), (352, 0), (32, -1)])
def test_a_term_with_batches_that_are_kept_is_not_dropped(position: int, last_term: int) -> None:
    with pytest.raises(AssertionError, match="begins before"):
        cut_at(ROWS, position, last_term=last_term)


@pytest.mark.parametrize(
    ("position", "term"), [(0, 0), (319, 0), (320, 2), (639, 2), (640, 3), (10**9, 3)]
)
def test_the_term_of_a_position(position: int, term: int) -> None:
    row = term_at(ROWS, position)
    assert row is not None
    assert row.term == term
    assert row_of(ROWS, term) is row


def test_positions_and_terms_outside_have_no_row() -> None:
    assert term_at(ROWS[2:], 319) is None
    assert term_at(ROWS[:3], 640) is None
    assert term_at((), 0) is None
    assert row_of(ROWS[2:], 1) is None
    assert row_of(ROWS, 4) is None
    assert row_of((), 0) is None


def test_rows_that_do_not_ascend_or_meet_are_incoherent() -> None:
    assert list(incoherences((ROWS[0], ROWS[3]))) == [(3, "it begins at 640, term 0 ends at 320")]
    twice = (ROWS[0], TermRow(0, 320, None, 2))
    assert list(incoherences(twice)) == [(0, "it follows term 0")]
    assert list(incoherences((ROWS[0], TermRow(2**62, 320, None, 2)))) == []


steps = st.lists(
    st.tuples(st.sampled_from(["term", "cut", "close"]), st.integers(0, 3), st.integers(0, 9)),
    max_size=30,
)


@given(steps)
def test_rows_stay_coherent_whatever_happens(steps: list[tuple[str, int, int]]) -> None:
    rows: Rows = ()
    end = 0
    for what, terms, blocks in steps:
        if what == "cut":
            end = max(0, end - 32 * blocks)
            rows = cut_at(rows, end)
            assert all(row.base <= end for row in rows)
        elif what == "close" and rows:
            end = max(end, rows[-1].base)
            if rows[-1].end is None:
                rows = with_end(rows, rows[-1].term, end)
        elif what == "term":
            last = rows[-1].term if rows else -1
            rows = with_term(rows, TermRow(last + 1 + terms, end, None, 0))
            end += 32 * blocks
        assert list(incoherences(rows)) == []
        assert all(row.end is not None for row in rows[:-1])


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**62), st.none() | st.integers(0, 2**62))
def test_rows_survive_their_encoding(term: int, base: int, end: int | None) -> None:
    row = TermRow(term, base, end, 5)
    assert decode_term_untrusted(1, *encode_term(row)) == row
    snapshot = SnapshotRow(base, term, 6, "snapshot é")
    assert decode_snapshot_untrusted(1, *encode_snapshot(snapshot)) == snapshot


@given(st.binary(max_size=40), st.binary(max_size=60))
def test_arbitrary_rows_are_damage_and_nothing_else(key: bytes, value: bytes) -> None:
    with pytest.raises(DamagedRecordError):
        decode_term_untrusted(1, key, value)
    with pytest.raises(DamagedRecordError):
        decode_snapshot_untrusted(1, key, value)


def test_a_row_under_a_foreign_key_is_damage() -> None:
    _, value = encode_term(ROWS[0])
    key, _ = encode_term(ROWS[2])
    with pytest.raises(DamagedRecordError) as caught:
        decode_term_untrusted(7, key, value)
    assert (caught.value.member_id, caught.value.term) == (7, 2)
