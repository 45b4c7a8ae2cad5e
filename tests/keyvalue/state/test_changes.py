"""The latest changes of keys in memory: what is kept, what is returned, and who is woken."""

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from quorate.keyvalue.state import changes as changes_module
from quorate.keyvalue.state.changes import (
    DELETED,
    FLUSHED,
    PAGE_BYTES,
    Change,
    ChangeKind,
    RecentChanges,
    Row,
    Waiting,
)


def set_at(position: int, key: bytes, value: bytes = b"v") -> Row:
    return key, (value, 0, position, 1)


def note(recent: RecentChanges, *rows: Row) -> None:
    for row in rows:
        recent.note(*row)


def filled(*positions: int, key: bytes = b"k") -> RecentChanges:
    """Changes that begin at 0, one batch for each position."""
    recent = RecentChanges(0)
    for position in positions:
        note(recent, set_at(position, key))
        recent.advance(position)
    return recent


def test_changes_of_one_entry_are_marked_but_the_last() -> None:
    recent = RecentChanges(0)
    note(recent, set_at(1, b"a"))
    note(recent, set_at(1, b"b"))
    recent.note(b"a", (b"", 0, 2, DELETED))
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
    note(recent, set_at(6, b"k"))
    assert [change.position for change in recent.after(0, b"")] == [5]
    recent.advance(9)
    assert [change.position for change in recent.after(5, b"")] == [6]


def test_flushall_changes_the_keys_of_every_prefix() -> None:
    recent = RecentChanges(0)
    recent.note(b"", (b"", 0, 3, FLUSHED))
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
        note(recent, set_at(position, key))
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


def test_the_oldest_go_and_an_entry_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_module, "KEPT_CHANGES", 10)
    recent = filled(*range(1, 31))
    assert recent.start == 20
    assert [one.position for one in recent.after(20, b"")] == [*range(21, 31)]
    note(recent, set_at(40, b"k"), *(set_at(41, b"%d" % i) for i in range(50)))
    recent.advance(100)
    assert recent.start == 40
    assert len(recent.after(40, b"")) == 50


def test_large_values_are_kept_up_to_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes_module, "KEPT_CHANGE_BYTES", 1000)
    recent = RecentChanges(0)
    for position in range(1, 11):
        note(recent, set_at(position, b"k", bytes(299)))
        recent.advance(position)
    assert recent.start == 7
    note(recent, set_at(11, b"k", bytes(1500)))
    recent.advance(11)
    assert recent.start == 10  # the newest one stays
    assert [one.position for one in recent.after(10, b"")] == [11]


def test_of_an_entry_only_the_last_change_of_each_key_is_returned() -> None:
    recent = RecentChanges(0)
    note(recent, set_at(1, b"", b"1"), set_at(1, b"a", b"2"), (b"", (b"", 0, 1, FLUSHED)))
    note(recent, set_at(1, b"", b"3"), set_at(1, b"b", b"4"), set_at(1, b"", b"5"))
    note(recent, set_at(2, b"", b"6"))
    recent.advance(9)
    found = [(one.position, one.kind.value, one.key, one.value) for one in recent.after(0, b"")]
    assert found == [
        (1, "flushed", b"", None),
        (1, "set", b"b", b"4"),
        (1, "set", b"", b"5"),
        (2, "set", b"", b"6"),
    ]
    assert [one.more for one in recent.after(0, b"")] == [True, True, False, False]


def memory_of(recent: RecentChanges) -> int:
    rows = recent._rows  # pyright: ignore[reportPrivateUsage]
    return sum(len(record[0]) for _, record in rows)


