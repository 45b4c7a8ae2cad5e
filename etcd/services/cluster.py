"""The service Cluster: who the members are, and the changes that need no file of a new member.

A member announces in the log where it listens for clients of this API (`Op.ANNOUNCE`); its address
and whether it votes are in the configuration. One that has announced nothing has no name and no
URLs for clients, as a member of etcd has none before its first start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import trio

from ...errors import RequestError
from ...keyvalue.protocol.payload import ETCD
from ...node.requests.request import QUERY
from ..backend.member_errors import error_of
from ..codes import MEMBER_NOT_FOUND, Code, EtcdError
from ..messages import rpc_pb2 as rpc
from ..messages.requests import Op, decode_reply, encode_request
from .orders import give_order, own_id_of

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from .call import Call

__all__ = [
    "member_add",
    "member_list",
    "member_promote",
    "member_remove",
    "member_update",
    "read_here",
]

_NOT_A_LEARNER: Final = (
    Code.FAILED_PRECONDITION,
    "etcdserver: can only promote a learner member",
)
_NO_ADD: Final = (
    Code.UNIMPLEMENTED,
    "etcdserver: a member needs ports and a file of its own: use `quorate member add`",
)
_NO_UPDATE: Final = (
    Code.UNIMPLEMENTED,
    "etcdserver: a member's address is no URL of this API: use `quorate member move`",
)


async def member_list(call: Call, request: Message) -> bytes:
    """Serve ``MemberList``; a linearizable one asks the leader for the announcements."""
    linearizable = cast("rpc.MemberListRequest", request).linearizable
    reply = rpc.MemberListResponse(members=await _members(call, linearizable=linearizable))
    return call.backend.header(0) + reply.SerializeToString()


async def member_remove(call: Call, request: Message) -> bytes:
    """Serve ``MemberRemove``."""
    own_id = _known(call, cast("rpc.MemberRemoveRequest", request).ID)
    await give_order(call, f"member remove {own_id}")
    members = await _members(call, linearizable=False)
    gone = call.backend.member_id_of(own_id)
    kept = [each for each in members if gone != each.ID]
    reply = rpc.MemberRemoveResponse(members=kept)
    return call.backend.header(0) + reply.SerializeToString()


async def member_promote(call: Call, request: Message) -> bytes:
    """Serve ``MemberPromote``: a standby becomes a voter."""
    own_id = _known(call, cast("rpc.MemberPromoteRequest", request).ID)
    address = call.backend.gateway.topology.address_of(own_id)
    if address is None or not address.standby:
        raise EtcdError(*_NOT_A_LEARNER)
    await give_order(call, f"member promote {own_id}")
    members = await _members(call, linearizable=False)
    reply = rpc.MemberPromoteResponse(members=members)
    return call.backend.header(0) + reply.SerializeToString()


async def member_add(_call: Call, _request: Message) -> bytes:
    """Refuse ``MemberAdd``."""
    await trio.lowlevel.checkpoint()
    raise EtcdError(*_NO_ADD)


async def member_update(_call: Call, _request: Message) -> bytes:
    """Refuse ``MemberUpdate``."""
    await trio.lowlevel.checkpoint()
    raise EtcdError(*_NO_UPDATE)


def read_here(call: Call, op: Op, message: bytes) -> tuple[int, bytes]:
    """Return revision and reply of a query, from what this member has applied.

    Raises:
        EtcdError: the reply is an error.
    """
    try:
        reply = call.backend.gateway.stale_query(encode_request(op, message), ETCD)
    except RequestError as error:
        raise error_of(error, QUERY) from error
    return decode_reply(reply)


def _known(call: Call, member: int) -> int:
    own_id = own_id_of(call, member)
    if own_id is None:
        raise EtcdError(*MEMBER_NOT_FOUND)
    return own_id


async def _members(call: Call, *, linearizable: bool) -> list[rpc.Member]:
    if linearizable:
        _, body = await call.backend.ask(Op.ANNOUNCEMENTS, b"")
    else:
        await trio.lowlevel.checkpoint()
        _, body = read_here(call, Op.ANNOUNCEMENTS, b"")
    announced = {each.member_id: each for each in rpc.Announcements.FromString(body).members}
    nothing = rpc.Announcement()
    return [
        rpc.Member(
            ID=call.backend.member_id_of(each.member_id),
            name=announced.get(each.member_id, nothing).name,
            peerURLs=[f"http://{_host(each.host)}:{each.member_port}"],
            clientURLs=announced.get(each.member_id, nothing).client_urls,
            isLearner=each.standby,
        )
        for each in call.backend.gateway.topology.members
    ]


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
