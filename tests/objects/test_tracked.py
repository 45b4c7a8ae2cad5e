"""Tracked containers behave like plain ones, and take back exactly what was done."""

from typing import Any, Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.objects.shapes import Shape
from quorate.objects.tracked import UndoLog

SMALL = st.integers(-6, 6)
ITEMS = st.lists(SMALL, max_size=4)
SLICES = st.builds(slice, st.none() | SMALL, st.none() | SMALL)

LIST_STEPS = st.one_of(
    st.tuples(st.just("append"), SMALL),
    st.tuples(st.just("insert"), SMALL, SMALL),
    st.tuples(st.just("pop"), SMALL),
    st.tuples(st.just("remove"), SMALL),
    st.tuples(st.just("extend"), ITEMS),
    st.tuples(st.sampled_from(["sort", "reverse", "clear"])),
    st.tuples(st.just("__setitem__"), SMALL, SMALL),
    st.tuples(st.just("__setitem__"), SLICES, ITEMS),
    st.tuples(st.just("__delitem__"), SMALL | SLICES),
    st.tuples(st.just("__imul__"), st.integers(0, 3)),
)
DICT_STEPS = st.one_of(
    st.tuples(st.just("__setitem__"), SMALL, SMALL),
    st.tuples(st.just("setdefault"), SMALL, SMALL),
    st.tuples(st.just("pop"), SMALL),
    st.tuples(st.just("pop"), SMALL, SMALL),
    st.tuples(st.just("__delitem__"), SMALL),
    st.tuples(st.just("update"), st.dictionaries(SMALL, SMALL, max_size=3)),
    st.tuples(st.sampled_from(["popitem", "clear"])),
)


def did(target: Any, step: tuple[Any, ...]) -> object:
    """Do a step; return its result, or the class of its error."""
    name, *arguments = step
    try:
        result = getattr(target, name)(*arguments)
    except (IndexError, ValueError, KeyError) as error:
        return type(error)
    return None if result is target else result


def check(start: Any, declared: Any, steps: list[tuple[Any, ...]]) -> None:
    undo = UndoLog()
    plain, tracked = start.copy(), Shape(declared, "it", undo).take(start)
    undo.begin()
    for step in steps:
        assert did(tracked, step) == did(plain, step)
        assert tracked == plain
        assert list(tracked) == list(plain), "in the same order"
    undo.roll_back()
    undo.end()
    assert tracked == start


@settings(max_examples=60)
@given(ITEMS, st.lists(LIST_STEPS, max_size=6))
def test_a_list_does_what_a_plain_one_does_and_takes_it_back(
    start: list[int], steps: list[tuple[Any, ...]]
) -> None:
    check(start, list[int], steps)


@settings(max_examples=60)
@given(st.dictionaries(SMALL, SMALL, max_size=4), st.lists(DICT_STEPS, max_size=6))
def test_a_dict_does_what_a_plain_one_does_and_takes_it_back(
    start: dict[int, int], steps: list[tuple[Any, ...]]
) -> None:
    check(start, dict[int, int], steps)


def test_optional_and_nested_parts_are_tracked() -> None:
    undo = UndoLog()
    shape = Shape(dict[str, list[dict[Literal["a"], int]] | None], "it", undo)
    state = shape.take({"x": [{"a": 1}], "y": None})
    undo.begin()
    state["x"][0]["a"] = 2
    state["y"] = [{}]
    state["y"].append({"a": 3})
    assert state == {"x": [{"a": 2}], "y": [{}, {"a": 3}]}
    undo.roll_back()
    undo.end()
    assert state == {"x": [{"a": 1}], "y": None}
    assert shape.codec.decode_untrusted(shape.codec.pack(state)) == state
