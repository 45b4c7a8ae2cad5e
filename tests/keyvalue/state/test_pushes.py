"""Changes as pushes: what a member encodes is what a client reads."""

from typing import cast

import hiredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.errors import WireError
from quorate.keyvalue.protocol.resp import Reply
from quorate.keyvalue.state.changes import Change, ChangeKind
from quorate.keyvalue.state.pushes import (
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
