"""Writing: `PutRequest` and `DeleteRangeRequest`, alone or in a transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..codes import KEY_NOT_FOUND, LEASE_NOT_FOUND, Code, EtcdError
from ..messages import rpc_pb2 as rpc
from ..messages.wire import field, varint
from .work import MAX_LEASE_KEYS

if TYPE_CHECKING:
    from collections.abc import Container

    from ..keyspace.keys import Keys
    from .work import Work

__all__ = ["apply_delete_range", "apply_put", "check_kept", "check_lease"]

_PREV_KV: Final = 2  # fields of the replies
_DELETED: Final = b"\x10"
_PREV_KVS: Final = 3


def check_lease(leases: Container[int], request: rpc.PutRequest) -> None:
    """Check that the lease of a put exists.

    Raises:
        EtcdError: it does not.
    """
    if request.lease and request.lease not in leases:
        raise EtcdError(*LEASE_NOT_FOUND)


def check_kept(keys: Keys, request: rpc.PutRequest) -> None:
    """Check that there is a value or lease, if a put is to keep it.

    Raises:
        EtcdError: there is no such key.
    """
    if (request.ignore_value or request.ignore_lease) and request.key not in keys.live:
        raise EtcdError(*KEY_NOT_FOUND)


def apply_put(keys: Keys, work: Work, request: rpc.PutRequest) -> bytes:
    """Put a key, after `check_lease`; return the reply without header.

    Raises:
        EtcdError: it is too much work, there is nothing to keep, or the lease has too many keys.
            Nothing was done.
    """
    # In a transaction the key may be gone by now: neither etcd nor we take a deleted range up to
    # zero, which has no end, for one that overlaps. etcd ends with a panic then.
    check_kept(keys, request)
    key, value, lease = request.key, request.value, request.lease
    work.change(1)
    old = keys.live.get(key)
    row = b""
    if old is not None:
        if request.prev_kv or request.ignore_value:
            row = keys.row(old[0])
            work.read(len(row))
        if request.ignore_value:
            value = rpc.KeyValue.FromString(row).value
        if request.ignore_lease:
            lease = old[3]
    attached = keys.leased.get(lease, ())
    # Here, and not in `check_lease`: the puts before this one in a transaction count.
    if len(attached) >= MAX_LEASE_KEYS and key not in attached:
        raise EtcdError(
            Code.RESOURCE_EXHAUSTED,
            f"etcdserver: a lease can have {MAX_LEASE_KEYS} keys; use more leases",
        )
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
            work.read(len(row))
            pieces.append(field(_PREV_KVS, row))
    for key in found:
        keys.delete(key)
    return b"".join(pieces)
