"""Transactions; the replies are those of etcd 3.4.23."""

import pytest

from quorate.etcd.codes import Code, EtcdError
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op
from quorate.etcd.state import work
from tests.support.etcd_tables import Machine, delete_op, put_op, range_op, txn_op

C = rpc.Compare


@pytest.fixture
def machine() -> Machine:
    machine = Machine()
    machine.grant(7, 60)
    machine.put(b"a", b"x", lease=7)
    machine.put(b"b", b"y")
    machine.put(b"b", b"y")
    return machine


def holds(machine: Machine, compare: rpc.Compare) -> bool:
    return machine.txn(rpc.TxnRequest(compare=[compare])).succeeded


COMPARES = [
    (C(key=b"a", target=C.VERSION, version=1), True),
    (C(key=b"a", target=C.CREATE, create_revision=2), True),
    (C(key=b"a", target=C.CREATE, create_revision=2, result=C.GREATER), False),
    (C(key=b"b", target=C.MOD, mod_revision=3, result=C.GREATER), True),
    (C(key=b"b", target=C.MOD, mod_revision=5, result=C.LESS), True),
    (C(key=b"a", target=C.VALUE, value=b"x"), True),
    (C(key=b"a", target=C.VALUE, value=b"w", result=C.GREATER), True),
    (C(key=b"a", target=C.VALUE, value=b"w", result=C.NOT_EQUAL), True),
    (C(key=b"a", target=C.LEASE, lease=7), True),
    (C(key=b"b", target=C.LEASE, lease=7), False),
    # Missing keys have zeros, but no value.
    (C(key=b"z", target=C.VERSION, version=0), True),
    (C(key=b"z", target=C.CREATE, create_revision=0), True),
    (C(key=b"z", target=C.MOD, mod_revision=1, result=C.LESS), True),
    (C(key=b"z", target=C.VALUE, value=b""), False),
    (C(key=b"z", target=C.VALUE, value=b"x", result=C.NOT_EQUAL), False),
    # A range holds if each of its keys does.
    (C(key=b"a", range_end=b"c", target=C.MOD, mod_revision=1, result=C.GREATER), True),
    (C(key=b"a", range_end=b"\0", target=C.VERSION, version=1), False),
    (C(key=b"y", range_end=b"z", target=C.VERSION, version=0), True),
    # What the target does not belong to counts as zero.
    (C(key=b"a", target=C.VERSION, mod_revision=2), False),
    (C(key=b"z", target=C.VERSION, mod_revision=2), True),
]


def test_a_comparison_holds_or_not(machine: Machine) -> None:
    for compare, expected in COMPARES:
        assert holds(machine, compare) is expected, compare


def test_an_unknown_result_holds_and_an_unknown_target_is_equal(machine: Machine) -> None:
    # Both come from a client of the future; etcd has no error for them.
    unknown = rpc.Compare.FromString(C(key=b"a").SerializeToString() + b"\x08\x09")
    assert holds(machine, unknown)
    unknown = rpc.Compare.FromString(
        C(key=b"a", result=C.NOT_EQUAL).SerializeToString() + b"\x10\x08"
    )
    assert not holds(machine, unknown)


def test_all_compares_must_hold(machine: Machine) -> None:
    one = C(key=b"a", target=C.VERSION, version=1)
    other = C(key=b"b", target=C.VERSION, version=1)
    reply = machine.txn(
        rpc.TxnRequest(compare=[one, other], success=[put_op(b"a")], failure=[put_op(b"c")])
    )
    assert not reply.succeeded
    assert machine.keys() == [b"a", b"b", b"c"]


