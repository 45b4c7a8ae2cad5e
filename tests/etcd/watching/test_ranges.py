"""Ranges of keys, compared with a list of all of them."""

from hypothesis import given
from hypothesis import strategies as st

from quorate.etcd.watching.ranges import MAX_DEPTH, Range, Ranges

KEYS = st.binary(max_size=2).map(lambda key: bytes(byte % 4 for byte in key))
RANGES = st.tuples(KEYS, st.none() | KEYS).filter(lambda r: r[1] is None or r[0] < r[1])


@given(st.lists(st.tuples(st.booleans(), RANGES), max_size=12), st.lists(KEYS, max_size=3))
def test_a_key_is_found_in_the_ranges_that_contain_it(
    steps: list[tuple[bool, Range]], keys: list[bytes]
) -> None:
    ranges, model = Ranges(), set[Range]()
    for add, each in steps:
        if add and each not in model:
            ranges.add(each)
            model.add(each)
        elif not add and each in model:
            ranges.remove(each)
            model.remove(each)
        for key in keys:
            expected = {r for r in model if r[0] <= key and (r[1] is None or key < r[1])}
            found = [*ranges.containing(key)]
            assert len(found) == len(expected)
            assert set(found) == expected


def test_ranges_inside_one_another_take_bounded_memory() -> None:
    ranges = Ranges()
    nested: list[Range] = [(b"%04d" % n, b"%04d" % (9999 - n)) for n in range(2000)]
    for each in nested:
        ranges.add(each)
    assert len([*ranges.containing(b"5000")]) == 2000
    assert len([*ranges.containing(b"0000")]) == 1
    held = ranges._segments.values()  # pyright: ignore[reportPrivateUsage]
    assert sum(map(len, held)) < 3 * MAX_DEPTH**2
    for each in nested:
        ranges.remove(each)
    assert [*ranges.containing(b"5000")] == []
