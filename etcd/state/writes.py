"""Writing: `PutRequest` and `DeleteRangeRequest`, alone or in a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..codes import KEY_NOT_FOUND, LEASE_NOT_FOUND, Code, EtcdError
from ..messages import rpc_pb2 as rpc
from ..messages.wire import field, varint
from .work import MAX_LEASE_KEYS

if TYPE_CHECKING:
    from collections.abc import Container

    from .keys import Keys
    from .work import Work

__all__ = ["apply_delete_range", "apply_put"]

_PREV_KV: Final = 2  # fields of the replies
_DELETED: Final = b"\x10"
_PREV_KVS: Final = 3


def apply_put(keys: Keys, work: Work, leases: Container[int], request: rpc.PutRequest) -> bytes:
    """Put a key; return the reply without header.

    Raises:
        EtcdError: the lease does not exist or has too many keys, or there is no value or lease to
            keep. Nothing was done.
    """
    key, lease = request.key, request.lease
    if lease and lease not in leases:
        raise EtcdError(*LEASE_NOT_FOUND)
    old = keys.live.get(key)
    keep_value, keep_lease = request.ignore_value, request.ignore_lease
    if old is None and (keep_value or keep_lease):
        raise EtcdError(*KEY_NOT_FOUND)
    if lease and len(keys.leased.get(lease, ())) >= MAX_LEASE_KEYS:
        raise EtcdError(
            Code.RESOURCE_EXHAUSTED,
            f"etcdserver: a lease can have {MAX_LEASE_KEYS} keys; use more leases",
        )
    work.change(1)
    row = b""
    if old is not None and (request.prev_kv or keep_value):
        row = keys.row(old[0])
        work.reply(len(row))
    value = request.value
    if keep_value:
        value = rpc.KeyValue.FromString(row).value
    if old is not None and keep_lease:
        lease = old[3]
    keys.put(key, value, lease)
    return field(_PREV_KV, row) if request.prev_kv and row else b""


def apply_delete_range(keys: Keys, work: Work, request: rpc.DeleteRangeRequest) -> bytes:
    """Delete the keys of a range; return the reply without header.

    Raises:
        EtcdError: these are too many at once. Nothing was done.
    """
    count = keys.count(request.key, request.range_end)
    if not count:
        return b""
    work.change(count)
    found = list(keys.span(request.key, request.range_end))
    pieces = [_DELETED + varint(count)]
    if request.prev_kv:
        for key in found:
            row = keys.row(keys.live[key][0])
            work.reply(len(row))
            pieces.append(field(_PREV_KVS, row))
    for key in found:
        keys.delete(key)
    return b"".join(pieces)
