"""Whether a transaction puts a key twice, or puts and deletes it: etcd refuses that.

etcd looks at each list of operations from its nested transactions upwards. A put must not meet
another put, nor a range that is deleted on its level or that an earlier nested transaction deletes.
The two branches of one transaction never run both, so they may put the same key. What etcd does not
see is not refused here either: a put in one nested transaction, and a deletion in a later one.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, TypeAlias

from ..codes import DUPLICATE_KEY, EtcdError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..messages import rpc_pb2 as rpc

__all__ = ["check_overlaps"]

_Interval: TypeAlias = tuple[bytes, bytes]
"""The first key, and the first one behind; empty for none."""


class _Deleted:
    """Ranges that are deleted; they may overlap. Finding a key in them takes logarithmic time."""

    def __init__(self) -> None:
        self.intervals: list[_Interval] = []
        self._merged: list[_Interval] = []
        self._counted = 0

    def add(self, intervals: Iterable[_Interval]) -> None:
        self.intervals += intervals

    def has(self, key: bytes) -> bool:
        if self._counted != len(self.intervals):
            self._counted = len(self.intervals)
            self._merged = _merge(self.intervals)
        # The last interval that begins at the key or before it.
        index = bisect_left(self._merged, (key + b"\0", b""))
        if not index:
            return False
        _, end = self._merged[index - 1]
        return not end or key < end


def _merge(intervals: Iterable[_Interval]) -> list[_Interval]:
    """Return disjoint intervals in order that have the same keys."""
    merged: list[_Interval] = []
    for first, end in sorted(intervals):
        if merged and (not merged[-1][1] or first <= merged[-1][1]):
            last, before = merged[-1]
            merged[-1] = (last, max(before, end) if before and end else b"")
        else:
            merged.append((first, end))
    return merged


def check_overlaps(ops: Sequence[rpc.RequestOp]) -> tuple[set[bytes], list[_Interval]]:
    """Check one branch of a transaction; return the keys it puts, and the ranges it deletes.

    Raises:
        EtcdError: a key is put twice, or put and deleted.
    """
    deleted = _Deleted()
    for op in ops:
        if op.HasField("request_delete_range"):
            request = op.request_delete_range
            end = request.range_end or request.key + b"\0"
            if request.key < end:
                deleted.add([(request.key, end)])
    puts: set[bytes] = set()
    for op in ops:
        if op.HasField("request_txn"):
            then, then_deleted = check_overlaps(op.request_txn.success)
            otherwise, otherwise_deleted = check_overlaps(op.request_txn.failure)
            _check(then, puts, deleted)
            _check(otherwise, puts, deleted)
            puts |= then | otherwise
            deleted.add(then_deleted)
            deleted.add(otherwise_deleted)
    for op in ops:
        if op.HasField("request_put"):
            _check((op.request_put.key,), puts, deleted)
            puts.add(op.request_put.key)
    return puts, deleted.intervals


def _check(keys: Iterable[bytes], puts: set[bytes], deleted: _Deleted) -> None:
    if any(key in puts or deleted.has(key) for key in keys):
        raise EtcdError(*DUPLICATE_KEY)
