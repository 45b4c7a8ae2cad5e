"""What a payload asks for, for readers of a log: its keys, and words for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from google.protobuf.message import DecodeError

from ...errors import WireError
from . import rpc_pb2 as rpc
from .requests import MAX_DEPTH, Op, decode_request_untrusted
from .together import payloads_untrusted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["Requested", "in_words_untrusted", "requested_untrusted"]

Requested: TypeAlias = tuple[str, bytes | None, bytes | None]
"""Operation, key and value. The operation of a transaction's parts says which branch they are in;
whether it was taken is not in the log."""

_SHOWN_BYTES: Final = 60
_SHOWN_REQUESTS: Final = 4
_SHOWN_CHANGES: Final = 4


def requested_untrusted(payload: bytes) -> list[list[Requested]]:
    """Return what a payload asks to be changed, by its requests: of each a row or more.

    Raises:
        WireError: the payload is malformed.
    """
    return [_of_one_untrusted(each) for each in payloads_untrusted(payload)]


def _of_one_untrusted(payload: bytes) -> list[Requested]:
    op, message = decode_request_untrusted(payload)
    name = op.name.replace("_", " ")
    try:
        if op is Op.PUT:
            put = rpc.PutRequest.FromString(message)
            return [(name, put.key, put.value)]
        if op is Op.DELETE_RANGE:
            return [(name, rpc.DeleteRangeRequest.FromString(message).key, None)]
        if op is Op.TXN:
            found = list(_of_txn(rpc.TxnRequest.FromString(message), name, MAX_DEPTH))
            return found or [(name, None, None)]
    except DecodeError as error:
        raise WireError(f"etcd payload: {op.name}: {error}") from None
    return [(name, None, None)]


def _of_txn(txn: rpc.TxnRequest, name: str, depth: int) -> Iterator[Requested]:
    if not depth:
        raise WireError(f"etcd payload: transactions in each other, over {MAX_DEPTH} deep")
    for branch, ops in ((name, txn.success), (f"{name} ELSE", txn.failure)):
        yield from _of_ops(ops, branch, depth)


def _of_ops(ops: Iterable[rpc.RequestOp], name: str, depth: int) -> Iterator[Requested]:
    for op in ops:
        if op.HasField("request_put"):
            yield f"{name} PUT", op.request_put.key, op.request_put.value
        elif op.HasField("request_delete_range"):
            yield f"{name} DELETE RANGE", op.request_delete_range.key, None
        elif op.HasField("request_txn"):
            yield from _of_txn(op.request_txn, name, depth - 1)


def in_words_untrusted(payload: bytes) -> str | None:
    """Return a payload in words, cut short: ``etcd PUT key="a" value=12 B lease=7``.

    None for a malformed one.
    """
    try:
        payloads = payloads_untrusted(payload)
        words = [_one_in_words_untrusted(each) for each in payloads[:_SHOWN_REQUESTS]]
    except (WireError, DecodeError):
        return None
    count = f"{len(payloads)} requests: " if len(payloads) > 1 else ""
    return f"etcd {count}{'; '.join(words)}{'; ...' * (len(payloads) > len(words))}"


def _one_in_words_untrusted(payload: bytes) -> str:
    op, message = decode_request_untrusted(payload)
    words = _WORDS[op](message) if op in _WORDS else ""
    return f"{op.name} {words}".rstrip()


def _put(message: bytes) -> str:
    put = rpc.PutRequest.FromString(message)
    value = "value=as before" if put.ignore_value else f"value={len(put.value):,} B"
    return f"{_key(put.key)} {value}{_lease(put.lease)}"


def _delete_range(message: bytes) -> str:
    delete = rpc.DeleteRangeRequest.FromString(message)
    return _range(delete.key, delete.range_end)


def _txn(message: bytes) -> str:
    txn = rpc.TxnRequest.FromString(message)
    compared = ", ".join(_key(one.key) for one in txn.compare[:_SHOWN_CHANGES])
    found = [
        f"{name.removeprefix('TXN ')} {_key(key or b'')}"
        for name, key, _ in _of_txn(txn, "TXN", MAX_DEPTH)
    ]
    more = ", ..." if len(found) > _SHOWN_CHANGES else ""
    changes = ", ".join(found[:_SHOWN_CHANGES]) or "nothing"
    return f"if {len(txn.compare)} hold ({compared}): {changes}{more}"


def _compact(message: bytes) -> str:
    return f"revision={rpc.CompactionRequest.FromString(message).revision}"


def _restored(message: bytes) -> str:
    return f"revisions go on {rpc.CompactionRequest.FromString(message).revision:,} higher"


def _grant(message: bytes) -> str:
    grant = rpc.LeaseGrantRequest.FromString(message)
    return f"lease={_id(grant.ID)} ttl={grant.TTL} s"


def _revoke(message: bytes) -> str:
    return f"lease={_id(rpc.LeaseRevokeRequest.FromString(message).ID)}"


def _keep_alive(message: bytes) -> str:
    ids = rpc.KeepAliveBatch.FromString(message).ids
    shown = " ".join(map(_id, ids[:_SHOWN_CHANGES]))
    return f"{len(ids)} leases: {shown}{' ...' if len(ids) > _SHOWN_CHANGES else ''}"


def _announce(message: bytes) -> str:
    said = rpc.Announcement.FromString(message)
    urls = ", ".join(said.client_urls)[:_SHOWN_BYTES]
    return f"member={said.member_id} urls={urls!a}"


def _token(message: bytes) -> str:
    name = rpc.Token.FromString(message).name.decode(errors="backslashreplace")
    return f"user={name[:_SHOWN_BYTES]!a}"


_WORDS: Final[dict[Op, Callable[[bytes], str]]] = {
    Op.PUT: _put,
    Op.DELETE_RANGE: _delete_range,
    Op.TXN: _txn,
    Op.COMPACT: _compact,
    Op.LEASE_GRANT: _grant,
    Op.LEASE_REVOKE: _revoke,
    Op.LEASE_KEEP_ALIVE: _keep_alive,
    Op.ANNOUNCE: _announce,
    Op.RESTORED: _restored,
    Op.TOKEN: _token,
}


def _key(key: bytes) -> str:
    return f"key={_shown(key)}"


def _range(key: bytes, range_end: bytes) -> str:
    return f"{_key(key)} to={_shown(range_end)}" if range_end else _key(key)


def _shown(word: bytes) -> str:
    text = repr(word[:_SHOWN_BYTES])[2:-1].replace('"', '\\"')
    return f'"{text}{"..." * (len(word) > _SHOWN_BYTES)}"'


def _lease(lease: int) -> str:
    return f" lease={_id(lease)}" if lease else ""


def _id(lease: int) -> str:
    # As etcdctl shows them.
    return f"{lease & (1 << 64) - 1:x}"
