"""Whatever bytes come, in whatever pieces: only whole, plain commands get through."""

from itertools import pairwise

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.errors import WireError
from quorate.keyvalue.limits import MAX_ARGUMENTS
from quorate.keyvalue.native.resp_reader import split_untrusted
from quorate.keyvalue.protocol.parser import CommandParser, ParserLimits, split_line_untrusted
from tests.support.client_port_world import command

SMALL = ParserLimits(request_bytes=300, array_elements=8)


def parse(*chunks: bytes, limits: ParserLimits | None = None) -> tuple[list[list[bytes]], str]:
    """All commands of the chunks, and the protocol error if there was one."""
    parser = CommandParser(limits or ParserLimits())
    commands: list[list[bytes]] = []
    for chunk in chunks:
        taken, whole = parser.take_untrusted(chunk)
        assert whole == b"".join(command(*arguments) for arguments in taken)
        commands += taken
        if parser.failure is not None:
            return commands, str(parser.failure)
    return commands, ""


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(ends)]


arguments = st.lists(
    st.one_of(
        st.binary(max_size=12),
        st.sampled_from([b"*1234567", b"\r\n", b"~999999", b"$5\r\n", b"GET", b"=3\r\n", b""]),
    ),
    min_size=1,
    max_size=4,
)


@given(st.lists(arguments, max_size=8), st.lists(st.integers(0, 10**6), max_size=6))
def test_commands_come_out_as_they_went_in_however_they_are_cut(
    commands: list[list[bytes]], places: list[int]
) -> None:
    data = b"".join(command(*one) for one in commands)
    if data:
        assert parse(*cut(data, places)) == (commands, "")


def test_a_command_may_be_cut_at_every_byte() -> None:
    data = command("SET", "key", b"\r\n*1\r\n$4\r\nPING\r\n")
    expected = ([[b"SET", b"key", b"\r\n*1\r\n$4\r\nPING\r\n"]], "")
    assert parse(*(data[n : n + 1] for n in range(len(data)))) == expected
    for n in range(1, len(data)):
        assert parse(data[:n], data[n:]) == expected


FRAGMENTS = (
    b"*2\r\n *1\r\n *99999999\r\n * $3\r\nfoo\r\n $1\r\n*\r\n $-1\r\n $99999999\r\n $ +a\r\n "
    b":1\r\n ~1\r\n >1\r\n |1\r\n %1\r\n _\r\n #f\r\n (5\r\n =7\r\ntxt:abc\r\n PING\r\n ' \" \\ \n"
)
fragments = st.sampled_from([*FRAGMENTS.split(b" "), b" "])


