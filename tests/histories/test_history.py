"""A history comes back as it was written, and anything else is refused with its line."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.errors import HistoryError
from quorate.histories.history import (
    MAX_LINE_BYTES,
    HistoryWriter,
    Operation,
    decode_operation_untrusted,
    read_history_untrusted,
)

VALUES = st.one_of(st.none(), st.binary(max_size=20), st.integers(-(2**63), 2**63 - 1))
TIMES = st.integers(0, 2**62)


@st.composite
def operations(draw: st.DrawFn) -> Operation:
    status = draw(st.sampled_from(["ok", "fail", "unknown"]))
    start = draw(TIMES)
    return Operation(
        client=draw(st.integers(0, 2**31)),
        op=draw(st.sampled_from(["get", "set", "cas"])),
        key=draw(st.binary(max_size=20)),
        args=tuple(draw(st.lists(VALUES, max_size=3))),
        result=draw(VALUES) if status == "ok" else None,
        start_ns=start,
        end_ns=start + draw(TIMES),
        status=status,  # type: ignore[arg-type]
    )


def read(data: bytes) -> list[Operation]:
    return list(read_history_untrusted(io.BytesIO(data)))


@given(st.lists(operations(), max_size=5))
def test_what_was_written_is_read(history: list[Operation]) -> None:
    file = io.BytesIO()
    writer = HistoryWriter(file)
    for operation in history:
        writer.append(operation)
    assert file.getvalue().count(b"\n") == len(history)
    assert read(file.getvalue()) == history


def test_a_line_is_plain_json() -> None:
    file = io.BytesIO()
    HistoryWriter(file).append(Operation(2, "cas", b"r\xff1", (None, b"8"), 1, 12, 19, "ok"))
    assert json.loads(file.getvalue()) == {
        "client": 2,
        "op": "cas",
        "key": "rÿ1",
        "args": [None, "8"],
        "result": 1,
        "start_ns": 12,
        "end_ns": 19,
        "status": "ok",
    }


GOOD = {
    "client": 2,
    "op": "set",
    "key": "k",
    "args": ["v"],
    "result": "OK",
    "start_ns": 1,
    "end_ns": 2,
    "status": "ok",
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"client": -1}, "client = -1: expected a whole number"),
        ({"client": True}, "client = True: expected a whole number"),
        ({"client": 1.0}, "client = 1.0: expected a whole number"),
        ({"start_ns": 2**63}, "start_ns = 9223372036854775808: expected a whole number"),
        ({"op": ""}, "op = '': expected a word"),
        ({"op": "a b"}, "op = 'a b': expected a word"),
        ({"op": "a" * 33}, "expected a word of up to 32 letters"),
        ({"key": "ĸ"}, "key = 'ĸ': expected a string of Latin-1"),
        ({"key": None}, "key = None: expected a string of Latin-1"),
        ({"args": "v"}, "args = 'v': expected a list of up to 64"),
        ({"args": {"a": 1}}, "expected a list of up to 64"),
        ({"args": [0] * 65}, "expected a list of up to 64"),
        ({"args": [[1]]}, "args = [1]: expected a string, a whole number of 64 bits, or null"),
        ({"result": 2**63}, "result = 9223372036854775808: expected a string, a whole number"),
        ({"result": 0.5}, "result = 0.5: expected"),
        ({"status": "done"}, 'status = \'done\': expected "ok", "fail" or "unknown"'),
        ({"status": ["ok"]}, 'expected "ok", "fail" or "unknown"'),
        ({"status": "fail"}, 'a result with status "fail": expected null'),
        ({"end_ns": 0}, "end_ns 0 is before start_ns 1"),
        ({"more": 1}, "expected exactly client, op, key"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_field_is_told_with_its_line(change: dict[str, object], words: str) -> None:
    lines = [json.dumps(GOOD), json.dumps(GOOD | change)]
    with pytest.raises(HistoryError) as caught:
        read("\n".join(lines).encode())
    assert str(caught.value).startswith("line 2: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"[]\n",
        b"7\n",
        b"{}\n",
        b'{"client": 1\n',
        b"\xff\n",
        b"[" * 100_000,
        b"1" * 5000 + b"\n",
        b" " * (MAX_LINE_BYTES + 1),
        json.dumps(GOOD).replace('"client": 2', '"client": 2, "client": 2').encode(),
        json.dumps(GOOD).replace('"client": 2, ', "").encode(),
        json.dumps(GOOD).replace("2", "NaN").encode(),
    ],
    ids=lambda line: repr(line[:20]),
)
def test_what_is_no_operation_is_refused(line: bytes) -> None:
    with pytest.raises(HistoryError, match="line 1: "):
        read(line)


@given(st.binary(max_size=200).filter(lambda line: b"client" not in line))
def test_other_bytes_are_refused_with_that_error_alone(line: bytes) -> None:
    with pytest.raises(HistoryError):
        decode_operation_untrusted(line)


def test_a_file_is_read_line_by_line() -> None:
    whole = json.dumps(GOOD).encode() + b"\n"
    history = read_history_untrusted(io.BytesIO(whole + b"half"))
    assert next(history).result == b"OK"
    with pytest.raises(HistoryError, match="line 2: "):
        next(history)
