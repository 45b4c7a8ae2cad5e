"""Requests that are refused before any state is looked at; the texts are those of etcd."""

import pytest
from google.protobuf.message import Message

from quorate.etcd.codes import Code, EtcdError
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op
from quorate.etcd.messages.wire import field
from quorate.etcd.state.checks import only_reads, only_serializable, parse_untrusted
from tests.support.etcd_tables import delete_op, put_op, range_op, txn_op

NO_KEY = "etcdserver: key is not provided"
DUPLICATE = "etcdserver: duplicate key given in txn request"
TOO_MANY = "etcdserver: too many operations in txn request"


def refusal(op: Op, message: Message) -> str | None:
    """Return the error of a request, None if it is one that can be done."""
    try:
        parsed = parse_untrusted(op, message.SerializeToString())
    except EtcdError as error:
        return error.text
    assert parsed == message
    return None


REQUESTS: list[tuple[Op, Message, str | None]] = [
    (Op.RANGE, rpc.RangeRequest(range_end=b"a"), NO_KEY),
    (Op.PUT, rpc.PutRequest(value=b"a"), NO_KEY),
    (Op.DELETE_RANGE, rpc.DeleteRangeRequest(range_end=b"\0"), NO_KEY),
    (Op.TXN, rpc.TxnRequest(compare=[rpc.Compare()]), NO_KEY),
    (Op.TXN, rpc.TxnRequest(failure=[put_op(b"")]), NO_KEY),
    (Op.TXN, rpc.TxnRequest(success=[delete_op(b"")]), NO_KEY),
    (Op.TXN, rpc.TxnRequest(success=[rpc.RequestOp()]), "etcdserver: key not found"),
    (
        Op.PUT,
        rpc.PutRequest(key=b"a", value=b"x", ignore_value=True),
        "etcdserver: value is provided",
    ),
    (
        Op.PUT,
        rpc.PutRequest(key=b"a", lease=1, ignore_lease=True),
        "etcdserver: lease is provided",
    ),
    (Op.PUT, rpc.PutRequest(key=b"a", ignore_value=True, ignore_lease=True), None),
    (Op.ANNOUNCE, rpc.Announcement(name="n1", client_urls=["http://n1:2379"]), None),
]


def test_a_request_must_make_sense() -> None:
    for op, message, text in REQUESTS:
        assert refusal(op, message) == text, message


def test_sort_orders_are_known_ones() -> None:
    for unknown in (b"\x28\x07", b"\x30\x07"):
        with pytest.raises(EtcdError, match="etcdserver: invalid sort option"):
            parse_untrusted(Op.RANGE, rpc.RangeRequest(key=b"a").SerializeToString() + unknown)


def test_bytes_that_are_no_message_are_refused() -> None:
    for op in Op:
        with pytest.raises(EtcdError, match="unmarshalling") as caught:
            parse_untrusted(op, b"\xff")
        assert caught.value.code == Code.INTERNAL


def test_long_keys_are_refused() -> None:
    long = bytes(65 << 10)
    for op, message in (
        (Op.PUT, rpc.PutRequest(key=long)),
        (Op.TXN, rpc.TxnRequest(success=[range_op(long)])),
    ):
        with pytest.raises(EtcdError, match="a key of 66560 bytes") as caught:
            parse_untrusted(op, message.SerializeToString())
        assert caught.value.code == Code.RESOURCE_EXHAUSTED


def test_a_member_cannot_announce_at_length() -> None:
    text = refusal(Op.ANNOUNCE, rpc.Announcement(client_urls=["http://n1"] * 17))
    assert text is not None
    assert "16 URLs" in text


def test_a_transaction_has_128_operations_and_nested_ones_share_them() -> None:
    def puts(count: int, prefix: bytes) -> list[rpc.RequestOp]:
        return [put_op(prefix + str(one).encode()) for one in range(count)]

    most = puts(128, b"a")
    assert refusal(Op.TXN, rpc.TxnRequest(success=most, failure=most)) is None
    assert refusal(Op.TXN, rpc.TxnRequest(success=puts(129, b"a"))) == TOO_MANY
    assert refusal(Op.TXN, rpc.TxnRequest(compare=[rpc.Compare(key=b"a")] * 129)) == TOO_MANY
    for count, text in ((96, None), (97, TOO_MANY)):
        nested = txn_op(rpc.TxnRequest(failure=puts(count, b"b")))
        assert refusal(Op.TXN, rpc.TxnRequest(success=[*puts(31, b"a"), nested])) == text


