"""Random requests: the state machine answers as a plain model of etcd does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.etcd.codes import EtcdError
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op
from quorate.etcd.state.checks import parse_untrusted
from quorate.simulation.etcd.model import Model
from tests.support.etcd_tables import Machine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quorate.etcd.keyspace.change import Change

keys = st.sampled_from([b"a", b"aa", b"b", b"c", b"\xff"])
ends = st.sampled_from([b"", b"", b"\0", b"b", b"c"])
values = st.sampled_from([b"", b"x", b"y"])
leases = st.sampled_from([0, 0, 1, 2])
back = st.integers(-1, 12)  # how many revisions before the present one
rarely = st.sampled_from([False, False, False, True])


def message(kind: type[Message], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **fields)


ranges = message(
    rpc.RangeRequest,
    key=keys,
    range_end=ends,
    limit=st.sampled_from([0, 0, 1, 2]),
    revision=st.sampled_from([0, 0, 2, 5, 9, 14, 20]),
    sort_order=st.sampled_from([0, 0, 1, 2]),
    sort_target=st.sampled_from([0, 0, 1, 2, 3, 4]),
    keys_only=rarely,
    count_only=rarely,
    min_mod_revision=st.sampled_from([0, 0, 0, 4]),
    max_mod_revision=st.sampled_from([0, 0, 0, 9]),
    min_create_revision=st.sampled_from([0, 0, 0, 5]),
    max_create_revision=st.sampled_from([0, 0, 0, 8]),
)
puts = message(
    rpc.PutRequest,
    key=keys,
    value=values,
    lease=leases,
    prev_kv=rarely,
    ignore_value=rarely,
    ignore_lease=rarely,
)
deletions = message(rpc.DeleteRangeRequest, key=keys, range_end=ends, prev_kv=rarely)
numbers = st.sampled_from([0, 1, 2, 5, 9])
compares: st.SearchStrategy[Any] = st.one_of(
    [
        message(
            rpc.Compare,
            key=keys,
            range_end=ends,
            result=st.integers(0, 3),
            target=st.just(target),
            **{name: values if name == "value" else numbers},
        )
        for target, name in enumerate(
            ("version", "create_revision", "mod_revision", "value", "lease")
        )
    ]
)
simple_ops = st.one_of(
    message(rpc.RequestOp, request_range=ranges),
    message(rpc.RequestOp, request_put=puts),
    message(rpc.RequestOp, request_delete_range=deletions),
)
op_lists: st.SearchStrategy[list[rpc.RequestOp]] = st.lists(simple_ops, max_size=3)
compare_lists = st.lists(compares, max_size=2)
nested = message(
    rpc.RequestOp,
    request_txn=message(rpc.TxnRequest, compare=compare_lists, success=op_lists, failure=op_lists),
)
op_lists_with_one = st.tuples(op_lists, st.lists(nested, max_size=1), op_lists).map(
    lambda parts: [op for part in parts for op in part]
)
txns = message(
    rpc.TxnRequest,
    compare=compare_lists,
    success=op_lists_with_one,
    failure=op_lists_with_one,
)
requests: st.SearchStrategy[Any] = st.one_of(
    ranges,
    puts,
    puts,
    deletions,
    txns,
    message(rpc.CompactionRequest, revision=numbers),
)
steps: st.SearchStrategy[Any] = st.one_of(
    requests,
    requests,
    requests,
    st.tuples(st.just("grant"), st.sampled_from([1, 2]), st.integers(1, 4)),
    st.tuples(st.just("revoke"), st.sampled_from([1, 2])),
    st.tuples(st.just("renew"), st.sampled_from([1, 2])),
    st.tuples(st.just("batch"), st.integers(0, 2500)),
    st.tuples(st.just("term"), st.integers(0, 5000)),
    st.tuples(st.just("reload")),
)
OPS: dict[type[Message], tuple[Op, type[Message]]] = {
    rpc.RangeRequest: (Op.RANGE, rpc.RangeResponse),
    rpc.PutRequest: (Op.PUT, rpc.PutResponse),
    rpc.DeleteRangeRequest: (Op.DELETE_RANGE, rpc.DeleteRangeResponse),
    rpc.TxnRequest: (Op.TXN, rpc.TxnResponse),
    rpc.CompactionRequest: (Op.COMPACT, rpc.CompactionResponse),
}


class Both:
    """The machine and the model, side by side."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.model = Model()
        self.last_ms = self.machine.now_ms  # of the last batch
        self.heard: dict[int, list[Change]] = {}
        self.machine.state.listen(self._hear)

    def _hear(self, revision: int, changes: Sequence[Change]) -> None:
        if changes:  # without any, the state was loaded anew
            self.heard[revision] = list(changes)
        else:
            assert revision == self.machine.state.revision

    def request(self, request: Message) -> None:
        op, kind = OPS[type(request)]
        try:
            parse_untrusted(op, request.SerializeToString())
        except EtcdError:
            return  # the port would not record it; see test_checks.py

        def ours() -> Message:
            reply = kind.FromString(self.machine.apply(op, request))
            without_headers(reply)
            return reply

        assert outcome(ours) == outcome(lambda: self.model.apply(request))

    def step(self, name: str, *rest: int) -> None:
        machine, model = self.machine, self.model
        if name == "grant":
            ours = outcome(lambda: machine.grant(*rest) and None)
            assert ours == outcome(lambda: model.grant(rest[0], rest[1], machine.now_ms))
        elif name == "revoke":
            ours = outcome(lambda: machine.revoke(rest[0]))
            assert ours == outcome(lambda: model.revoke(rest[0]))
        elif name == "renew":
            assert machine.keep_alive(rest[0]) == [model.ttls.get(rest[0], 0)]
            model.renew(rest[0], machine.now_ms)
        elif name == "reload":
            machine.batch()
            model.expire(machine.now_ms)
            self.last_ms = machine.now_ms
            machine.state.reload()
        else:
            machine.now_ms += rest[0]
            if name == "term":
                machine.state.begin_term(machine.now_ms)
                model.begin_term(self.last_ms, machine.now_ms)
            machine.batch()
            model.expire(machine.now_ms)
            self.last_ms = machine.now_ms

    def check(self) -> None:
        """The present keys are the same, the history too, and a restarted member agrees."""
        machine, model = self.machine, self.model
        assert machine.state.revision == model.revision
        assert machine.leases() == sorted(model.ttls, key=lambda one: (model.deadlines[one], one))
        for lease in model.ttls:
            held = [key for key, kv in model.states[-1].items() if kv.lease == lease]
            assert list(machine.time_to_live(lease).keys) == sorted(held)
        for revision in range(max(model.compacted, 1), model.revision + 1):
            expected = sorted(model.states[revision].items())
            found = machine.range(b"\0", b"\0", revision=revision).kvs
            assert [(kv.key, kv) for kv in found] == expected
            self._check_changes(revision)
        restarted = Machine(machine.tables.copy())
        assert restarted.range(b"\0", b"\0") == machine.range(b"\0", b"\0")
        assert restarted.hash() == machine.hash()

    def _check_changes(self, revision: int) -> None:
        if revision < 2:
            return
        state = self.machine.state
        changes = state.changes_of(revision)
        assert changes == self.heard[revision]
        if revision <= state.compacted:
            return
        replaced = dict(self.model.states[revision - 1])
        for change in changes:
            before = replaced.pop(change.key, None)
            assert state.previous(change) == (before and before.SerializeToString())
            assert change.created == (before is None)
            if not change.deleted:
                replaced[change.key] = rpc.KeyValue.FromString(change.row)


def outcome(act: Callable[[], object]) -> object:
    try:
        return act()
    except EtcdError as error:
        return error.code, error.text


def without_headers(reply: Message) -> None:
    """Clear the headers, which the model has not."""
    reply.ClearField("header")
    if isinstance(reply, rpc.TxnResponse):
        for one in reply.responses:
            without_headers(getattr(one, one.WhichOneof("response") or ""))


@settings(max_examples=150)
@given(st.lists(steps, max_size=40))
def test_the_machine_is_the_model(run: list[Message | tuple[Any, ...]]) -> None:
    both = Both()
    for step in run:
        if isinstance(step, tuple):
            both.step(*step)
        else:
            both.request(step)
    both.check()
