"""The methods of the API: one table for both protocols.

gRPC calls ``/etcdserverpb.KV/Put``, the gateway POSTs to ``/v3/kv/put``; both find the same row.
"""

import enum
from typing import Final, TypeAlias

import attrs
from google.protobuf.message import Message

from .messages import rpc_pb2 as rpc

__all__ = ["BY_GATEWAY_PATH", "BY_GRPC_PATH", "METHODS", "Method", "Streaming"]


class Streaming(enum.Enum):
    """Which side of a method is a stream of messages."""

    NO = 0
    REPLIES = 1
    BOTH = 2


@attrs.frozen
class Method:
    """A method of the API.

    Args:
        service: its service, as it stands in the path of gRPC.
        name: its name there.
        request: class of its requests.
        response: class of its replies.
        paths: where the gateway serves it, behind ``/v3`` or ``/v3beta``.
        streaming: which side is a stream.
    """

    service: str
    name: str
    request: type[Message]
    response: type[Message]
    paths: tuple[str, ...]
    streaming: Streaming = Streaming.NO

    @property
    def path(self) -> str:
        """The path of gRPC."""
        return f"/{self.service}/{self.name}"


_Row: TypeAlias = tuple[str, str, str] | tuple[str, str, str, Streaming]

# service, then for each method: its name, the stem of its messages, gateway paths
_ROWS: Final[dict[str, tuple[_Row, ...]]] = {
    "etcdserverpb.KV": (
        ("Range", "Range", "/kv/range"),
        ("Put", "Put", "/kv/put"),
        ("DeleteRange", "DeleteRange", "/kv/deleterange"),
        ("Txn", "Txn", "/kv/txn"),
        ("Compact", "Compaction", "/kv/compaction"),
    ),
    "etcdserverpb.Watch": (("Watch", "Watch", "/watch", Streaming.BOTH),),
    "etcdserverpb.Lease": (
        ("LeaseGrant", "LeaseGrant", "/lease/grant"),
        ("LeaseRevoke", "LeaseRevoke", "/lease/revoke /kv/lease/revoke"),
        ("LeaseKeepAlive", "LeaseKeepAlive", "/lease/keepalive", Streaming.BOTH),
        ("LeaseTimeToLive", "LeaseTimeToLive", "/lease/timetolive /kv/lease/timetolive"),
        ("LeaseLeases", "LeaseLeases", "/lease/leases /kv/lease/leases"),
    ),
    "etcdserverpb.Cluster": (
        ("MemberAdd", "MemberAdd", "/cluster/member/add"),
        ("MemberRemove", "MemberRemove", "/cluster/member/remove"),
        ("MemberUpdate", "MemberUpdate", "/cluster/member/update"),
        ("MemberList", "MemberList", "/cluster/member/list"),
        ("MemberPromote", "MemberPromote", "/cluster/member/promote"),
    ),
    "etcdserverpb.Maintenance": (
        ("Alarm", "Alarm", "/maintenance/alarm"),
        ("Status", "Status", "/maintenance/status"),
        ("Defragment", "Defragment", "/maintenance/defragment"),
        ("Hash", "Hash", "/maintenance/hash"),
        ("HashKV", "HashKV", "/maintenance/hashkv"),
        ("Snapshot", "Snapshot", "/maintenance/snapshot", Streaming.REPLIES),
        ("MoveLeader", "MoveLeader", "/maintenance/transfer-leadership"),
    ),
    "etcdserverpb.Auth": (
        ("AuthEnable", "AuthEnable", "/auth/enable"),
        ("AuthDisable", "AuthDisable", "/auth/disable"),
        ("AuthStatus", "AuthStatus", "/auth/status"),
        ("Authenticate", "Authenticate", "/auth/authenticate"),
        ("UserAdd", "AuthUserAdd", "/auth/user/add"),
        ("UserGet", "AuthUserGet", "/auth/user/get"),
        ("UserList", "AuthUserList", "/auth/user/list"),
        ("UserDelete", "AuthUserDelete", "/auth/user/delete"),
        ("UserChangePassword", "AuthUserChangePassword", "/auth/user/changepw"),
        ("UserGrantRole", "AuthUserGrantRole", "/auth/user/grant"),
        ("UserRevokeRole", "AuthUserRevokeRole", "/auth/user/revoke"),
        ("RoleAdd", "AuthRoleAdd", "/auth/role/add"),
        ("RoleGet", "AuthRoleGet", "/auth/role/get"),
        ("RoleList", "AuthRoleList", "/auth/role/list"),
        ("RoleDelete", "AuthRoleDelete", "/auth/role/delete"),
        ("RoleGrantPermission", "AuthRoleGrantPermission", "/auth/role/grant"),
        ("RoleRevokePermission", "AuthRoleRevokePermission", "/auth/role/revoke"),
    ),
    "v3lockpb.Lock": (
        ("Lock", "Lock", "/lock/lock"),
        ("Unlock", "Unlock", "/lock/unlock"),
    ),
    "v3electionpb.Election": (
        ("Campaign", "Campaign", "/election/campaign"),
        ("Proclaim", "Proclaim", "/election/proclaim"),
        ("Leader", "Leader", "/election/leader"),
        ("Observe", "Leader", "/election/observe", Streaming.REPLIES),
        ("Resign", "Resign", "/election/resign"),
    ),
}


def _methods() -> tuple[Method, ...]:
    found: list[Method] = []
    for service, rows in _ROWS.items():
        for name, stem, paths, *streaming in rows:
            request: type[Message] = getattr(rpc, f"{stem}Request")
            response: type[Message] = getattr(rpc, f"{stem}Response")
            how = streaming[0] if streaming else Streaming.NO
            found.append(Method(service, name, request, response, tuple(paths.split()), how))
    return tuple(found)


METHODS: Final = _methods()
BY_GRPC_PATH: Final = {method.path: method for method in METHODS}
BY_GATEWAY_PATH: Final = {path: method for method in METHODS for path in method.paths}
