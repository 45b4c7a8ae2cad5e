"""Payloads and replies of the second keyspace."""

import pytest

from quorate.errors import WireError
from quorate.etcd.codes import Code, EtcdError
from quorate.etcd.messages.requests import (
    Op,
    decode_reply,
    decode_request_untrusted,
    encode_error,
    encode_reply,
    encode_request,
)


def test_no_operation_looks_like_redis() -> None:
    # The fast way of GET looks at the first bytes before it looks at the flag.
    assert ord("*") not in [*Op]


def test_a_request_and_its_reply_are_read_as_they_were_written() -> None:
    assert decode_request_untrusted(encode_request(Op.PUT, b"message")) == (Op.PUT, b"message")
    assert decode_reply(encode_reply(7, b"body")) == (7, b"body")
    with pytest.raises(EtcdError, match="gone") as caught:
        decode_reply(encode_error(7, EtcdError(Code.NOT_FOUND, "gone")))
    assert caught.value.code is Code.NOT_FOUND


@pytest.mark.parametrize("payload", [b"", b"\0message", b"\xffmessage"])
def test_an_unknown_operation_is_refused(payload: bytes) -> None:
    with pytest.raises(WireError, match="expected an operation first"):
        decode_request_untrusted(payload)


def test_the_reply_of_a_member_without_the_keyspace_is_an_error() -> None:
    with pytest.raises(EtcdError, match="does not know etcd's keys") as caught:
        decode_reply(b"")
    assert caught.value.code is Code.UNAVAILABLE
