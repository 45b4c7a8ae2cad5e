"""What is wrong with a request by itself, before any state is looked at.

The port asks this before it records a request, the state machine before it applies one: a payload
of the log may come from another version, and all members must treat it alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from google.protobuf.message import DecodeError, Message

from ..codes import (
    INVALID_SORT,
    KEY_NOT_FOUND,
    KEY_NOT_PROVIDED,
    LEASE_PROVIDED,
    TOO_MANY_OPS,
    VALUE_PROVIDED,
    Code,
    EtcdError,
)
from ..messages import rpc_pb2 as rpc
from ..messages.requests import MAX_DEPTH, RESTORED_RAISE, Op
from .intervals import check_overlaps
from .work import MAX_KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["only_reads", "only_serializable", "parse_untrusted"]

MAX_OPS: Final = 128
"""Operations of a transaction, as in etcd. Part of the state machine."""

MAX_ALL_OPS: Final = 1024
"""Operations and compares of a transaction with all that are nested in it. etcd has no such bound.
More, and a transaction of 128 operations that have 128 each holds up all members for seconds. Part
of the state machine."""

MAX_URLS: Final = 16
DIGEST_BYTES: Final = 32
"""Of SHA-256."""

MAX_LOGIN_BYTES: Final = 4096
"""Name and proof of a user; the users of the cluster have far shorter ones."""

MAX_URL_BYTES: Final = 1024
"""Of an announcement: notes are in memory, and go into each list of the members."""

_ORDERS: Final = frozenset(rpc.RangeRequest.SortOrder.values())
_TARGETS: Final = frozenset(rpc.RangeRequest.SortTarget.values())


def parse_untrusted(op: Op, message: bytes) -> Message:
    """Return the message of a request.

    Args:
        op: what is asked for.
        message: the client's bytes.

    Returns:
        A message of the class that belongs to `op`.

    Raises:
        EtcdError: it is no such message, or asks for something that can never be done.
    """
    return _PARSERS[op](message)


def only_reads(request: rpc.TxnRequest) -> bool:
    """Say whether a transaction changes nothing, whatever its compares say."""
    return all(
        op.HasField("request_range") or (op.HasField("request_txn") and only_reads(op.request_txn))
        for op in _ops(request)
    )


def only_serializable(request: rpc.TxnRequest) -> bool:
    """Say whether any member may answer a transaction: each of its operations allows it."""
    return all(
        op.HasField("request_range") and op.request_range.serializable for op in _ops(request)
    )


def _ops(request: rpc.TxnRequest) -> Iterator[rpc.RequestOp]:
    yield from request.success
    yield from request.failure


_M = TypeVar("_M", bound=Message)


def _parser(kind: type[_M], check: Callable[[_M], None]) -> Callable[[bytes], _M]:
    """Return the parser of one class of messages."""
    parse = kind.FromString

    def parse_one_untrusted(message: bytes) -> _M:
        try:
            request = parse(message)
        except DecodeError:
            raise EtcdError(
                Code.INTERNAL,
                f"grpc: error unmarshalling request: {len(message)} bytes are no {kind.__name__}",
            ) from None
        check(request)
        return request

    return parse_one_untrusted


def _check_key(key: bytes) -> None:
    if not key:
        raise EtcdError(*KEY_NOT_PROVIDED)
    if len(key) > MAX_KEY_BYTES:
        raise EtcdError(
            Code.RESOURCE_EXHAUSTED,
            f"etcdserver: a key of {len(key)} bytes; a key can have {MAX_KEY_BYTES}",
        )


def _check_range(request: rpc.RangeRequest) -> None:
    _check_key(request.key)
    if request.sort_order not in _ORDERS or request.sort_target not in _TARGETS:
        raise EtcdError(*INVALID_SORT)


def _check_put(request: rpc.PutRequest) -> None:
    _check_key(request.key)
    if request.ignore_value and request.value:
        raise EtcdError(*VALUE_PROVIDED)
    if request.ignore_lease and request.lease:
        raise EtcdError(*LEASE_PROVIDED)


def _check_delete_range(request: rpc.DeleteRangeRequest) -> None:
    _check_key(request.key)


def _check_txn(request: rpc.TxnRequest) -> None:
    _check_ops(request, MAX_OPS, MAX_ALL_OPS, MAX_DEPTH)
    # After that, so that it looks at few operations only.
    check_overlaps(request.success)
    check_overlaps(request.failure)


def _check_ops(request: rpc.TxnRequest, most: int, left: int, depth: int) -> int:
    """Check a transaction of up to `most` operations; nested ones have what it leaves.

    Args:
        request: the transaction.
        most: operations, and also compares, that it may have.
        left: see the result.
        depth: how many transactions in each other it may be, itself included.

    Returns:
        How much it leaves of `left`: operations and compares, nested ones included.
    """
    most -= max(len(request.compare), len(request.success), len(request.failure))
    left -= len(request.compare) + len(request.success) + len(request.failure)
    if most < 0 or left < 0 or not depth:
        raise EtcdError(*TOO_MANY_OPS)
    for compare in request.compare:
        _check_key(compare.key)
    for op in _ops(request):
        kind = op.WhichOneof("request")
        if kind == "request_range":
            _check_range(op.request_range)
        elif kind == "request_put":
            _check_put(op.request_put)
        elif kind == "request_delete_range":
            _check_delete_range(op.request_delete_range)
        elif kind == "request_txn":
            left = _check_ops(op.request_txn, most, left, depth - 1)
        else:
            raise EtcdError(*KEY_NOT_FOUND)  # etcd's word for an operation that is none
    return left


def _check_announcement(request: rpc.Announcement) -> None:
    urls: Sequence[str] = request.client_urls
    if len(urls) > MAX_URLS or any(len(url) > MAX_URL_BYTES for url in (*urls, request.name)):
        raise EtcdError(
            Code.INVALID_ARGUMENT,
            f"etcdserver: a member can announce {MAX_URLS} URLs of {MAX_URL_BYTES} characters",
        )


def _check_token(request: rpc.Token) -> None:
    if len(request.digest) != DIGEST_BYTES or len(request.name + request.proof) > MAX_LOGIN_BYTES:
        sizes = f"{len(request.digest)}, {len(request.name)} and {len(request.proof)} bytes"
        raise EtcdError(
            Code.INTERNAL,
            f"etcdserver: a token with a digest, a name and a proof of {sizes}: expected "
            f"{DIGEST_BYTES}, and {MAX_LOGIN_BYTES} at most",
        )


def _check_restored(request: rpc.CompactionRequest) -> None:
    if not 0 < request.revision <= RESTORED_RAISE:
        raise EtcdError(Code.INTERNAL, f"etcdserver: revisions raised by {request.revision}")


def _nothing(_request: Message) -> None:
    pass


_parse_range = _parser(rpc.RangeRequest, _check_range)
_parse_put = _parser(rpc.PutRequest, _check_put)
_parse_delete_range = _parser(rpc.DeleteRangeRequest, _check_delete_range)
_parse_txn = _parser(rpc.TxnRequest, _check_txn)
_parse_restored = _parser(rpc.CompactionRequest, _check_restored)
_parse_token = _parser(rpc.Token, _check_token)
_parse_announce = _parser(rpc.Announcement, _check_announcement)

_PARSERS: Final[dict[Op, Callable[[bytes], Message]]] = {
    Op.RANGE: _parse_range,
    Op.PUT: _parse_put,
    Op.DELETE_RANGE: _parse_delete_range,
    Op.TXN: _parse_txn,
    Op.COMPACT: _parser(rpc.CompactionRequest, _nothing),
    Op.LEASE_GRANT: _parser(rpc.LeaseGrantRequest, _nothing),
    Op.LEASE_REVOKE: _parser(rpc.LeaseRevokeRequest, _nothing),
    Op.LEASE_KEEP_ALIVE: _parser(rpc.KeepAliveBatch, _nothing),
    Op.LEASE_TIME_TO_LIVE: _parser(rpc.LeaseTimeToLiveRequest, _nothing),
    Op.LEASE_LEASES: _parser(rpc.LeaseLeasesRequest, _nothing),
    Op.LEASE_REVOKE_CHECKED: _parser(rpc.KeyValue, _nothing),
    Op.LEASE_TIME_TO_LIVE_CHECKED: _parser(rpc.KeyValue, _nothing),
    Op.HASH_KV: _parser(rpc.HashKVRequest, _nothing),
    Op.TOKEN: _parse_token,
    Op.TOKEN_KNOWN: _parse_token,
    Op.ANNOUNCE: _parse_announce,
    Op.ANNOUNCEMENTS: _parser(rpc.Announcements, _nothing),
    Op.RESTORED: _parse_restored,
}
