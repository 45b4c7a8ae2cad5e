"""Messages as JSON: what etcd's gateway reads, writes and says about mistakes."""

import contextlib
import json
from typing import Any, cast

import pytest
import trio
from google.protobuf.json_format import MessageToDict, MessageToJson
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from quorate.etcd.codes import Code, EtcdError
from quorate.etcd.gateway.json_messages import MAX_PARTS, decode_untrusted
from quorate.etcd.gateway.json_replies import encode, encode_in_turns
from quorate.etcd.messages import rpc_pb2 as rpc

INT64 = st.integers(-(2**63), 2**63 - 1)
PUTS = st.builds(
    rpc.PutRequest, key=st.binary(), value=st.binary(), lease=INT64, prev_kv=st.booleans()
)
RANGES = st.builds(
    rpc.RangeRequest, key=st.binary(), limit=INT64, sort_order=st.sampled_from([0, 1, 2]),
    max_mod_revision=INT64,
)  # fmt: skip
COMPARES = st.builds(rpc.Compare, key=st.binary(), value=st.binary())
OPS = st.builds(rpc.RequestOp, request_put=PUTS) | st.builds(rpc.RequestOp, request_range=RANGES)
TXNS = st.builds(
    rpc.TxnRequest, compare=st.lists(COMPARES, max_size=3), success=st.lists(OPS, max_size=3)
)


@given(message=PUTS | RANGES | TXNS)
def test_a_message_is_read_as_it_was_written(message: Any) -> None:
    kind = cast("type[Message]", type(message))
    assert decode_untrusted(kind, encode(message)) == message
    assert json.loads(encode(message)) == MessageToDict(message, preserving_proto_field_name=True)
    assert decode_untrusted(kind, MessageToJson(message).encode()) == message


TOKENS = st.sampled_from([*'{}[],:"1-', "null", "true", "tru", '"key"', '"a"', "\\u", "\ud800"])
TEXTS = st.lists(TOKENS).map("".join)


@given(body=st.binary() | TEXTS.map(lambda text: text.encode(errors="surrogatepass")))
def test_whatever_comes_is_a_message_or_an_error(body: bytes) -> None:
    for kind in (rpc.PutRequest, rpc.TxnRequest):
        with contextlib.suppress(EtcdError):
            assert isinstance(decode_untrusted(kind, body), kind)


def test_names_may_be_of_both_kinds_and_unknown_ones_and_null_are_ignored() -> None:
    body = b'{"key":"Zm9v","prevKv":true,"PREV_KV":5,"value":null} and more'
    assert decode_untrusted(rpc.PutRequest, body) == rpc.PutRequest(key=b"foo", prev_kv=True)
    assert decode_untrusted(rpc.PutRequest, b" ") == rpc.PutRequest()
    assert decode_untrusted(rpc.PutRequest, b"null") == rpc.PutRequest()
    both = b'{"key":[102,111],"lease":"12","ignore_value":false}'
    assert decode_untrusted(rpc.PutRequest, both) == rpc.PutRequest(key=b"fo", lease=12)


