"""Sets of slots, their ranges and their texts."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.errors import ConfigurationError
from quorate.keyvalue.slots.hashing import SLOTS, key_slot
from quorate.keyvalue.slots.ranges import (
    ALL_SLOTS,
    count_of,
    parse_slots_untrusted,
    ranges_of,
    slots_of,
    text_of,
)

slot = st.one_of(st.integers(0, 20), st.integers(SLOTS - 20, SLOTS - 1), st.integers(0, SLOTS - 1))


@given(st.sets(slot))
def test_a_set_is_its_ranges_and_its_text(members: set[int]) -> None:
    slots = sum(1 << each for each in members)
    ranges = ranges_of(slots)
    assert [n for first, last in ranges for n in range(first, last + 1)] == sorted(members)
    assert all(end + 1 < begin for (_, end), (begin, _) in pairwise(ranges))
    assert slots_of(ranges) == slots
    assert parse_slots_untrusted(text_of(slots)) == slots
    assert count_of(slots) == len(members)


def test_texts_of_sets() -> None:
    assert text_of(ALL_SLOTS) == "0-16383"
    assert text_of(0) == ""
    assert text_of(slots_of([(0, 4095), (5000, 5000)])) == "0-4095,5000"


@pytest.mark.parametrize(
    "text", ["x", "-1", "1-", "2-1", "16384", "0-16384", "1,1", "1-5,5-6", "1,", ",", "1" * 200_000]
)
def test_what_is_no_set_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="expected slots from 0 to 16383"):
        parse_slots_untrusted(text)


@pytest.mark.parametrize(
    ("key", "same"),
    [
        (b"{a}b", b"a"),
        (b"x{a}b", b"a"),
        (b"x{a}{b}", b"a"),
        (b"{{a}}", b"{a"),
        (b"a{", b"a{"),
    ],
)
def test_only_the_first_braces_count(key: bytes, same: bytes) -> None:
    assert key_slot(key) == key_slot(same)


def test_slots_are_those_of_redis() -> None:
    known = {b"123456789": 12739, b"": 0, b"foo": 12182, b"{}foo": 9500}
    assert {key: key_slot(key) for key in known} == known
