"""Requests of several clients in one entry of the log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.errors import WireError
from quorate.etcd.codes import Code, EtcdError
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requested import in_words_untrusted, requested_untrusted
from quorate.etcd.messages.requests import (
    Op,
    decode_reply,
    encode_error,
    encode_reply,
    encode_request,
)
from quorate.etcd.messages.together import (
    MAX_TOGETHER,
    encode_replies,
    encode_together,
    payloads_untrusted,
    replies_in_untrusted,
)
from quorate.etcd.state.machine import EtcdState
from quorate.node.state_machine.service import Command
from tests.support.etcd_tables import StoredRows


def put(key: bytes, value: bytes = b"v", **fields: bool) -> bytes:
    request = rpc.PutRequest(key=key, value=value, **fields)
    return encode_request(Op.PUT, request.SerializeToString())


@given(st.lists(st.binary(max_size=300), max_size=MAX_TOGETHER))
def test_payloads_and_replies_are_read_as_they_were_written(contents: list[bytes]) -> None:
    assert payloads_untrusted(encode_together(contents)) == contents
    assert replies_in_untrusted(encode_replies(7, contents), len(contents)) == (7, contents)


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=4), st.data())
def test_what_is_cut_or_too_many_is_refused(contents: list[bytes], data: st.DataObject) -> None:
    whole = encode_together(contents)
    ends = {len(encode_together(contents[:count])) for count in range(len(contents) + 1)}
    cut = data.draw(st.integers(1, len(whole) - 1).filter(lambda end: end not in ends))
    with pytest.raises(WireError, match="expected"):
        payloads_untrusted(whole[:cut])
    with pytest.raises(WireError, match="over 64 requests of etcd in one: expected 64 at most"):
        payloads_untrusted(encode_together([b"x"] * (MAX_TOGETHER + 1)))


def test_a_request_alone_is_the_whole_payload_and_an_error_is_one_of_all() -> None:
    assert payloads_untrusted(put(b"a")) == [put(b"a")]
    assert payloads_untrusted(b"") == [b""]
    with pytest.raises(EtcdError, match="no space"):
        replies_in_untrusted(encode_error(7, EtcdError(Code.RESOURCE_EXHAUSTED, "no space")), 2)


def test_the_rest_of_too_many_requests_is_not_read() -> None:
    cut = encode_together([b""] * (MAX_TOGETHER + 1)) + b"c"
    with pytest.raises(WireError, match="over 64 requests"):
        payloads_untrusted(cut)


@pytest.mark.parametrize(
    ("reply", "trouble"),
    [
        (encode_replies(7, [b"a"]), "1 replies to requests of etcd: expected 2"),
        (encode_replies(7, [b"a"] * 3), "expected 2 at most"),
        (encode_replies(7, [b"a", b"b"])[:-1], "expected 1 bytes, found 0"),
        (b"\xff" + bytes(8), "255"),
        (b"\x08" + bytes(8) + b"\xff", "codec"),
    ],
)
def test_a_malformed_reply_is_refused(reply: bytes, trouble: str) -> None:
    with pytest.raises(WireError, match=trouble):
        replies_in_untrusted(reply, 2)


def applied(state: EtcdState, payload: bytes) -> bytes:
    return state.apply(Command(payload, 8, 0, 0, 4, 0, 0, 0), 0)


def test_each_request_of_an_entry_has_its_own_revision_reply_and_error() -> None:
    state = EtcdState(StoredRows())
    rows: list[tuple[int, int]] = []
    state.listen(lambda revision, changes: rows.append((revision, len(changes))))
    payloads = [
        put(b"a"),
        put(b"b", b"", ignore_lease=True),
        put(b"b"),
        b"\xff",
        encode_together([put(b"c")]),
        put(b"a", b"w"),
    ]
    reply = applied(state, encode_together(payloads))
    revision, replies = replies_in_untrusted(reply, len(payloads))
    assert (revision, rows) == (4, [(2, 1), (3, 1), (4, 1)])
    assert [replies[0], replies[2], replies[5]] == [encode_reply(each, b"") for each in (2, 3, 4)]
    for each, error in ((1, "key not found"), (3, "operation first"), (4, "operation first")):
        with pytest.raises(EtcdError, match=error):
            decode_reply(replies[each])


def test_an_entry_that_is_cut_changes_nothing() -> None:
    state = EtcdState(StoredRows())
    with pytest.raises(EtcdError, match="expected"):
        decode_reply(applied(state, encode_together([put(b"a"), put(b"b")])[:-1]))
    assert state.revision == 1


def test_an_entry_in_words_shows_its_first_requests() -> None:
    payload = encode_together([put(b"a"), put(b"b")])
    words = 'etcd 2 requests: PUT key="a" value=1 B; PUT key="b" value=1 B'
    assert in_words_untrusted(payload) == words
    assert requested_untrusted(payload) == [[("PUT", b"a", b"v")], [("PUT", b"b", b"v")]]
    assert in_words_untrusted(payload[:-1]) is None
    many = in_words_untrusted(encode_together([put(b"a")] * 5)) or ""
    assert many.startswith("etcd 5 requests: PUT")
    assert many.endswith("; ...")
