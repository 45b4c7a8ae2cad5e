"""Transactions: `TxnRequest`.

All compares, those of nested transactions too, are decided before anything is written: the ways
through the branches are a tree of them. Then come the checks, then the writes in the order of the
request. An error of these, for too much work mostly, undoes everything: `Keys.rollback`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import attrs

from ..keyspace.places import revision_of
from ..messages import rpc_pb2 as rpc
from ..messages.wire import field, varint
from .ranges import check_revision, range_body
from .work import ROW_STEPS
from .writes import apply_delete_range, apply_put, check_kept, check_lease

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from ..keyspace.keys import Keys, Version
    from .work import Work

__all__ = ["Transaction"]

_SUCCEEDED: Final = b"\x10\x01"  # fields of the replies
_RESPONSES: Final = 3
_HEADER: Final = 1
_REVISION: Final = b"\x18"
_RANGE, _PUT, _DELETE_RANGE, _TXN = 1, 2, 3, 4

_Compare: TypeAlias = rpc.Compare
_Ordered = TypeVar("_Ordered", int, bytes)
_ABSENT: Final = (0, 0, 0, 0)


@attrs.frozen
class _Way:
    """Which branch is taken, and which ones in its nested transactions, in their order."""

    succeeded: bool
    ops: Sequence[rpc.RequestOp]
    nested: Sequence[_Way]


@attrs.frozen
class Transaction:
    """What a transaction works on.

    Args:
        keys: the keys.
        work: charged.
        leases: those that exist.
        compacted: the first revision that can be read; -1 without any compaction.
    """

    keys: Keys
    work: Work
    leases: Container[int]
    compacted: int

    def apply(self, request: rpc.TxnRequest) -> bytes:
        """Return the reply without header; the caller commits, or rolls back.

        Raises:
            EtcdError: one of the operations failed. What was done is to be rolled back.
        """
        way = self._way(request)
        self._check_puts(way)
        self._check_ranges(way)
        return self._run(way)

    # --- compares

    def _way(self, request: rpc.TxnRequest) -> _Way:
        succeeded = all(self._holds(compare) for compare in request.compare)
        ops = request.success if succeeded else request.failure
        nested = [self._way(op.request_txn) for op in ops if op.HasField("request_txn")]
        return _Way(succeeded, ops, nested)

    def _holds(self, compare: rpc.Compare) -> bool:
        """Say whether a comparison holds for each key of its range; for a missing one with zeros.

        A value never equals, nor differs from, that of a missing key.
        """
        found = False
        for key in self.keys.span(compare.key, compare.range_end):
            found = True
            self.work.look(ROW_STEPS)
            if not self._holds_for(compare, key):
                return False
        if found:
            return True
        return compare.target != _Compare.VALUE and _meets(compare, _difference(compare, _ABSENT))

    def _holds_for(self, compare: rpc.Compare, key: bytes) -> bool:
        version = self.keys.live[key]
        if compare.target != _Compare.VALUE:
            return _meets(compare, _difference(compare, version))
        row = self.keys.row(version[0])
        self.work.read(len(row))
        return _meets(compare, _order(rpc.KeyValue.FromString(row).value, compare.value))

    # --- checks: all puts, and then all ranges, so that the first error is etcd's

    def _check_puts(self, way: _Way) -> None:
        nested = iter(way.nested)
        for op in way.ops:
            kind = op.WhichOneof("request")
            if kind == "request_put":
                check_kept(self.keys, op.request_put)
                check_lease(self.leases, op.request_put)
            elif kind == "request_txn":
                self._check_puts(next(nested))

    def _check_ranges(self, way: _Way) -> None:
        nested = iter(way.nested)
        for op in way.ops:
            kind = op.WhichOneof("request")
            if kind == "request_range":
                revision = op.request_range.revision
                check_revision(revision, self.keys.revision, self.compacted, nested=True)
            elif kind == "request_txn":
                self._check_ranges(next(nested))

    # --- operations

    def _run(self, way: _Way) -> bytes:
        """Do what a branch asks for; return its reply without header."""
        pieces = [_SUCCEEDED] if way.succeeded else []
        nested = iter(way.nested)
        for op in way.ops:
            if op.HasField("request_txn"):
                reply = field(_TXN, field(_HEADER, b"") + self._run(next(nested)))
            else:
                reply = self._reply_to(op)
            pieces.append(field(_RESPONSES, reply))
        return b"".join(pieces)

    def _reply_to(self, op: rpc.RequestOp) -> bytes:
        keys, work = self.keys, self.work
        kind = op.WhichOneof("request")
        if kind == "request_range":
            request = op.request_range
            body = range_body(keys, work, request, max(request.revision, 0))
            number = _RANGE
        elif kind == "request_put":
            body, number = apply_put(keys, work, op.request_put), _PUT
        else:
            body = apply_delete_range(keys, work, op.request_delete_range)
            number = _DELETE_RANGE
        # Each of them has a header with nothing but the revision, as in etcd.
        header = _REVISION + varint(keys.revision + bool(keys.changes))
        return field(number, field(_HEADER, header) + body)


def _difference(compare: rpc.Compare, version: Version) -> int:
    """Return how a number of a version compares with that of the request, which may be absent."""
    target = compare.target
    place, created, count, lease = version
    if target == _Compare.VERSION:
        return _order(count, compare.version)
    if target == _Compare.CREATE:
        return _order(created, compare.create_revision)
    if target == _Compare.MOD:
        return _order(revision_of(place), compare.mod_revision)
    if target == _Compare.LEASE:
        return _order(lease, compare.lease)
    return 0  # etcd has no error for a target or result that it does not know


def _order(one: _Ordered, other: _Ordered) -> int:
    return (one > other) - (one < other)


def _meets(compare: rpc.Compare, difference: int) -> bool:
    result = compare.result
    if result == _Compare.EQUAL:
        return difference == 0
    if result == _Compare.GREATER:
        return difference > 0
    if result == _Compare.LESS:
        return difference < 0
    return difference != 0 or result != _Compare.NOT_EQUAL
