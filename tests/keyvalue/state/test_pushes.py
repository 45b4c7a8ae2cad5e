"""Changes as pushes: what a member encodes is what a client reads."""

# pyright: reportPrivateUsage=false

from typing import cast

import hiredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.client.dialling import _MAX_VALUE_BYTES as MAX_ANSWER_BYTES
from quorate.errors import WireError
from quorate.keyvalue.limits import LARGE_BYTES, MAX_VALUE_BYTES, MAX_WORK, work_of_bytes
from quorate.keyvalue.protocol.resp import Reply
from quorate.keyvalue.state.changes import Change, ChangeKind
from quorate.keyvalue.state.pushes import (
    MAX_ENTRY_BYTES,
    PART_BYTES,
    Changes,
    Ended,
    Lost,
    Progress,
    encode_ended,
    encode_entries,
    encode_lost,
    encode_progress,
    parse_push_untrusted,
)
from quorate.node.config.limits import _MAX_BYTES as MAX_REQUEST_BYTES

POSITION = st.integers(0, 2**63 - 1)
TEXT = st.text(st.characters(codec="utf-8"))
SET = st.tuples(st.just(ChangeKind.SET), st.binary(), st.binary(), POSITION)
GONE = st.tuples(
    st.sampled_from([kind for kind in ChangeKind if kind is not ChangeKind.SET]),
    st.binary(),
    st.none(),
    st.just(0),
)
ENTRIES = st.dictionaries(POSITION, st.lists(SET | GONE, min_size=1), max_size=5)
VALUES: st.SearchStrategy[Reply] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.binary() | st.sampled_from([b"set", b"flushed"]),
    lambda inner: cast("st.SearchStrategy[Reply]", st.lists(inner, max_size=4)),
)
NAMES = st.sampled_from([b"quorate.watch", *(b"quorate.watch." + end for end in (b"progress",))])


def decoded(data: bytes) -> list[Reply]:
    reader = hiredis.Reader()
    reader.feed(data)
    push = reader.gets()
    assert isinstance(push, hiredis.PushNotification)
    assert not reader.has_data()
    return cast("list[Reply]", list(push))


@settings(max_examples=40)
@given(ENTRIES, POSITION)
def test_entries_come_back_whole_and_in_order(
    entries: dict[int, list[tuple[ChangeKind, bytes, bytes | None, int]]], watch: int
) -> None:
    changes = {
        position: [
            Change(position, *fields, more=at < len(entries[position]))
            for at, fields in enumerate(entries[position], 1)
        ]
        for position in sorted(entries)
    }
    pushes = encode_entries(watch, [change for entry in changes.values() for change in entry])
    assert [(position, parse_push_untrusted(decoded(push))) for position, push in pushes] == [
        (position, Changes(watch, entry)) for position, entry in changes.items()
    ]


@settings(max_examples=40)
@given(POSITION, POSITION, POSITION, TEXT)
def test_the_other_pushes_come_back(watch: int, after: int, oldest: int, text: str) -> None:
    for push, expected in (
        (encode_progress(watch, after), Progress(watch, after)),
        (encode_lost(watch, after, oldest, text), Lost(watch, after, oldest, text)),
        (encode_ended(watch, after, text), Ended(watch, after, text)),
    ):
        assert parse_push_untrusted(decoded(push)) == expected


@settings(max_examples=40)
@given(st.tuples(NAMES).flatmap(lambda name: st.lists(VALUES, max_size=9).map(list(name).__add__)))
def test_a_malformed_push_of_a_watch_is_an_error(push: list[Reply]) -> None:
    try:
        found = parse_push_untrusted(push)
    except WireError:
        return
    assert isinstance(found, Changes | Progress)


@pytest.mark.parametrize("push", [[], [1], [b"message", b"a"], [None, b"quorate.watch"]])
def test_other_pushes_are_none_of_ours(push: list[Reply]) -> None:
    assert parse_push_untrusted(push) is None


def test_a_push_takes_no_more_than_a_part_and_a_change_and_a_client_takes_that() -> None:
    values = (300, PART_BYTES // 2, PART_BYTES, MAX_VALUE_BYTES, 10, PART_BYTES - 100, 200)
    entry = [Change(7, ChangeKind.SET, b"k", bytes(size), 0, more=True) for size in values]
    pushes = [*encode_entries(1, [*entry, Change(7, ChangeKind.DELETED, b"k")])]
    assert [position for position, _ in pushes] == [None, None, None, 7]
    assert max(len(push) for _, push in pushes) < PART_BYTES + MAX_VALUE_BYTES + 1000
    # A key is a part of a request.
    assert PART_BYTES + MAX_VALUE_BYTES + MAX_REQUEST_BYTES + 1000 < MAX_ANSWER_BYTES


def test_a_client_gathers_the_largest_entry_of_a_request() -> None:
    # What is not in the request is made or copied from the tables, at a cost per byte.
    cheapest = min(work_of_bytes(size) / size for size in (LARGE_BYTES - 1, LARGE_BYTES))
    written = MAX_WORK / cheapest + MAX_VALUE_BYTES + MAX_REQUEST_BYTES
    assert written < 0.42 * 2**30 < MAX_ENTRY_BYTES