@pytest.mark.parametrize("changes", [1, 1000])
def test_a_batch_of_short_commands_with_long_values_takes_no_more_memory(
    monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    """APPEND of one byte makes a value of 100 KB: as one entry, or as many of them."""
    monkeypatch.setattr(changes_module, "KEPT_CHANGE_BYTES", 1 << 20)
    recent = filled(1)
    for i in range(2000):
        note(recent, set_at(2 + i // changes, b"%d" % (i % 3), bytes(100_000 + i)))
        assert memory_of(recent) <= (1 << 20) * 5 // 4
    assert (recent.start <= 1, recent.after(1, b"")) == (True, [])  # the batch is not complete
    recent.advance(5000)
    assert memory_of(recent) <= 1 << 20
    newest = 2 + 1999 // changes
    assert recent.start < newest
    last = [one for one in recent.after(recent.start, b"") if one.position == newest]
    assert [len(one.value or b"") for one in last[-3:]] == [101_997, 101_998, 101_999][-len(last) :]


async def test_all_are_woken_by_a_batch_that_is_not_kept_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(changes_module, "KEPT_CHANGE_BYTES", 1000)
    recent = filled(1)
    note(recent, set_at(2, b"a", bytes(700)), set_at(3, b"b", bytes(700)))
    (waiting,) = waiting_of(recent, b"a")
    recent.advance(9)
    assert (waiting.woken_at, recent.start) == (1, 2)
    await trio.lowlevel.checkpoint()


def test_a_page_ends_after_some_bytes_but_not_within_an_entry() -> None:
    recent, value = RecentChanges(0), bytes(PAGE_BYTES // 2)
    for position in (1, 1, 1, 2, 3, 4):
        note(recent, set_at(position, b"a%d" % len(recent._rows), value))  # pyright: ignore[reportPrivateUsage]
        note(recent, set_at(position, b"b"))
    recent.advance(9)
    sizes: list[tuple[int, int]] = []
    after = 0
    while after < 9:
        page, after = recent.page(after, b"a")
        sizes.append((len(page), after))
    assert sizes == [(3, 1), (2, 3), (1, 9)]


def waiting_of(recent: RecentChanges, *prefixes: bytes) -> list[Waiting]:
    return [recent.expect(prefix) for prefix in prefixes]


async def test_only_those_are_woken_whose_keys_have_changed() -> None:
    recent = filled(1)
    same, longer, other, every = waiting_of(recent, b"a", b"ab", b"b", b"")
    assert recent.expect(b"a") is same
    recent.advance(5)  # a batch without changes
    note(recent, set_at(6, b"a"))
    recent.advance(9)
    assert [each.woken_at for each in (same, every, longer, other)] == [5, 5, None, None]
    assert recent.expect(b"a") is not same
    recent.note(b"", (b"", 0, 10, FLUSHED))
    recent.advance(12)
    assert (longer.woken_at, other.woken_at) == (9, 9)
    await trio.lowlevel.checkpoint()


async def test_long_prefixes_that_begin_alike_wait_as_one() -> None:
    recent, long = filled(1), b"x" * 64
    some = waiting_of(recent, *(b"x" * length for length in range(1, 1000)))
    assert len({*map(id, some)}) == 64
    note(recent, set_at(6, long))
    recent.advance(9)
    assert all(each.woken_at == 1 for each in some)
    recent.dismiss(long + b"y", recent.expect(long + b"z"))
    assert not recent._waiting  # pyright: ignore[reportPrivateUsage]
    await trio.lowlevel.checkpoint()


async def test_all_are_woken_when_the_state_is_replaced() -> None:
    recent = filled(1)
    one, two = waiting_of(recent, b"a", b"bb")
    recent.restart(50)
    assert (one.woken_at, two.woken_at) == (1, 1)
    assert (recent.start, recent.position) == (50, 50)
    note(recent, set_at(60, b"bb"))
    recent.advance(60)
    await trio.lowlevel.checkpoint()


def test_a_prefix_for_which_nobody_waits_is_forgotten() -> None:
    recent = filled(1)
    (waiting,) = waiting_of(recent, b"a")
    recent.dismiss(b"a", waiting)
    assert recent.expect(b"a") is not waiting


def test_a_member_that_rests_keeps_nothing_and_knows_from_where_it_does() -> None:
    recent = RecentChanges(0)
    put = recent.noting(lambda _key, _record: None)
    recent.rest()
    put(*set_at(3, b"a"))
    recent.note(*set_at(4, b"b"))
    recent.advance(9)
    assert (recent.start, recent.after(4, b"")) == (4, [])
    recent.keep()
    put(*set_at(12, b"c"))
    recent.advance(19)
    assert recent.start == 4
    assert [change.key for change in recent.after(4, b"")] == [b"c"]


def test_of_a_batch_in_whose_midst_keeping_begins_nothing_counts_as_kept() -> None:
    recent = RecentChanges(0)
    recent.rest()
    recent.note(*set_at(3, b"a"))
    recent.keep()
    waiting = recent.expect(b"z")
    recent.note(*set_at(4, b"b"))
    assert recent.start == 0
    recent.advance(9)
    assert recent.start == 3
    assert waiting.woken_at == 0
