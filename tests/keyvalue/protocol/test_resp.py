"""Replies are encoded as RESP2 and RESP3 want them, and read back; payloads are checked."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.errors import KeyValueError, WireError
from quorate.keyvalue.protocol import payload as payload_module
from quorate.keyvalue.protocol import resp
from quorate.keyvalue.protocol.payload import PayloadParser


def test_encoding_as_resp2() -> None:
    assert [
        resp.simple(b"OK"),
        resp.error("ERR a\r\nb"),
        resp.integer(-5),
        resp.bulk(b""),
        resp.bulk(b"a\r\nb"),
        resp.array([]),
        resp.bulk_array([b"a", b"b"]),
        resp.null(resp3=False),
        resp.null_array(resp3=False),
        resp.mapping([(resp.bulk(b"a"), resp.ONE)], resp3=False),
        resp.set_of([resp.ONE], resp3=False),
        resp.double(1.5, resp3=False),
        resp.verbatim(b"text", resp3=False),
    ] == [
        b"+OK\r\n",
        b"-ERR a  b\r\n",
        b":-5\r\n",
        b"$0\r\n\r\n",
        b"$4\r\na\r\nb\r\n",
        b"*0\r\n",
        b"*2\r\n$1\r\na\r\n$1\r\nb\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*2\r\n$1\r\na\r\n:1\r\n",
        b"*1\r\n:1\r\n",
        b"$3\r\n1.5\r\n",
        b"$4\r\ntext\r\n",
    ]


def test_encoding_as_resp3() -> None:
    assert [
        resp.null(resp3=True),
        resp.null_array(resp3=True),
        resp.mapping([(resp.bulk(b"a"), resp.ONE)], resp3=True),
        resp.set_of([resp.ONE], resp3=True),
        resp.double(1.5, resp3=True),
        resp.double(3.0, resp3=True),
        resp.double(math.inf, resp3=True),
        resp.verbatim(b"text", resp3=True),
    ] == [
        b"_\r\n",
        b"_\r\n",
        b"%1\r\n$1\r\na\r\n:1\r\n",
        b"~1\r\n:1\r\n",
        b",1.5\r\n",
        b",3\r\n",
        b",inf\r\n",
        b"=8\r\ntxt:text\r\n",
    ]


def test_a_command_is_encoded_with_text_and_numbers() -> None:
    encoded = resp.encode_command(["SET", b"\xff", "é", 5, 1.5])
    assert PayloadParser().parse_untrusted(encoded) == [
        [b"SET", b"\xff", "é".encode(), b"5", b"1.5"]
    ]


@given(st.lists(st.lists(st.binary(), min_size=1)))
def test_commands_come_back(commands: list[list[bytes]]) -> None:
    payload = b"".join(map(resp.bulk_array, commands))
    assert PayloadParser().parse_untrusted(payload) == commands


@given(
    st.lists(
        st.sampled_from(
            [
                b"*1\r\n",
                b"$1\r\na\r\n",
                b":1\r\n",
                b"%1\r\n",
                b"*2\r\n",
                b"+end\r\n",
                b"x",
            ]
        )
    )
)
def test_a_payload_is_commands_or_refused(parts: list[bytes]) -> None:
    parser = PayloadParser()
    try:
        commands = parser.parse_untrusted(b"".join(parts))
    except WireError:
        commands = []
    assert all(type(argument) is bytes for command in commands for argument in command)
    assert parser.parse_untrusted(b"*1\r\n$1\r\na\r\n") == [[b"a"]]


PARTS = rb"*1|*2|*0|*01|*-1|~1|%1|$1 a|$0 |:1|+a|,1.5|#f|#t|_|-E".replace(b" ", b"\r\n").split(b"|")
parts_of_payloads = st.sampled_from([*(part + b"\r\n" for part in PARTS), b"\r"])


@given(st.lists(parts_of_payloads, max_size=6))
def test_the_short_way_for_one_command_finds_the_same(parts: list[bytes]) -> None:
    payload = b"".join(parts)
    found: list[list[list[bytes]] | None] = []
    for longest in (-1, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(payload_module, "_SHORT_BYTES", longest)
            try:
                found.append(PayloadParser().parse_untrusted(payload))
            except WireError:
                found.append(None)
    assert found[0] == found[1]


def test_replies_come_back_as_values() -> None:
    data = b"+OK\r\n-ERR no\r\n:5\r\n$-1\r\n_\r\n*2\r\n$1\r\na\r\n-WRONGTYPE x\r\n#t\r\n,1.5\r\n"
    replies = resp.parse_replies_untrusted(data)
    assert replies[0] == b"OK"
    assert isinstance(replies[1], KeyValueError)
    assert (str(replies[1]), replies[1].code) == ("ERR no", "ERR")
    assert replies[2:5] == [5, None, None]
    assert isinstance(replies[5], list)
    assert isinstance(replies[5][1], KeyValueError)
    assert replies[6:] == [True, 1.5]


@pytest.mark.parametrize("data", [b"$5\r\nab", b"hello\r\n", b"*2\r\n:1\r\n"])
def test_broken_replies_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        resp.parse_replies_untrusted(data)