def test_an_empty_message_inside_another_one_counts() -> None:
    body = b'{"success":[{"request_txn":{}}],"compare":[{"create_revision":"0"}]}'
    found = decode_untrusted(rpc.TxnRequest, body)
    assert found.success[0].WhichOneof("request") == "request_txn"
    assert found.compare[0].WhichOneof("target_union") == "create_revision"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        # Each line is an answer of etcd 3.5.1.
        ("not json", "invalid character 'o' in literal null (expecting 'u')"),
        ("garbage", "invalid character 'g' looking for beginning of value"),
        ("{", "unexpected EOF"),
        ('{"key":"Zm9v"', "unexpected EOF"),
        ('{"key":fa', "unexpected EOF"),
        ('{"key":tru}', "invalid character '}' in literal true (expecting 'e')"),
        ('{"key":"Zm9v",}', "invalid character '}' looking for beginning of object key string"),
        ('{"key":"Zm9v" true}', "invalid character 't' after object key:value pair"),
        ("{null", "invalid character 'n' looking for beginning of object key string"),
        ('{"key" "Zm9v"}', "invalid character '\"' after object key"),
        ('{"key":"Zm9v" "x"}', "invalid character '\"' after object key:value pair"),
        ("{'key':1}", r"invalid character '\'' looking for beginning of object key string"),
        ("[]", "json: cannot unmarshal array into Go value of type map[string]json.RawMessage"),
        ('{"key":1}', "json: cannot unmarshal number into Go value of type []uint8"),
        ('{"key":{}}', "json: cannot unmarshal object into Go value of type []uint8"),
        ('{"key":"!!"}', "illegal base64 data at input byte 0"),
        ('{"key":"Zm9"}', "illegal base64 data at input byte 0"),
        ('{"key":"Zm9v!"}', "illegal base64 data at input byte 4"),
        ('{"key":"Zm9v===="}', "illegal base64 data at input byte 4"),
        ('{"key":"Zm9vYQ"}', "illegal base64 data at input byte 4"),
        ('{"key":"Zm-_"}', "illegal base64 data at input byte 2"),
        ('{"lease":"abc"}', "invalid character 'a' looking for beginning of value"),
        ('{"lease":"0x1"}', "invalid character 'x' after top-level value"),
        ("\0", r"invalid character '\x00' looking for beginning of value"),
        ('{"key":"\n"}', r"invalid character '\n' in string literal"),
        ('{"lease":""}', "unexpected end of JSON input"),
        ('{"lease":1.5}', "json: cannot unmarshal number 1.5 into Go value of type int64"),
        ('{"lease":"1e2"}', "json: cannot unmarshal number 1e2 into Go value of type int64"),
        ('{"lease":true}', "json: cannot unmarshal bool into Go value of type int64"),
        (
            '{"lease":99999999999999999999}',
            "json: cannot unmarshal number 99999999999999999999 into Go value of type int64",
        ),
        ('{"prev_kv":"true"}', "json: cannot unmarshal string into Go value of type bool"),
    ],
)
def test_mistakes_have_the_texts_of_etcd(body: str, text: str) -> None:
    with pytest.raises(EtcdError) as caught:
        decode_untrusted(rpc.PutRequest, body.encode())
    assert (caught.value.code, caught.value.text) == (Code.INVALID_ARGUMENT, text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('"FOO"', 'unknown value "\\"FOO\\"" for enum etcdserverpb.RangeRequest.SortOrder'),
        ('"2"', 'unknown value "\\"2\\"" for enum etcdserverpb.RangeRequest.SortOrder'),
        ("true", "json: cannot unmarshal bool into Go value of type protoreflect.EnumNumber"),
    ],
)
def test_an_enum_is_a_known_name_or_a_number(value: str, text: str) -> None:
    with pytest.raises(EtcdError) as caught:
        decode_untrusted(rpc.RangeRequest, f'{{"sort_order":{value}}}'.encode())
    assert caught.value.text == text
    assert decode_untrusted(rpc.RangeRequest, b'{"sort_order":"DESCEND"}').sort_order == 2
    assert decode_untrusted(rpc.RangeRequest, b'{"sort_order":2}').sort_order == 2


def test_deep_or_endless_values_are_refused() -> None:
    for body in (b'{"failure":' * 100_000, b'{"key":' + b"[" * 100_000, b'{"lease":' + b"9" * 5000):
        with pytest.raises(EtcdError):
            decode_untrusted(rpc.TxnRequest, body)
    nested = b'{"failure":[{"request_txn":' * 2000 + b"{}" + b"}]}" * 2000
    with pytest.raises(EtcdError, match="exceeded max depth"):
        decode_untrusted(rpc.TxnRequest, nested)


async def test_other_tasks_run_while_a_large_reply_is_written(autojump_clock: MockClock) -> None:
    reply = rpc.RangeResponse(kvs=[rpc.KeyValue(key=b"k", value=bytes(1000))] * 2000, count=2000)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        assert await encode_in_turns(reply) == encode(reply)
        nursery.cancel_scope.cancel()
    assert turns > 20


def test_a_request_of_too_many_parts_is_refused_before_they_are_made() -> None:
    many: tuple[list[object], ...] = (
        [{}] * (MAX_PARTS + 1),
        [{"request_txn": {"success": [{}] * 99}}] * 99,
    )
    for parts in many:
        with pytest.raises(EtcdError, match="too many operations in txn request"):
            decode_untrusted(rpc.TxnRequest, json.dumps({"success": parts}).encode())


def test_zero_false_and_empty_fields_are_left_out() -> None:
    assert encode(rpc.RangeResponse()) == b"{}"
    event = rpc.Event(kv=rpc.KeyValue(key=b"foo", version=1))
    reply = rpc.WatchResponse(events=[event, rpc.Event(type=rpc.Event.DELETE)])
    assert encode(reply) == (b'{"events":[{"kv":{"key":"Zm9v","version":"1"}},{"type":"DELETE"}]}')
