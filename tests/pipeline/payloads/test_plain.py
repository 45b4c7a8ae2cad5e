"""What is decoded all at once is what the usual decoder says, payload by payload."""

# pyright: basic, reportMissingTypeStubs=false
# (pyarrow has no types; mypy is strict here as everywhere)

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quorate.keyvalue.commands.table import all_commands
from quorate.keyvalue.protocol.resp import encode_command
from quorate.pipeline.payloads.decoding import Asked, decode_commands
from quorate.pipeline.payloads.plain import plain_untrusted
from quorate.pipeline.source.decode import decode
from quorate.storage import Entry, EntryKind, encode_batch
from tests.pipeline.pipeline_world import BEGAN_MS, pipeline

NAMES = [one.name.encode() for one in all_commands()]
names = st.sampled_from(
    [*NAMES, *map(bytes.upper, NAMES), b"Set", b"SET\0", b"", b"NOVEL", b"\xff"]
)
words = st.binary(max_size=12) | st.sampled_from(
    [b"EX", b"10", b"v" * 1000, b"\r\n*1\r\n$4\r\nPING"]
)
commands = st.builds(
    lambda name, rest: encode_command([name, *rest]), names, st.lists(words, max_size=6)
)
payloads = (
    commands
    | st.lists(commands, max_size=3).map(b"".join)
    | st.binary(max_size=20)
    | st.tuples(commands, st.integers(0, 40), st.binary(max_size=2)).map(
        lambda one: one[0][: one[1]] + one[2] + one[0][one[1] + 1 :]
    )
)
entries = st.builds(Entry, st.sampled_from([EntryKind.COMMAND] * 3 + [EntryKind.TIMER]), payloads)
SET = encode_command([b"SET", b"k", b"v"])
HOLDING = encode_command([b"SET", b"k", b"\r\n" + SET])
"""What looks like a command is a part of its value."""


def one_by_one(payload: bytes, flags: int, timestamp_ms: int) -> list[Asked]:
    """The usual decoder under another name, so that all payloads go to it."""
    return decode_commands(payload, flags, timestamp_ms)


@given(
    st.lists(st.lists(entries, max_size=8), min_size=1, max_size=3), st.sampled_from([b"", b"k"])
)
@example([[Entry(EntryKind.COMMAND, SET[:-1]), Entry(EntryKind.COMMAND, b"\n")]], b"")
@example([[Entry(EntryKind.COMMAND, SET * 3), Entry(EntryKind.COMMAND, SET)]], b"")
@example([[Entry(EntryKind.COMMAND, SET * 2 + SET[:-1]), Entry(EntryKind.COMMAND, b"\n")]], b"")
@example([[Entry(EntryKind.COMMAND, SET + HOLDING * 2), Entry(EntryKind.COMMAND, b"")]], b"")
@example([[Entry(EntryKind.COMMAND, b""), Entry(EntryKind.COMMAND, SET * 2)]], b"k")
@example([[Entry(EntryKind.COMMAND, SET.replace(b"$3", b"$03"))]], b"")
@example([[Entry(EntryKind.COMMAND, SET.replace(b"$3", b"$"))]], b"")
@example([[Entry(EntryKind.COMMAND, SET.replace(b"$3", b"$99999999999999999999"))]], b"")
def test_all_at_once_is_one_by_one(groups: list[list[Entry]], prefix: bytes) -> None:
    position, batches = 0, list[bytes]()
    for group in groups:
        batches.append(
            encode_batch(group, term=0, position=position, timestamp_ms=BEGAN_MS, commit_position=0)
        )
        position += len(batches[-1])
    found = decode(batches, "commands", prefix=prefix)
    found.validate(full=True)
    assert found.equals(decode(batches, "commands", prefix=prefix, decoder=one_by_one))


def test_usual_commands_are_plain_and_others_are_not() -> None:
    usual = ["SET k v", "set k2 v2", "DEL k", "INCR k", "SET k v NX", "APPEND k v", "GET k"]
    others = ["SET k v EX 9", "MSET a 1 b 2", "DEL a b", "EXPIRE k 9", "PEXPIREAT k 9"]
    sizes = [len(pipeline(one)) for one in usual + others]
    stops = np.cumsum(np.array(sizes, np.int64))
    found = plain_untrusted(pipeline(*usual, *others), stops - sizes, stops)
    assert found.places.tolist() == list(range(len(usual)))
    assert not found.numbers.any()


@pytest.mark.parametrize("looked_at", [1 << 20, 5])
def test_many_plain_commands_of_a_payload_are_plain(
    looked_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorate.pipeline.payloads.plain._LOOKED_AT", looked_at)
    payloads = [SET * 3, pipeline("SET a 1", "SET a 1 EX 9"), b"", pipeline("GET a") + SET, HOLDING]
    stops = np.cumsum(np.array([*map(len, payloads)], np.int64))
    found = plain_untrusted(b"".join(payloads), np.array([0, *stops[:-1]], np.int64), stops)
    assert found.places.tolist() == [0, 0, 0, 3, 3]
    assert found.numbers.tolist() == [0, 1, 2, 0, 1]
    assert [found.names[one] for one in found.operations] == ["SET"] * 3 + ["GET", "SET"]


def test_a_value_of_nothing_but_stars_takes_little_more_than_itself() -> None:
    payload = encode_command([b"SET", b"k", b"*" * (4 << 20)]) + SET
    edges = np.array([0], np.int64), np.array([len(payload)], np.int64)
    tracemalloc.start()
    try:
        found = plain_untrusted(payload, *edges)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.numbers.tolist() == [0, 1]
    assert peak < 8 * len(payload)
