"""A plain model of etcd: a dictionary of all keys for each revision, and nothing clever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...etcd.codes import (
    COMPACTED,
    FUTURE_REVISION,
    KEY_NOT_FOUND,
    LEASE_EXISTS,
    LEASE_NOT_FOUND,
    EtcdError,
)
from ...etcd.messages import rpc_pb2 as rpc

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.message import Message

KEY_OF_TARGET = ("key", "version", "create_revision", "mod_revision", "value")
FIELD_OF_TARGET = ("version", "create_revision", "mod_revision", "value", "lease")


class Model:
    """etcd in fifty lines or so.

    Attributes:
        states: all keys at each revision; the index is the revision.
        compacted: the first revision that can be read.
        deadlines: when each lease ends, in lease time.
        ttls: for how long each lease was granted.
        skipped_ms: log time that was no lease time.
        grace_end: lease time until which no lease ends.
    """

    def __init__(self) -> None:
        self.states: list[dict[bytes, rpc.KeyValue]] = [{}, {}]
        self.compacted = -1
        self.deadlines: dict[int, int] = {}
        self.ttls: dict[int, int] = {}
        self.skipped_ms = 0
        self.grace_end = 0
        self._wrote = False  # in the request under way

    @property
    def revision(self) -> int:
        """The present revision."""
        return len(self.states) - 1

    def apply(self, request: Message) -> Message:
        """Apply a request with all that it changes, or nothing; return the reply."""
        state = dict(self.states[-1])
        self._wrote = False
        reply = self._do(request, state)
        if self._wrote:  # even if a transaction has deleted what it has put
            self.states.append(state)
        return reply

    def _do(self, request: Message, state: dict[bytes, rpc.KeyValue]) -> Message:
        match request:
            case rpc.PutRequest():
                if request.lease and request.lease not in self.ttls:
                    raise EtcdError(*LEASE_NOT_FOUND)
                self._check_put(request, state)
                return self._put(request, state)
            case rpc.DeleteRangeRequest():
                return self._delete(request, state)
            case rpc.RangeRequest():
                self._check_revision(request.revision)
                return self._range(request, state)
            case rpc.TxnRequest():
                self._check_txn(request, state)
                return self._txn(request, dict(state), state)
            case rpc.CompactionRequest():
                if request.revision <= self.compacted:
                    raise EtcdError(*COMPACTED)
                self._check_revision(request.revision)
                self.compacted = request.revision
                return rpc.CompactionResponse()
            case _:
                raise AssertionError(request)

    # --- ranges

    def read(self, request: rpc.RangeRequest, revision: int) -> rpc.RangeResponse:
        """Return the reply to a request at a revision, compacted or not."""
        asked = rpc.RangeRequest()
        asked.CopyFrom(request)
        asked.revision = revision
        return self._range(asked, {})

    def _check_revision(self, revision: int) -> None:
        if revision > self.revision:
            raise EtcdError(*FUTURE_REVISION)
        if 0 < revision < self.compacted:
            raise EtcdError(*COMPACTED)

    def _range(
        self, request: rpc.RangeRequest, present: dict[bytes, rpc.KeyValue]
    ) -> rpc.RangeResponse:
        state = self.states[request.revision] if request.revision else present
        kvs = within(state, request.key, request.range_end)
        reply = rpc.RangeResponse(count=len(kvs))
        if request.count_only:
            return reply
        filters = (
            ("mod_revision", request.min_mod_revision, request.max_mod_revision),
            ("create_revision", request.min_create_revision, request.max_create_revision),
        )
        filtered = any(least or most for _, least, most in filters)
        order, target = request.sort_order, request.sort_target
        if request.limit and not filtered and (not order or (order == 1 and not target)):
            kvs = kvs[: request.limit + 1]
        for name, least, most in filters:
            kvs = [kv for kv in kvs if least <= getattr(kv, name) <= (most or 10**18)]
        kvs.sort(key=lambda kv: getattr(kv, KEY_OF_TARGET[target]), reverse=order == 2)
        reply.more = 0 < request.limit < len(kvs)
        for kv in kvs[: request.limit or None]:
            reply.kvs.add().CopyFrom(kv)
            if request.keys_only:
                reply.kvs[-1].value = b""
        return reply

    # --- writes

    def _check_put(self, request: rpc.PutRequest, state: dict[bytes, rpc.KeyValue]) -> None:
        if (request.ignore_value or request.ignore_lease) and request.key not in state:
            raise EtcdError(*KEY_NOT_FOUND)
        if request.lease and request.lease not in self.ttls:
            raise EtcdError(*LEASE_NOT_FOUND)

    def _put(self, request: rpc.PutRequest, state: dict[bytes, rpc.KeyValue]) -> rpc.PutResponse:
        self._wrote = True
        old = state.get(request.key)
        value, lease = request.value, request.lease
        if old is not None:
            value = old.value if request.ignore_value else value
            lease = old.lease if request.ignore_lease else lease
        state[request.key] = rpc.KeyValue(
            key=request.key,
            value=value,
            lease=lease,
            create_revision=self.revision + 1 if old is None else old.create_revision,
            mod_revision=self.revision + 1,
            version=1 if old is None else old.version + 1,
        )
        return rpc.PutResponse(prev_kv=old if request.prev_kv else None)

    def _delete(
        self, request: rpc.DeleteRangeRequest, state: dict[bytes, rpc.KeyValue]
    ) -> rpc.DeleteRangeResponse:
        gone = within(state, request.key, request.range_end)
        for kv in gone:
            self._wrote = True
            del state[kv.key]
        return rpc.DeleteRangeResponse(deleted=len(gone), prev_kvs=gone if request.prev_kv else ())

    # --- transactions

    def _branch(
        self, request: rpc.TxnRequest, before: dict[bytes, rpc.KeyValue]
    ) -> tuple[bool, Iterable[rpc.RequestOp]]:
        succeeded = all(holds(compare, before) for compare in request.compare)
        return succeeded, request.success if succeeded else request.failure

    def _check_txn(self, request: rpc.TxnRequest, before: dict[bytes, rpc.KeyValue]) -> None:
        ops = list(self._branch(request, before)[1])
        nested = [op for op in ops if op.HasField("request_txn")]
        assert len(nested) <= 1  # so all puts come before all ranges
        for op in ops:
            if op.HasField("request_put"):
                self._check_put(op.request_put, before)
        for op in nested:
            self._check_txn(op.request_txn, before)
        for op in ops:
            if op.HasField("request_range"):
                self._check_revision(op.request_range.revision)

    def _txn(
        self,
        request: rpc.TxnRequest,
        before: dict[bytes, rpc.KeyValue],
        state: dict[bytes, rpc.KeyValue],
    ) -> rpc.TxnResponse:
        succeeded, ops = self._branch(request, before)
        reply = rpc.TxnResponse(succeeded=succeeded)
        for op in ops:
            one = reply.responses.add()
            if op.HasField("request_range"):
                one.response_range.CopyFrom(self._range(op.request_range, state))
            elif op.HasField("request_put"):
                one.response_put.CopyFrom(self._put(op.request_put, state))
            elif op.HasField("request_delete_range"):
                one.response_delete_range.CopyFrom(self._delete(op.request_delete_range, state))
            else:
                one.response_txn.CopyFrom(self._txn(op.request_txn, before, state))
        return reply

    # --- leases

    def grant(self, lease: int, ttl: int, now_ms: int) -> None:
        """Make a lease."""
        if lease in self.ttls:
            raise EtcdError(*LEASE_EXISTS)
        self.ttls[lease] = max(ttl, 2)
        self.renew(lease, now_ms)

    def renew(self, lease: int, now_ms: int) -> None:
        """Give a lease its time again, if there is one."""
        if lease in self.ttls:
            self.deadlines[lease] = now_ms - self.skipped_ms + 1000 * self.ttls[lease]

    def revoke(self, lease: int) -> None:
        """End a lease."""
        if self.ttls.pop(lease, None) is None:
            raise EtcdError(*LEASE_NOT_FOUND)
        del self.deadlines[lease]
        state = {key: kv for key, kv in self.states[-1].items() if kv.lease != lease}
        if state != self.states[-1]:
            self.states.append(state)

    def begin_term(self, last_ms: int, now_ms: int) -> None:
        """Begin a term at some log time."""
        if self.ttls:
            self.skipped_ms += now_ms - last_ms
            self.grace_end = now_ms - self.skipped_ms + 2000

    def expire(self, now_ms: int) -> None:
        """End the leases that are over."""
        lease_now = now_ms - self.skipped_ms
        due = [(end, lease) for lease, end in self.deadlines.items() if end <= lease_now]
        for _, lease in sorted(due) if lease_now >= self.grace_end else ():
            self.revoke(lease)


def within(state: dict[bytes, rpc.KeyValue], key: bytes, end: bytes) -> list[rpc.KeyValue]:
    """Return the keys of a range in order."""
    if not end:
        return [state[key]] if key in state else []
    return [state[one] for one in sorted(state) if key <= one and (end == b"\0" or one < end)]


def holds(compare: rpc.Compare, state: dict[bytes, rpc.KeyValue]) -> bool:
    """Say whether a comparison holds."""
    name = FIELD_OF_TARGET[compare.target]
    kvs = within(state, compare.key, compare.range_end)
    if not kvs and name == "value":
        return False
    expected = getattr(compare, name)
    for kv in kvs or [rpc.KeyValue()]:
        actual = getattr(kv, name)
        results = (actual == expected, actual > expected, actual < expected, actual != expected)
        if not results[compare.result]:
            return False
    return True