@given(st.lists(st.one_of(fragments, st.binary(max_size=6)), max_size=12), st.data())
def test_arbitrary_bytes_are_commands_or_a_protocol_error_and_nothing_else(
    pieces: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(pieces)
    if not stream:
        return
    places = data.draw(st.lists(st.integers(0, len(stream)), max_size=5))
    whole = parse(stream, limits=SMALL)
    assert parse(*cut(stream, places), limits=SMALL) == whole
    assert all(one and all(type(argument) is bytes for argument in one) for one in whole[0])


@given(st.lists(st.one_of(fragments, st.binary(max_size=6)), min_size=1, max_size=12))
def test_both_ways_find_the_same(pieces: list[bytes]) -> None:
    stream = b"".join(pieces)
    if not stream:
        return
    limits = ParserLimits(request_bytes=1000, array_elements=1000)
    byte_by_byte = parse(*(stream[n : n + 1] for n in range(len(stream))), limits=limits)
    commands, end = split_untrusted(stream, limits.array_elements)
    assert commands == byte_by_byte[0][: len(commands)]
    if end == len(stream):
        assert byte_by_byte == (commands, "")


@pytest.mark.parametrize(
    ("stream", "error"),
    [
        (b"*9\r\n", "invalid multibulk length, 8 is the most"),
        (b"*1048577\r\n", "invalid multibulk length, 8 is the most"),
        (b"*4294967295\r\n", "invalid multibulk length, 8 is the most"),
        (b"*99999999999999999999999999999999\r\n", "too big mbulk count string"),
        (b"*x\r\n", "invalid multibulk length"),
        (b"*01\r\n", "invalid multibulk length"),
        (b"*" + b"1" * 40, "too big mbulk count string"),
        (b"*1\r\n$301\r\n", "invalid bulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$1e3\r\n", "invalid bulk length"),
        (b"*1\r\n$" + b"1" * 40, "too big bulk count string"),
        (b"*2\r\n$200\r\n" + b"a" * 200 + b"\r\n$200\r\n", "too big request"),
        (b"*1\r\n*1\r\n$4\r\nPING\r\n", "expected '$', got '*'"),
        (b"*1\r\n+PING\r\n", "expected '$', got '+'"),
        (b"*1\r\n:1\r\n", "expected '$', got ':'"),
        (b"*1\r\n~999999999\r\n", "expected '$', got '~'"),
        (b"*1\r\n$4\r\nPINGxx", "expected CRLF after a bulk string"),
        (b"x" * (64 * 1024 + 1), "too big inline request"),
        (b"SET a 'b\r\n", "unbalanced quotes in request"),
    ],
)
def test_wrong_bytes_are_named_in_the_words_of_redis(stream: bytes, error: str) -> None:
    assert parse(stream, limits=SMALL) == ([], f"Protocol error: {error}")
    before = command("PING")
    assert parse(before + stream, limits=SMALL) == ([[b"PING"]], f"Protocol error: {error}")


def test_commands_before_wrong_bytes_are_good() -> None:
    data = command("SET", "a", "1") + command("GET", "a") + b"*1\r\n$x\r\n"
    commands, error = parse(data)
    assert commands == [[b"SET", b"a", b"1"], [b"GET", b"a"]]
    assert error == "Protocol error: invalid bulk length"


def test_a_huge_claim_never_reaches_hiredis(monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[bytes] = []

    class Recording(hiredis.Reader):
        def feed(self, data: bytes) -> None:  # type: ignore[override]
            fed.append(data)
            super().feed(data)

    monkeypatch.setattr(hiredis, "Reader", Recording)
    for claim in (b"*2147483647\r\n", b"*1\r\n*999999\r\n", b"*1\r\n~10000000\r\n"):
        assert parse(claim, b"$1\r\na\r\n")[1]
    assert fed == []


def test_a_value_that_looks_like_a_huge_claim_is_only_a_value() -> None:
    one = [b"SET", b"a", b"*123456789\r\n~999999999\r\n"]
    assert parse(command(*one) * 3 + command(*one)[:-5], command(*one)[-5:]) == ([one] * 4, "")


@pytest.mark.parametrize("size", [65536, 1 << 20])
def test_a_command_has_a_largest_number_of_arguments_however_it_comes(size: int) -> None:
    many = [b"DEL", *[b"k"] * (MAX_ARGUMENTS - 1)]
    for before in (b"", command("PING")):
        data = before + command(*many)
        assert parse(*(data[n : n + size] for n in range(0, len(data), size)))[0][-1] == many
        data = before + command(*many, b"k")
        commands, error = parse(*(data[n : n + size] for n in range(0, len(data), size)))
        assert error == f"Protocol error: invalid multibulk length, {MAX_ARGUMENTS} is the most"
        assert commands == ([[b"PING"]] if before else [])


def test_empty_arrays_and_lines_are_passed_over() -> None:
    data = b"*0\r\n" + command("PING") + b"*-1\r\n\r\n\n*-5\r\n" + command("ECHO", "a") + b"*0\r\n"
    assert parse(data) == ([[b"PING"], [b"ECHO", b"a"]], "")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"PING\r\n", [b"PING"]),
        (b"  set  a\tb \n", [b"set", b"a", b"b"]),
        (b"set a 'b c'\r\n", [b"set", b"a", b"b c"]),
        (b"set a 'it\\'s'\r\n", [b"set", b"a", b"it's"]),
        (b"set a 'c:\\dir'\r\n", [b"set", b"a", b"c:\\dir"]),
        (b'set a "\\x41\\n\\"\\q"\r\n', [b"set", b"a", b'A\n"q']),
        (b'set a b"c d"\r\n', [b"set", b"a", b"bc d"]),
        (b"set \"\" ''\r\n", [b"set", b"", b""]),
        (b"\r\n", []),
    ],
)
def test_lines_are_split_as_redis_does(line: bytes, expected: list[bytes]) -> None:
    assert split_line_untrusted(line) == expected
    if expected:
        assert parse(line, line[:3], line[3:]) == ([expected, expected], "")


@pytest.mark.parametrize(
    "line", [b"a 'b", b'a "b', b"a 'b'c", b'a "b"c', b'"\\"', b"''\"\"", b'a"']
)
def test_unbalanced_quotes_are_refused(line: bytes) -> None:
    with pytest.raises(WireError, match="unbalanced quotes"):
        split_line_untrusted(line)


@given(st.binary(max_size=40))
def test_every_line_is_split_or_refused(line: bytes) -> None:
    try:
        parts = split_line_untrusted(line)
    except WireError:
        assert b"'" in line or b'"' in line
    else:
        assert b"".join(parts) or not line.strip() or b"'" in line or b'"' in line


def test_a_large_value_that_comes_in_pieces_costs_time_linear_in_its_length() -> None:
    parser = CommandParser(ParserLimits())
    value = b"v" * (8 << 20)
    data = command("SET", "a", value) + command("GET", "a")
    looks = 0
    for n in range(0, len(data), 16384):
        commands, _ = parser.take_untrusted(data[n : n + 16384])
        looks += 1
        if commands:
            assert commands == [[b"SET", b"a", value], [b"GET", b"a"]]
    assert looks > 500
    assert parser.waiting_bytes == 0