def test_the_operations_of_all_nested_transactions_are_bounded_together() -> None:
    # 32 transactions of 31 operations are 1024; a compare more is one too many.
    nested = [
        txn_op(rpc.TxnRequest(success=[put_op(b"%d/%d" % (one, two)) for two in range(31)]))
        for one in range(32)
    ]
    request = rpc.TxnRequest(success=nested)
    assert refusal(Op.TXN, request) is None
    nested[0].request_txn.compare.add(key=b"a")
    request = rpc.TxnRequest(success=nested)
    assert refusal(Op.TXN, request) == TOO_MANY


def test_nesting_is_bounded() -> None:
    txn = rpc.TxnRequest()
    for _ in range(15):
        txn = rpc.TxnRequest(success=[txn_op(txn)])
    assert refusal(Op.TXN, txn) is None
    assert refusal(Op.TXN, rpc.TxnRequest(success=[txn_op(txn)])) == TOO_MANY
    request = b""
    for _ in range(129):
        request = field(2, field(4, request))
    with pytest.raises(EtcdError, match="unmarshalling"):
        parse_untrusted(Op.TXN, request)


PUT, OTHER = put_op(b"b"), put_op(b"c")


OVERLAPS: list[tuple[list[rpc.RequestOp], str | None]] = [
    ([PUT, OTHER], None),
    ([PUT, PUT], DUPLICATE),
    ([PUT, range_op(b"b")], None),
    ([PUT, delete_op(b"b")], DUPLICATE),
    ([delete_op(b"b"), PUT], DUPLICATE),
    ([delete_op(b"b"), delete_op(b"a", b"\0")], None),
    ([delete_op(b"a", b"b"), PUT], None),
    ([delete_op(b"a", b"c"), PUT, OTHER], DUPLICATE),
    ([delete_op(b"a", b"b"), delete_op(b"aa", b"d"), OTHER], DUPLICATE),
    ([delete_op(b"a", b"c"), delete_op(b"d", b"e"), OTHER], None),
    ([delete_op(b"c", b"a"), PUT], None),
    # Zero is not the end of all keys here, but a key: etcd forgets that.
    ([delete_op(b"a", b"\0"), PUT], None),
    ([PUT, txn_op(rpc.TxnRequest(success=[PUT]))], DUPLICATE),
    ([delete_op(b"b"), txn_op(rpc.TxnRequest(failure=[PUT]))], DUPLICATE),
    ([txn_op(rpc.TxnRequest(success=[PUT], failure=[PUT]))], None),
    ([txn_op(rpc.TxnRequest(success=[PUT], failure=[delete_op(b"b")]))], None),
    ([txn_op(rpc.TxnRequest(success=[one])) for one in (PUT, PUT)], DUPLICATE),
    ([txn_op(rpc.TxnRequest(success=[one])) for one in (delete_op(b"b"), PUT)], DUPLICATE),
    ([txn_op(rpc.TxnRequest(success=[one])) for one in (PUT, delete_op(b"b"))], None),
    ([txn_op(rpc.TxnRequest(success=[delete_op(b"b")])), PUT], DUPLICATE),
]


def test_a_key_is_put_once_and_not_deleted() -> None:
    for ops, text in OVERLAPS:
        assert refusal(Op.TXN, rpc.TxnRequest(success=ops)) == text, ops
        assert refusal(Op.TXN, rpc.TxnRequest(failure=ops)) == text, ops


def test_transactions_that_only_read_are_found() -> None:
    read, write = range_op(b"a"), put_op(b"a")
    anywhere = range_op(b"a", serializable=True)
    assert only_reads(rpc.TxnRequest(success=[read, txn_op(rpc.TxnRequest(failure=[read]))]))
    assert not only_reads(rpc.TxnRequest(success=[read], failure=[write]))
    assert not only_reads(rpc.TxnRequest(success=[txn_op(rpc.TxnRequest(failure=[write]))]))
    assert only_serializable(rpc.TxnRequest(success=[anywhere], failure=[anywhere]))
    assert not only_serializable(rpc.TxnRequest(success=[anywhere, read]))
