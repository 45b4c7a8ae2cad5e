"""Plain values, and the sets and deques of a state."""

import contextlib
from collections import deque
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.objects.tracked import UndoLog
from quorate.pysyncobj.plain import decode_untrusted, encode, taker

KEYS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    cast("st.SearchStrategy[Any]", KEYS | st.floats(allow_nan=False)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.sets(KEYS, max_size=3)
        | st.builds(deque[Any], st.lists(inner, max_size=3), st.none() | st.integers(3, 9))
    ),
    max_leaves=8,
)


@settings(max_examples=30)
@given(VALUES)
def test_a_value_comes_back_as_itself(value: Any) -> None:
    data = encode(value)
    back = decode_untrusted(data)
    assert back == value
    assert type(back) is type(value)
    assert encode(back) == data
    taken = taker(UndoLog())(value)
    assert encode(taken) == data, "a state has the same bytes"


@given(st.binary(max_size=60))
def test_bytes_that_are_no_value_raise_one_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        decode_untrusted(data)


class Color(int):
    pass


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    "value", [object(), Color(1), [lambda: 0], {"x": {1j}}, CYCLE, "\ud800", 1 << 5000]
)
def test_a_value_that_has_no_bytes_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        encode(value)


def test_a_set_of_a_state_does_what_a_set_does_and_takes_it_back() -> None:
    undo = UndoLog()
    names = taker(undo)({"a", "b", "c"})
    undo.begin()
    names.add("d")
    names.update({"e"}, ["f"])
    names.discard("missing")
    names.difference_update({"e"})
    names.intersection_update({"b", "d", "f", "x"})
    names |= {"z"}
    assert list(names) == ["b", "d", "f", "z"]
    assert names.pop() == "b"
    assert names | {"1"} == names.union({"1"}) == {"d", "f", "z", "1"}
    assert names.issubset({"d", "f", "z", "q"})
    assert names.issuperset({"d"})
    assert names.copy() == names
    assert sorted(eval(repr(names))) == ["d", "f", "z"]
    names.clear()
    with pytest.raises(KeyError):
        names.pop()
    with pytest.raises(KeyError):
        names.remove("x")
    undo.roll_back()
    undo.end()
    assert list(names) == ["a", "b", "c"]


def test_a_deque_of_a_state_does_what_a_deque_does_and_takes_it_back() -> None:
    undo = UndoLog()
    plain = deque([1, 2, 3], 3)
    state = taker(undo)(plain)
    undo.begin()
    for each in (plain, state):
        each.append(4)
        each.appendleft(0)
        each.rotate(1)
        each.extendleft([8, 9])
    assert list(state) == list(plain)
    assert [state.popleft(), state.pop()] == [plain.popleft(), plain.pop()]
    undo.roll_back()
    undo.end()
    assert list(state) == [1, 2, 3]