def test_later_operations_see_earlier_ones_and_share_a_revision(machine: Machine) -> None:
    reply = machine.txn(
        rpc.TxnRequest(
            success=[
                range_op(b"c"),
                put_op(b"c", b"z"),
                range_op(b"c"),
                delete_op(b"a", b"c"),
                range_op(b"a", b"\0", count_only=True),
                range_op(b"a", b"\0", revision=4, count_only=True),
            ]
        )
    )
    header, new = rpc.ResponseHeader(revision=4), rpc.ResponseHeader(revision=5)
    kv = rpc.KeyValue(key=b"c", create_revision=5, mod_revision=5, version=1, value=b"z")
    assert reply == rpc.TxnResponse(
        succeeded=True,
        responses=[
            rpc.ResponseOp(response_range=rpc.RangeResponse(header=header)),
            rpc.ResponseOp(response_put=rpc.PutResponse(header=new)),
            rpc.ResponseOp(response_range=rpc.RangeResponse(header=new, kvs=[kv], count=1)),
            rpc.ResponseOp(response_delete_range=rpc.DeleteRangeResponse(header=new, deleted=2)),
            rpc.ResponseOp(response_range=rpc.RangeResponse(header=new, count=1)),
            rpc.ResponseOp(response_range=rpc.RangeResponse(header=new, count=2)),
        ],
    )
    assert machine.revision == 5
    changes = [(one.key, one.sub, one.deleted) for one in machine.state.changes_of(5)]
    assert changes == [(b"c", 0, False), (b"a", 1, True), (b"b", 2, True)]


def test_nested_compares_are_decided_before_anything_is_written(machine: Machine) -> None:
    absent = C(key=b"c", target=C.VERSION, version=0)
    nested = rpc.TxnRequest(compare=[absent], success=[put_op(b"d", b"absent")])
    reply = machine.txn(rpc.TxnRequest(success=[put_op(b"c"), txn_op(nested)]))
    empty, new = rpc.ResponseHeader(), rpc.ResponseHeader(revision=5)
    put = rpc.ResponseOp(response_put=rpc.PutResponse(header=new))
    assert reply == rpc.TxnResponse(
        succeeded=True,
        responses=[
            put,
            rpc.ResponseOp(
                response_txn=rpc.TxnResponse(header=empty, succeeded=True, responses=[put])
            ),
        ],
    )


def test_a_transaction_that_changes_nothing_is_no_revision(machine: Machine) -> None:
    request = rpc.TxnRequest(success=[range_op(b"a"), delete_op(b"z")])
    assert machine.txn(request).responses[0].response_range.count == 1
    assert machine.revision == 4


def test_a_transaction_that_only_reads_can_be_a_query(machine: Machine) -> None:
    request = rpc.TxnRequest(success=[range_op(b"a")])
    reply = rpc.TxnResponse.FromString(machine.query(Op.TXN, request))
    assert reply == machine.txn(request)
    nested = rpc.TxnRequest(failure=[txn_op(request)])
    assert machine.query(Op.TXN, nested) == machine.txn(nested).SerializeToString()
    with pytest.raises(EtcdError, match="a query cannot write"):
        machine.query(Op.TXN, rpc.TxnRequest(failure=[put_op(b"a")]))


FAILING = [
    (put_op(b"c", lease=9), "etcdserver: requested lease not found"),
    (put_op(b"c", ignore_lease=True), "etcdserver: key not found"),
    (range_op(b"a", revision=5), "etcdserver: mvcc: required revision is a future revision"),
    (range_op(b"a", revision=-5), "etcdserver: mvcc: required revision has been compacted"),
]


@pytest.mark.parametrize("number", range(len(FAILING)))
def test_an_operation_that_fails_undoes_all(machine: Machine, number: int) -> None:
    op, text = FAILING[number]
    before = machine.range(b"\0", b"\0"), dict(machine.tables.by_key)
    nested = rpc.TxnRequest(success=[op])
    with pytest.raises(EtcdError) as caught:
        machine.txn(rpc.TxnRequest(success=[put_op(b"a"), delete_op(b"b"), txn_op(nested)]))
    assert caught.value.text == text
    assert before == (machine.range(b"\0", b"\0"), dict(machine.tables.by_key))


def test_puts_are_checked_before_ranges_and_keys_before_leases(machine: Machine) -> None:
    future = range_op(b"a", revision=9)
    for put, text in (
        (put_op(b"c", lease=9), "etcdserver: requested lease not found"),
        (put_op(b"c", lease=9, ignore_value=True), "etcdserver: key not found"),
    ):
        with pytest.raises(EtcdError) as caught:
            machine.txn(rpc.TxnRequest(success=[future, put]))
        assert caught.value.text == text


