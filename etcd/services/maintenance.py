"""The service Maintenance: what a member reports of itself, and the leader's place.

There is nothing to defragment: space of deleted rows is used again. There is no alarm to disarm: a
member whose disk is full says so until it is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import trio

from ..codes import NO_LEADER, NOT_LEADER, Code, EtcdError
from ..messages import rpc_pb2 as rpc
from .alarms import alarms_of
from .orders import give_order, own_id_of
from .version import VERSION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from google.protobuf.message import Message

    from .call import Call, Outlet

__all__ = [
    "alarm",
    "defragment",
    "hash_all",
    "hash_kv",
    "move_leader",
    "snapshot",
    "status",
]

_BAD_TRANSFEREE: Final = (Code.FAILED_PRECONDITION, "etcdserver: bad leader transferee")
_NO_ACTIVATE: Final = (
    Code.UNIMPLEMENTED,
    "etcdserver: members raise and end their alarms themselves",
)
_NO_SNAPSHOT: Final = (
    Code.UNIMPLEMENTED,
    "etcdserver: this store has no file of etcd's form: use `quorate backup` for a backup",
)


async def status(call: Call, _request: Message) -> bytes:
    """Serve ``Status``. Sizes are those of the log on this member's disk, in bytes."""
    await trio.lowlevel.checkpoint()
    backend, found = call.backend, call.backend.gateway.status()
    size = found.append_position - found.start_position
    leader = found.leader_id
    errors = [f"memberID:{each.memberID} alarm:{_name(each)} " for each in alarms_of(call.backend)]
    if leader is None or not backend.has_leader:
        errors.insert(0, NO_LEADER[1])
    reply = rpc.StatusResponse(
        version=VERSION,
        dbSize=size,
        leader=0 if leader is None else backend.member_id_of(leader),
        raftIndex=found.commit_position,
        raftTerm=backend.raft_term,
        raftAppliedIndex=found.applied_position,
        errors=errors,
        dbSizeInUse=size,
        isLearner=found.standing == "standby",
    )
    return backend.header(backend.state.revision) + reply.SerializeToString()


async def alarm(call: Call, request: Message) -> bytes:
    """Serve ``Alarm``: those of this member. To end one that is over, or not, does nothing."""
    await trio.lowlevel.checkpoint()
    asked = cast("rpc.AlarmRequest", request)
    if asked.action == rpc.AlarmRequest.ACTIVATE:
        raise EtcdError(*_NO_ACTIVATE)
    alarms = alarms_of(call.backend) if asked.action == rpc.AlarmRequest.GET else ()
    found = [each for each in alarms if asked.alarm in (rpc.NONE, each.alarm)]
    reply = rpc.AlarmResponse(alarms=found)
    return call.backend.header(call.backend.state.revision) + reply.SerializeToString()


async def defragment(_call: Call, _request: Message) -> bytes:
    """Serve ``Defragment``, which has nothing to do."""
    await trio.lowlevel.checkpoint()
    return b""


async def hash_kv(call: Call, request: Message) -> bytes:
    """Serve ``HashKV`` from this member's state: the hashes of members are compared."""
    reply = await _hashed(call, cast("rpc.HashKVRequest", request).revision)
    return call.backend.header(call.backend.state.revision) + reply.SerializeToString()


async def hash_all(call: Call, _request: Message) -> bytes:
    """Serve ``Hash``: that of all rows."""
    reply = rpc.HashResponse(hash=(await _hashed(call, 0)).hash)
    return call.backend.header(call.backend.state.revision) + reply.SerializeToString()


async def _hashed(call: Call, revision: int) -> rpc.HashKVResponse:
    last = rpc.HashKVResponse()
    for reply in call.backend.state.hashes(revision):
        last = reply
        await trio.lowlevel.checkpoint()
    return last


async def snapshot(_call: Call, _requests: AsyncIterator[Message], _outlet: Outlet) -> None:
    """Refuse ``Snapshot``."""
    await trio.lowlevel.checkpoint()
    raise EtcdError(*_NO_SNAPSHOT)


async def move_leader(call: Call, request: Message) -> bytes:
    """Serve ``MoveLeader``; as in etcd, only the leader does."""
    if not call.backend.gateway.topology.is_leader:
        raise EtcdError(*NOT_LEADER)
    own_id = own_id_of(call, cast("rpc.MoveLeaderRequest", request).targetID)
    if own_id is None:
        raise EtcdError(*_BAD_TRANSFEREE)
    await give_order(call, f"transfer {own_id}")
    return b""


def _name(alarm_of_member: rpc.AlarmMember) -> str:
    return rpc.AlarmType.Name(alarm_of_member.alarm)
