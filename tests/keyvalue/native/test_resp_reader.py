"""The compiled reader and its twin in Python: the same bytes give the same commands and errors."""

import sys
import tracemalloc
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quorate.keyvalue.limits import MAX_ARGUMENTS, RUN_COMMANDS
from quorate.keyvalue.native.resp_reader import (
    NATIVE,
    count_in_python,
    count_untrusted,
    cut_in_python,
    cut_replies_untrusted,
    owned_in_python,
    owned_untrusted,
    split_in_python,
    split_untrusted,
)
from quorate.keyvalue.protocol.parser import CommandParser, ParserLimits
from quorate.keyvalue.slots.hashing import SLOTS, key_slot
from tests.support.client_port_world import command

pytestmark = pytest.mark.skipif(not NATIVE, reason="keyvalue/native/resp_reader.c was not built")

PIECES = (
    b"*1\r\n *2\r\n *0\r\n *01\r\n *-1\r\n *999999999\r\n *1000000000\r\n *4294967297\r\n "
    b"*99999999999999999999\r\n * *\r\n *1\n *1\r *+1\r\n $0\r\n\r\n $1\r\na\r\n $01\r\na\r\n "
    b"$-1\r\n $1\r\nab\r\n $3\r\nfoo $999999999\r\n $1000000000\r\n $18446744073709551615\r\n $ "
    b":1\r\n +a\r\n +OK\r\n -ERR\ra\r\n _\r\n +\n *1\r\n*1\r\n$1\r\na\r\n PING\r\n \r\n \n \0"
).split(b" ")
CALLS = (
    *(command("SET", "a", "1"), command("set", "b", "\r\n*3"), command("GET", "a")),
    *(command("gEt", "b"), command("SET", "a", "1", "NX"), command("SET", "a")),
    *(command("GET", "a", "b"), command("GEX", "a"), command("PING"), command("GETS", "a")),
)
CORPUS = (
    *(b"", *PIECES, *CALLS, b"".join(CALLS), b"".join(PIECES)),
    *(command("GET", "a") * n for n in (RUN_COMMANDS, RUN_COMMANDS + 1)),
    *(command("SET", "a", "1") * n for n in (RUN_COMMANDS, RUN_COMMANDS + 1)),
    *(command(*[b""] * n) for n in (3, 4, MAX_ARGUMENTS, MAX_ARGUMENTS + 1)),
    *(command("SET", "key", b"\r\nvalue\r\n")[:n] for n in range(40)),
    *(command("GET", key) for key in ("{a}x", "x{a}", "{}a", "{a", "}{a}", "{{a}}", "{a}{b}", "{")),
    *(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$999999999\r\n", command("GET", "a") + b"\0"),
)
# Each state of a slot, and neighbours that differ.
STATES = bytearray(slot % 3 for slot in range(SLOTS))
OWNED_ALL = bytearray(b"\1" * SLOTS)
words = st.lists(st.one_of(st.binary(max_size=12), st.sampled_from(PIECES)), min_size=1, max_size=5)
piece = st.one_of(st.sampled_from([*PIECES, *CALLS]), words.map(lambda one: command(*one)))
streams = st.lists(st.one_of(piece, st.binary(max_size=6)), max_size=10).map(b"".join)


def compare(data: bytes) -> None:
    """Give data to each function and to its twin."""
    for most in (0, 1, 3, MAX_ARGUMENTS):
        assert split_untrusted(data, most) == split_in_python(data, most)
    assert count_untrusted(data) == count_in_python(data)
    for states in (STATES, OWNED_ALL):
        assert owned_untrusted(data, states) == owned_in_python(data, states)
    for counts in ([], [0], [1], [1, 0, 2], [3, 1], [100]):
        assert cut_replies_untrusted(data, counts) == cut_in_python(data, counts)


@pytest.mark.parametrize("data", CORPUS, ids=range(len(CORPUS)))
def test_the_corpus_gives_the_same(data: bytes) -> None:
    compare(data)


@given(streams, st.integers(0, 200), st.sampled_from(b"\r\n*$0129-+x\0\xff"))
def test_any_bytes_give_the_same_whole_or_damaged(data: bytes, at: int, other: int) -> None:
    compare(data)
    compare(data[:at] + bytes([other]) + data[at + 1 :])
    compare(data[:at] + data[at + 1 :])


@given(st.binary(max_size=40) | st.text("{}ab", max_size=8).map(str.encode))
def test_a_key_is_owned_by_the_state_of_its_slot_alone(key: bytes) -> None:
    states = bytearray(SLOTS)
    states[key_slot(key)] = 1
    assert owned_untrusted(command("GET", key) + command("SET", key, "1"), states)
    for other in (0, 2):
        states[key_slot(key)] = other
        assert not owned_untrusted(command("GET", key), states)


def taken(chunks: Sequence[bytes]) -> list[object]:
    """What a connection's parser makes of each chunk; nothing after a failure."""
    parser, out = CommandParser(ParserLimits()), list[object]()
    for chunk in chunks:
        out += [parser.take_untrusted(chunk), parser.waiting_bytes, str(parser.failure)]
        if parser.failure is not None:
            break
    return out


@given(streams, st.lists(st.integers(0, 200), max_size=5))
@example(command("SET", "a", "*123456789\r\n") * 3, [50])
@example(command("PING") + b"*0\r\n" + command("PING") + b"PING\r\n*1\r\n$4\r\nPIN", [])
def test_a_connection_gets_the_same_commands_and_errors(data: bytes, places: list[int]) -> None:
    ends = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    chunks = [data[ends[n] : ends[n + 1]] for n in range(len(ends) - 1)]
    compiled = taken(chunks)
    with mock.patch("quorate.keyvalue.protocol.parser.split_untrusted", split_in_python):
        assert taken(chunks) == compiled


@pytest.mark.parametrize("split", [split_untrusted, split_in_python], ids=["compiled", "python"])
def test_a_claim_in_a_header_allocates_nothing(split: object) -> None:
    assert callable(split)
    tracemalloc.start()
    try:
        for claim in (b"*999999999\r\n", b"*999999999\r\n$999999999\r\n", b"*1\r\n$999999999\r\n"):
            assert split(claim * 3, sys.maxsize) == ([], 0)
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()


def test_the_compiled_functions_refuse_other_types() -> None:
    values: list[Any] = ["text", bytearray(b"*1"), None]
    for wrong in values:
        for call in (
            lambda wrong=wrong: split_untrusted(wrong, 1),
            lambda wrong=wrong: count_untrusted(wrong),
            lambda wrong=wrong: cut_replies_untrusted(wrong, [1]),
            lambda wrong=wrong: owned_untrusted(wrong, OWNED_ALL),
            lambda wrong=wrong: owned_untrusted(b"", wrong),
        ):
            with pytest.raises(TypeError):
                call()


def test_nothing_is_leaked() -> None:
    """References are counted as they should be, on the way of each error too."""
    data = b"".join(CALLS) + b"*1\r\n$5\r\nab"
    replies = b"+OK\r\n$1\r\na\r\n_\r\n"
    tracemalloc.start()
    try:
        before = 0
        for turn in range(200):
            split_untrusted(data, 10)
            count_untrusted(data)
            owned_untrusted(data, OWNED_ALL)
            cut_replies_untrusted(replies, [1, 2])
            cut_replies_untrusted(replies, [1, 3])
            if turn == 100:
                before = tracemalloc.get_traced_memory()[0]
        assert tracemalloc.get_traced_memory()[0] - before < 5_000
    finally:
        tracemalloc.stop()
