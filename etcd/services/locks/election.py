"""The service Election: contenders in a line; the first one leads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import trio

from ...codes import Code, EtcdError
from ...messages import rpc_pb2 as rpc
from .line import Line, Place, created_at
from .observing import observe
from .without_codes import without_codes

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from ..call import Call

__all__ = ["campaign", "leader", "observe", "proclaim", "resign"]

_NOT_LEADER: Final = (Code.UNKNOWN, "election: not leader")
_NO_LEADER: Final = (Code.UNKNOWN, "election: no leader")
_NO_KEY: Final = (Code.UNKNOWN, '"leader" field must be provided')


async def campaign(call: Call, message: Message) -> bytes:
    """Serve ``Campaign``: wait until the lease leads.

    A client that gives up leaves the line.

    Raises:
        EtcdError: there is no such lease, or no leader of the cluster.
    """
    request = cast("rpc.CampaignRequest", message)
    line = Line(call, request.name)
    with without_codes():
        place = await line.join(request.lease, request.value)
        try:
            if place.value not in {None, request.value}:
                # It was in the line already, for another value.
                await _put(line, _key_of(line, place), request.value)
            if not place.first:
                await line.wait_turn(place)
        except (EtcdError, trio.Cancelled):
            line.leave(place)
            raise
    reply = rpc.CampaignResponse(header=place.header, leader=_key_of(line, place))
    return reply.SerializeToString()


async def proclaim(call: Call, message: Message) -> bytes:
    """Serve ``Proclaim``: set the leader's value.

    Raises:
        EtcdError: it leads no more.
    """
    request = cast("rpc.ProclaimRequest", message)
    _check_key(request)
    with without_codes():
        header = await _put(Line(call, request.leader.name), request.leader, request.value)
    return rpc.ProclaimResponse(header=header).SerializeToString()


async def resign(call: Call, message: Message) -> bytes:
    """Serve ``Resign``: stop leading. It succeeds for one that leads no more, as in etcd."""
    request = cast("rpc.ResignRequest", message)
    _check_key(request)
    key = request.leader
    delete = rpc.DeleteRangeRequest(key=key.key)
    txn = rpc.TxnRequest(
        compare=[created_at(key.key, key.rev)],
        success=[rpc.RequestOp(request_delete_range=delete)],
    )
    with without_codes():
        reply = await Line(call, key.name).transact(txn)
    return rpc.ResignResponse(header=reply.header).SerializeToString()


async def leader(call: Call, message: Message) -> bytes:
    """Serve ``Leader``: return the key of the leader.

    Raises:
        EtcdError: there is none.
    """
    request = cast("rpc.LeaderRequest", message)
    with without_codes():
        found = await Line(call, request.name).oldest()
    if not found.kvs:
        raise EtcdError(*_NO_LEADER)
    return rpc.LeaderResponse(header=found.header, kv=found.kvs[0]).SerializeToString()


async def _put(line: Line, key: rpc.LeaderKey, value: bytes) -> rpc.ResponseHeader:
    put = rpc.PutRequest(key=key.key, value=value, lease=key.lease)
    txn = rpc.TxnRequest(
        compare=[created_at(key.key, key.rev)], success=[rpc.RequestOp(request_put=put)]
    )
    reply = await line.transact(txn)
    if not reply.succeeded:
        raise EtcdError(*_NOT_LEADER)
    return reply.header


def _key_of(line: Line, place: Place) -> rpc.LeaderKey:
    return rpc.LeaderKey(name=line.name, key=place.key, rev=place.revision, lease=place.lease)


def _check_key(request: rpc.ProclaimRequest | rpc.ResignRequest) -> None:
    if not request.HasField("leader"):
        raise EtcdError(*_NO_KEY)
