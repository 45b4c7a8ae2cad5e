"""Deadlines: the next one is always known, whatever was set before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.storage.tables.deadlines import Deadlines

changes = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.integers(0, 9)), max_size=30)


@given(st.dictionaries(st.binary(max_size=2), st.integers(1, 9)), changes, st.integers(0, 10))
def test_the_next_deadline_is_known(
    known: dict[bytes, int], sets: list[tuple[bytes, int]], now: int
) -> None:
    deadlines, model = Deadlines(dict(known)), dict(known)
    for key, deadline in sets:
        deadlines.set(key, deadline)
        model[key] = deadline
        model = {key: deadline for key, deadline in model.items() if deadline}
        assert deadlines.first() == min(model.values(), default=None)
    changed = deadlines.take_changes()
    assert {key: deadline for key, deadline in (known | changed).items() if deadline} == model
    assert deadlines.take_changes() == {}
    overdue = [key for key, deadline in model.items() if deadline <= now]
    assert deadlines.count_due(now) == len(overdue)
    due = deadlines.due(now, 100)
    assert sorted(due) == sorted(overdue)
    assert [model[key] for key in due] == sorted(model[key] for key in due)
    assert deadlines.due(now, 100) == []


def test_setting_again_and_again_takes_no_more_memory() -> None:
    deadlines = Deadlines({})
    for deadline in range(1, 10_000):
        deadlines.set(b"a", deadline)
        deadlines.set(b"b", 20_000 - deadline)
    assert len(deadlines._heap) < 200  # pyright: ignore[reportPrivateUsage]
    assert deadlines.first() == 9999


def test_what_is_due_does_not_depend_on_deadlines_of_before() -> None:
    renewed, fresh = Deadlines({}), Deadlines({b"%d" % i: 50 + i % 7 for i in range(100)})
    for before in (1, 2):
        for i in range(100):
            renewed.set(b"%d" % i, before)
    for i in range(100):
        renewed.set(b"%d" % i, 50 + i % 7)
    while due := fresh.due(60, 9):
        assert renewed.due(60, 9) == due
    assert renewed.due(60, 9) == []


def test_keys_that_are_renewed_leave_no_waste_in_front() -> None:
    deadlines = Deadlines({})
    for now in range(100):
        for i in range(100):
            deadlines.set(b"%d" % i, now + 50)
    assert entries(deadlines) < 110


def test_what_is_due_comes_in_portions() -> None:
    deadlines = Deadlines({b"%d" % i: i + 1 for i in range(10)})
    assert deadlines.due(8, 3) == [b"0", b"1", b"2"]
    assert deadlines.due(8, 100) == [b"3", b"4", b"5", b"6", b"7"]


def entries(deadlines: Deadlines) -> int:
    return len(deadlines._heap) + len(deadlines._old_heap)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("delete", [False, True])
def test_no_change_does_the_work_of_many(*, delete: bool) -> None:
    count = 20_000
    deadlines = Deadlines({b"%d" % i: i + 1 for i in range(count)})
    most, before = 0, entries(deadlines)
    for i in range(count - 1, -1, -1):
        deadlines.set(b"%d" % i, 0 if delete else 2 * count + i)
        most = max(most, before - entries(deadlines))
        before = entries(deadlines)
    assert most < 10
    assert before < 2 * len(deadlines.by_key) + 100
    for _ in range(count // 1000):
        deadlines.first()
    assert deadlines.first() == (None if delete else 2 * count)


def test_waste_is_passed_over_in_portions() -> None:
    count = 5000
    deadlines = Deadlines({b"%d" % i: i + 1 for i in range(2 * count)})
    for i in range(1, count):
        deadlines.set(b"%d" % i, 0)
    deadlines.set(b"0", 0)
    left = entries(deadlines)
    asked, seen = 0, [0]
    while seen[-1] != count + 1:
        seen.append(deadlines.first() or 0)
        assert left - entries(deadlines) <= 1000
        left = entries(deadlines)
        asked += 1
    assert asked > 4
    assert seen == sorted(seen), "earlier, never later"


def test_those_that_are_due_are_counted_once_and_then_kept_count_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deadlines = Deadlines({b"%d" % i: i + 1 for i in range(100)})
    assert deadlines.count_due(50) == 50
    monkeypatch.setattr(deadlines, "sum", pytest.fail, raising=False)
    deadlines.set(b"0", 0)
    deadlines.set(b"99", 49)
    deadlines.set(b"98", 51)
    deadlines.set(b"1", 60)
    assert deadlines.count_due(50) == 49
    monkeypatch.undo()
    assert deadlines.count_due(51) == sum(one <= 51 for one in deadlines.by_key.values())


def test_the_memory_of_deadlines_is_freed_step_by_step() -> None:
    deadlines = Deadlines({b"%d" % i: i + 1 for i in range(3000)})
    for i in range(2000):
        deadlines.set(b"%d" % i, 0)
    left = entries(deadlines) + len(deadlines.by_key)
    for _ in deadlines.dispose():
        now = entries(deadlines) + len(deadlines.by_key)
        assert left - now <= 512
        left = now
    assert left == 0


def test_keys_that_are_held_back_are_due_later_and_do_not_count() -> None:
    deadlines = Deadlines({b"%d" % i: 10 + i for i in range(10)})
    held = {b"0", b"2", b"4"}
    assert deadlines.due(30, 3, held.__contains__) == [b"1", b"3", b"5"]
    assert deadlines.count_due(30) == 10
    assert deadlines.due(30, 9, held.__contains__) == [b"6", b"7", b"8", b"9"]
    assert deadlines.first() is None
    assert deadlines.due(30, 9, held.__contains__) == []
    assert deadlines.count_due(30) == 10, "nobody has deleted them"
    deadlines.set(b"2", 0)
    deadlines.set(b"4", 40)
    deadlines.unpark()
    assert deadlines.first() == 10
    assert deadlines.due(30, 9) == [b"0"]
    assert deadlines.due(50, 9) == [b"4"]
    assert deadlines.due(50, 9) == []
