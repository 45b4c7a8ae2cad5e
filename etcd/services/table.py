"""All methods by the path of gRPC. What is in no table here is not implemented."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..messages.requests import Op
from . import auth, cluster, maintenance
from .compaction import compact
from .lease import keep_alive
from .locks.election import campaign, leader, observe, proclaim, resign
from .locks.lock import lock, unlock
from .revised import until_revised
from .watch import watch

if TYPE_CHECKING:
    from .call import StreamMethod, UnaryMethod

__all__ = ["DIRECT", "READS", "STREAMS", "UNARY"]

DIRECT: Final[dict[str, Op]] = {
    "/etcdserverpb.KV/Range": Op.RANGE,
    "/etcdserverpb.KV/Put": Op.PUT,
    "/etcdserverpb.KV/DeleteRange": Op.DELETE_RANGE,
    "/etcdserverpb.KV/Txn": Op.TXN,
    "/etcdserverpb.Lease/LeaseGrant": Op.LEASE_GRANT,
    "/etcdserverpb.Lease/LeaseRevoke": Op.LEASE_REVOKE,
    "/etcdserverpb.Lease/LeaseTimeToLive": Op.LEASE_TIME_TO_LIVE,
    "/etcdserverpb.Lease/LeaseLeases": Op.LEASE_LEASES,
}
"""Methods that are one request of the state machine: `Backend.submit` takes their bytes, and no
task is needed for them."""

UNARY: Final[dict[str, UnaryMethod]] = {
    **{f"/etcdserverpb.Auth/{name}": auth.refuse(words) for name, words in auth.REFUSED.items()},
    "/etcdserverpb.Auth/AuthDisable": auth.auth_disable,
    "/etcdserverpb.Auth/AuthEnable": auth.auth_enable,
    "/etcdserverpb.Auth/AuthStatus": auth.auth_status,
    "/etcdserverpb.Auth/Authenticate": auth.authenticate,
    "/etcdserverpb.Auth/RoleList": auth.role_list,
    "/etcdserverpb.Auth/UserList": auth.user_list,
    "/etcdserverpb.Cluster/MemberAdd": cluster.member_add,
    "/etcdserverpb.Cluster/MemberList": cluster.member_list,
    "/etcdserverpb.Cluster/MemberPromote": cluster.member_promote,
    "/etcdserverpb.Cluster/MemberRemove": cluster.member_remove,
    "/etcdserverpb.Cluster/MemberUpdate": cluster.member_update,
    "/etcdserverpb.KV/Compact": compact,
    "/etcdserverpb.Maintenance/Alarm": maintenance.alarm,
    "/etcdserverpb.Maintenance/Defragment": maintenance.defragment,
    "/etcdserverpb.Maintenance/Hash": maintenance.hash_all,
    "/etcdserverpb.Maintenance/HashKV": maintenance.hash_kv,
    "/etcdserverpb.Maintenance/MoveLeader": maintenance.move_leader,
    "/etcdserverpb.Maintenance/Status": maintenance.status,
    "/v3electionpb.Election/Campaign": campaign,
    "/v3electionpb.Election/Leader": leader,
    "/v3electionpb.Election/Proclaim": proclaim,
    "/v3electionpb.Election/Resign": resign,
    "/v3lockpb.Lock/Lock": lock,
    "/v3lockpb.Lock/Unlock": unlock,
}
"""Methods with one request and one reply."""

READS: Final = frozenset({
    "/etcdserverpb.Auth/AuthStatus", "/etcdserverpb.Auth/RoleList", "/etcdserverpb.Auth/UserList",
    "/etcdserverpb.Cluster/MemberList", "/etcdserverpb.Maintenance/Hash",
    "/etcdserverpb.Maintenance/HashKV", "/etcdserverpb.Maintenance/Status",
    "/v3electionpb.Election/Leader",
})  # fmt: skip
"""Those of `UNARY` that change nothing, so that a reply may be left out."""

STREAMS: Final[dict[str, StreamMethod]] = {
    "/etcdserverpb.Lease/LeaseKeepAlive": until_revised(keep_alive),
    "/etcdserverpb.Maintenance/Snapshot": until_revised(maintenance.snapshot),
    "/etcdserverpb.Watch/Watch": until_revised(watch),
    "/v3electionpb.Election/Observe": until_revised(observe),
}
"""Methods whose replies, and perhaps requests, are a stream."""
