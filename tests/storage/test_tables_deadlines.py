"""Deadlines: the next one is always known, whatever was set before."""

from hypothesis import given
from hypothesis import strategies as st

from quorate.storage.tables_deadlines import Deadlines

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


def test_what_is_due_comes_in_portions() -> None:
    deadlines = Deadlines({b"%d" % i: i + 1 for i in range(10)})
    assert deadlines.due(8, 3) == [b"0", b"1", b"2"]
    assert deadlines.due(8, 100) == [b"3", b"4", b"5", b"6", b"7"]


def test_clearing_forgets_all() -> None:
    deadlines = Deadlines({b"a": 1})
    deadlines.set(b"b", 2)
    deadlines.clear()
    assert (deadlines.first(), deadlines.take_changes(), deadlines.by_key) == (None, {}, {})