def test_too_much_work_undoes_what_was_done(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.put(b"d")
    machine.delete(b"d")
    before = machine.range(b"\0", b"\0"), dict(machine.tables.by_key), machine.time_to_live(7)
    everything = range_op(b"\0", b"\0")
    monkeypatch.setattr(work, "MAX_REPLY_BYTES", 20)
    with pytest.raises(EtcdError) as caught:
        machine.txn(
            rpc.TxnRequest(
                success=[
                    put_op(b"a", b"new"),  # it also leaves its lease
                    put_op(b"c", lease=7),
                    put_op(b"d"),  # its deletion is still in the history
                    delete_op(b"b"),
                    everything,
                ]
            )
        )
    assert caught.value.code == Code.RESOURCE_EXHAUSTED
    monkeypatch.undo()
    after = machine.range(b"\0", b"\0"), dict(machine.tables.by_key), machine.time_to_live(7)
    assert before == after
    assert machine.keys(revision=5) == [b"a", b"b", b"d"]
    assert machine.put(b"d") == rpc.PutResponse()
    assert machine.range(b"d").kvs[0].create_revision == 7


def test_a_put_that_keeps_what_the_transaction_deletes_is_refused(machine: Machine) -> None:
    """etcd does not see that such a range overlaps, and then panics."""
    for value in (False, True):
        put = put_op(b"b", ignore_value=value, ignore_lease=not value)
        with pytest.raises(EtcdError, match="key not found"):
            machine.txn(rpc.TxnRequest(success=[delete_op(b"a", b"\0"), put]))
    assert machine.keys() == [b"a", b"b"]


def test_a_key_can_change_twice_in_nested_transactions(machine: Machine) -> None:
    # etcd finds only deletions that come before a put.
    put, delete = (rpc.TxnRequest(success=[op]) for op in (put_op(b"c"), delete_op(b"c")))
    machine.txn(rpc.TxnRequest(success=[txn_op(put), txn_op(delete)]))
    assert [one.deleted for one in machine.state.changes_of(5)] == [False, True]
    assert machine.keys() == machine.keys(revision=5) == [b"a", b"b"]
    assert machine.state.previous(machine.state.changes_of(5)[1]) is not None
    machine.put(b"c")
    machine.compact_all(6)
    assert machine.keys() == [b"a", b"b", b"c"]


def test_the_keys_that_a_transaction_compares_are_bounded(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "MAX_TXN_STEPS", 2 * work.ROW_STEPS)
    both = C(key=b"a", range_end=b"\0", target=C.VERSION, version=9, result=C.LESS)
    assert holds(machine, both)
    with pytest.raises(EtcdError, match="compare smaller ranges") as caught:
        machine.txn(rpc.TxnRequest(compare=[both] * 2))
    assert caught.value.code == Code.RESOURCE_EXHAUSTED
    # A range alone is read by the leader only, and may be longer.
    assert len(machine.range(b"a", b"\0", sort_order=2, sort_target=4).kvs) == 2


def test_the_values_that_a_transaction_compares_are_bounded(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "MAX_REPLY_BYTES", 1000)
    machine.put(b"c", b"z" * 400)
    values = C(key=b"c", target=C.VALUE, value=b"y", result=C.GREATER)
    assert holds(machine, values)
    request = rpc.TxnRequest(compare=[values] * 3)
    with pytest.raises(EtcdError, match="compare smaller ranges") as caught:
        machine.txn(request)
    assert caught.value.code == Code.RESOURCE_EXHAUSTED
    with pytest.raises(EtcdError, match="compare smaller ranges"):
        machine.query(Op.TXN, request)
    numbers = C(key=b"c", target=C.VERSION, version=1)
    assert machine.txn(rpc.TxnRequest(compare=[numbers] * 3)).succeeded


def test_what_a_transaction_changes_leaves_less_for_what_it_reads(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "MAX_TXN_STEPS", 2 * work.CHANGE_STEPS + work.ROW_STEPS)
    both = delete_op(b"a", b"\0")
    with pytest.raises(EtcdError, match="can change 2 keys, and fewer where") as caught:
        machine.txn(rpc.TxnRequest(success=[range_op(b"a", b"\0"), both]))
    assert caught.value.code == Code.RESOURCE_EXHAUSTED
    assert machine.state.key_count == 2
    assert machine.txn(rpc.TxnRequest(success=[range_op(b"a"), both])).succeeded
    assert machine.state.key_count == 0
