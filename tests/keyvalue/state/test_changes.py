"""The latest changes of keys in memory: what is kept, what is returned, and who is woken."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from quorate.keyvalue.state import changes as changes_module
from quorate.keyvalue.state.changes import (
    DELETED,
    FLUSHED,
    Change,
    ChangeKind,
    RecentChanges,
    Row,
    Waiting,
)


def set_at(position: int, key: bytes, value: bytes = b"v") -> Row:
    return key, (value, 0, position, 1)


def filled(*positions: int, key: bytes = b"k") -> RecentChanges:
    """Changes that begin at 0, one batch for each position."""
    recent = RecentChanges(0)
    for position in positions:
        recent.note(set_at(position, key))
        recent.advance(position)
    return recent


def test_changes_of_one_entry_are_marked_but_the_last() -> None:
    recent = RecentChanges(0)
    recent.note(set_at(1, b"a"))
    recent.note(set_at(1, b"b"))
    recent.note((b"a", (b"", 0, 2, DELETED)))
    recent.advance(9)
    assert recent.page(0, b"") == (
        [
            Change(1, ChangeKind.SET, b"a", b"v", 0, more=True),
            Change(1, ChangeKind.SET, b"b", b"v"),
            Change(2, ChangeKind.DELETED, b"a"),
        ],
        9,
    )
    assert recent.after(0, b"a") == [
        Change(1, ChangeKind.SET, b"a", b"v"),
        Change(2, ChangeKind.DELETED, b"a"),
    ]


def test_a_batch_that_is_not_applied_whole_is_not_returned() -> None:
    recent = filled(5)
    recent.note(set_at(6, b"k"))
    assert [change.position for change in recent.after(0, b"")] == [5]
    recent.advance(9)
    assert [change.position for change in recent.after(5, b"")] == [6]


def test_flushall_changes_the_keys_of_every_prefix() -> None:
    recent = RecentChanges(0)
    recent.note((b"", (b"", 0, 3, FLUSHED)))
    recent.advance(3)
    assert recent.page(0, b"any/") == ([Change(3, ChangeKind.FLUSHED, b"")], 3)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([b"a1", b"a2", b"b1"])), max_size=40),
    st.sampled_from([b"", b"a", b"b1", b"c"]),
    st.integers(1, 5),
    st.integers(0, 20),
)
def test_pages_have_whole_entries_and_all_of_them(
    rows: list[tuple[int, bytes]], prefix: bytes, limit: int, after: int
) -> None:
    recent, position = RecentChanges(0), 1
    for step, key in rows:
        position += step
        recent.note(set_at(position, key))
    recent.advance(position + 1)
    whole, end = recent.page(after, prefix, 1000)
    assert end == max(position + 1, after)
    found: list[Change] = []
    while after < end:
        page, after = recent.page(after, prefix, limit)
        found += page
        assert not (page and page[-1].more)
        assert all(change.position <= after for change in page)
    assert found == whole


def test_the_oldest_go_and_a_batch_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_module, "KEPT_CHANGES", 10)
    monkeypatch.setattr(changes_module, "_DROPPED", 3)
    recent = filled(*range(1, 31))
    assert 20 <= recent.start <= 22
    assert [one.position for one in recent.after(recent.start, b"")] == [
        *range(recent.start + 1, 31)
    ]
    for i in range(50):
        recent.note(set_at(40 + i, b"k"))
    recent.advance(100)
    assert recent.start == 30
    assert len(recent.after(30, b"")) == 50


def test_large_values_are_kept_up_to_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_module, "KEPT_CHANGE_BYTES", 1000)
    monkeypatch.setattr(changes_module, "_DROPPED", 1)
    recent = RecentChanges(0)
    for position in range(1, 11):
        recent.note(set_at(position, b"k", bytes(299)))
        recent.advance(position)
    assert recent.start == 7


def waiting_of(recent: RecentChanges, *prefixes: bytes) -> list[Waiting]:
    return [recent.expect(prefix) for prefix in prefixes]


async def test_only_those_are_woken_whose_keys_have_changed() -> None:
    recent = filled(1)
    same, longer, other, every = waiting_of(recent, b"a", b"ab", b"b", b"")
    assert recent.expect(b"a") is same
    recent.advance(5)  # a batch without changes
    recent.note(set_at(6, b"a"))
    recent.advance(9)
    assert [each.woken_at for each in (same, every, longer, other)] == [5, 5, None, None]
    assert recent.expect(b"a") is not same
    recent.note((b"", (b"", 0, 10, FLUSHED)))
    recent.advance(12)
    assert (longer.woken_at, other.woken_at) == (9, 9)
    await trio.lowlevel.checkpoint()


async def test_all_are_woken_when_the_state_is_replaced() -> None:
    recent = filled(1)
    one, two = waiting_of(recent, b"a", b"bb")
    recent.restart(50)
    assert (one.woken_at, two.woken_at) == (1, 1)
    assert (recent.start, recent.position) == (50, 50)
    recent.note(set_at(60, b"bb"))
    recent.advance(60)
    await trio.lowlevel.checkpoint()


def test_a_prefix_for_which_nobody_waits_is_forgotten() -> None:
    recent = filled(1)
    (waiting,) = waiting_of(recent, b"a")
    recent.dismiss(b"a", waiting)
    assert recent.expect(b"a") is not waiting
