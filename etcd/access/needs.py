"""What a request needs of its user, by its method and content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from ...keyvalue.access.rules import READ, READ_WRITE, WRITE
from ..codes import Code, EtcdError
from ..messages import rpc_pb2 as rpc
from ..messages.requests import Op
from ..methods import BY_GRPC_PATH
from ..state.checks import parse_untrusted
from .rights import ADMIN, LeaseNeed, Need

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from google.protobuf.message import Message

__all__ = ["FREE", "needs_untrusted"]

FREE: Final = frozenset({
    "/etcdserverpb.Auth/Authenticate",
    "/etcdserverpb.Auth/AuthStatus",
    # Clients such as Patroni up to 4.1.0 ask for the members first, and then log in. etcd 3.5.21,
    # the version that we report, lets them.
    "/etcdserverpb.Cluster/MemberList",
})  # fmt: skip
"""Methods that need no token."""

_ADMIN: Final = frozenset({
    "/etcdserverpb.KV/Compact",
    "/etcdserverpb.Cluster/MemberAdd",
    "/etcdserverpb.Cluster/MemberRemove",
    "/etcdserverpb.Cluster/MemberUpdate",
    "/etcdserverpb.Cluster/MemberPromote",
    "/etcdserverpb.Maintenance/Defragment",
    "/etcdserverpb.Maintenance/Hash",
    "/etcdserverpb.Maintenance/HashKV",
    "/etcdserverpb.Maintenance/Snapshot",
    "/etcdserverpb.Maintenance/MoveLeader",
})  # fmt: skip

_AUTH: Final = "/etcdserverpb.Auth/"
_TXN: Final = "/etcdserverpb.KV/Txn"


def needs_untrusted(path: str, message: bytes | None) -> Sequence[Need | LeaseNeed]:
    """Return what a request needs; nothing but a login if that is empty.

    Args:
        path: of gRPC, which names the method.
        message: the request, encoded; None if there is none yet.

    Raises:
        EtcdError: it is malformed, or a transaction of too many operations.
    """
    if path in _ADMIN or (path.startswith(_AUTH) and path not in FREE):
        return (ADMIN,)
    if message is None:
        return ()
    if path == _TXN:
        # Checked before it is gone through: it may have a million operations that are none.
        return [*_of(parse_untrusted(Op.TXN, message))]
    method = BY_GRPC_PATH[path]
    try:
        request = method.request.FromString(message)
    except DecodeError as error:
        raise EtcdError(Code.INTERNAL, f"grpc: error unmarshalling request: {error}") from None
    return [*_of(request)]


def _of(request: Message) -> Iterator[Need | LeaseNeed]:
    match request:
        case rpc.RangeRequest():
            yield Need("get", READ, request.key, request.range_end)
        case rpc.PutRequest():
            yield Need("set", READ_WRITE if request.prev_kv else WRITE, request.key)
            yield from _of_attaching(request.lease)
        case rpc.DeleteRangeRequest():
            rights = READ_WRITE if request.prev_kv else WRITE
            yield Need("del", rights, request.key, request.range_end)
        case rpc.TxnRequest():
            yield from _of_transaction(request)
        case rpc.WatchRequest() if request.HasField("create_request"):
            create = request.create_request
            yield Need("quorate.watch", READ, create.key, create.range_end)
        case _:
            yield from _of_other_services(request)


def _of_other_services(request: Message) -> Iterator[Need | LeaseNeed]:
    match request:
        # What waits in line has keys behind the name and a slash.
        case rpc.LeaderRequest():
            yield Need("get", READ, request.name + b"/", request.name + b"0")
        case rpc.LockRequest() | rpc.CampaignRequest():
            yield Need("set", READ_WRITE, request.name + b"/", request.name + b"0")
            yield from _of_attaching(request.lease)
        case rpc.UnlockRequest():
            yield Need("del", WRITE, request.key)
        case rpc.ProclaimRequest():
            yield Need("set", WRITE, request.leader.key)
            yield from _of_attaching(request.leader.lease)
        case rpc.ResignRequest():
            yield Need("del", WRITE, request.leader.key)
        case rpc.LeaseRevokeRequest():
            yield LeaseNeed(request.ID, "del", WRITE)
        case rpc.LeaseTimeToLiveRequest() if request.keys:
            yield LeaseNeed(request.ID, "get", READ)
        case _:
            pass


def _of_attaching(lease: int) -> Iterator[LeaseNeed]:
    """Yield what it needs to give a lease a key, as etcd's ``checkLeasePuts`` does.

    Otherwise a user could give a key to the lease of another one, who could not revoke it then.
    """
    if lease:
        yield LeaseNeed(lease, "set", WRITE)


def _of_transaction(request: rpc.TxnRequest) -> Iterator[Need | LeaseNeed]:
    for compare in request.compare:
        yield Need("get", READ, compare.key, compare.range_end)
    for each in (*request.success, *request.failure):
        match each.WhichOneof("request"):
            case "request_range":
                yield from _of(each.request_range)
            case "request_put":
                yield from _of(each.request_put)
            case "request_delete_range":
                yield from _of(each.request_delete_range)
            case "request_txn":
                yield from _of_transaction(each.request_txn)
            case _:
                pass
