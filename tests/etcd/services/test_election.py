"""The service Election, compared with what etcd 3.5 does."""

from __future__ import annotations

from typing import cast

import pytest
import trio

from quorate.etcd.codes import Code, EtcdError
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.services.locks.election import campaign, leader, proclaim, resign
from tests.support.etcd_world import EtcdWorld, in_world

from .calls import Stream

OBSERVE = "/v3electionpb.Election/Observe"


async def elected(world: EtcdWorld, lease: int, value: bytes) -> rpc.CampaignResponse:
    request = rpc.CampaignRequest(name=b"e", lease=lease, value=value)
    return rpc.CampaignResponse.FromString(await campaign(world.call, request))


async def resigned(world: EtcdWorld, key: rpc.LeaderKey) -> None:
    await resign(world.call, rpc.ResignRequest(leader=key))


async def proclaimed(world: EtcdWorld, key: rpc.LeaderKey, value: bytes) -> int:
    request = rpc.ProclaimRequest(leader=key, value=value)
    reply = rpc.ProclaimResponse.FromString(await proclaim(world.call, request))
    return reply.header.revision


async def leading(world: EtcdWorld) -> bytes:
    raw = await leader(world.call, rpc.LeaderRequest(name=b"e"))
    return rpc.LeaderResponse.FromString(raw).kv.value


@in_world
async def test_a_contender_alone_leads_at_once(world: EtcdWorld) -> None:
    lease = await world.grant(60, lease=5)
    reply = await elected(world, lease, b"one")
    assert reply.header.revision == 2
    key = reply.leader
    assert (key.name, key.key, key.rev, key.lease) == (b"e", b"e/5", 2, 5)
    assert await leading(world) == b"one"


@in_world
async def test_a_second_campaign_of_one_lease_proclaims_its_value(world: EtcdWorld) -> None:
    lease = await world.grant(60, lease=5)
    await elected(world, lease, b"one")
    again = await elected(world, lease, b"two")
    assert (again.leader.rev, world.member.state.revision) == (2, 3)
    assert await leading(world) == b"two"
    await elected(world, lease, b"two")
    assert world.member.state.revision == 3


@in_world
async def test_the_next_contender_leads_when_the_leader_resigns(world: EtcdWorld) -> None:
    first = await elected(world, await world.grant(60), b"one")
    lease = await world.grant(600)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(elected, world, lease, b"two")
        await trio.sleep(1)
        assert await leading(world) == b"one"
        await resigned(world, first.leader)
    assert await leading(world) == b"two"
    # It leads no more: resigning again does nothing, and a proclamation fails.
    await resigned(world, first.leader)
    assert await leading(world) == b"two"
    with pytest.raises(EtcdError, match="election: not leader") as caught:
        await proclaimed(world, first.leader, b"x")
    assert caught.value.code == Code.UNKNOWN


@in_world
async def test_a_contender_that_gives_up_leaves_the_line(world: EtcdWorld) -> None:
    await elected(world, await world.grant(600), b"one")
    with trio.move_on_after(1):
        await elected(world, await world.grant(600, lease=5), b"two")
    assert await world.get(b"e/5") is None


@in_world
async def test_bad_requests_get_etcds_words(world: EtcdWorld) -> None:
    with pytest.raises(EtcdError, match="election: no leader"):
        await leading(world)
    for method, request in ((proclaim, rpc.ProclaimRequest()), (resign, rpc.ResignRequest())):
        with pytest.raises(EtcdError, match='"leader" field must be provided'):
            await method(world.call, request)
    with pytest.raises(EtcdError, match="etcdserver: requested lease not found"):
        await elected(world, 78, b"x")


@in_world
async def test_an_observer_that_names_no_election_gets_an_error(world: EtcdWorld) -> None:
    stream = Stream(world, OBSERVE, rpc.LeaderResponse)
    stream.half_close()
    await stream.run()
    assert isinstance(stream.error, EtcdError)
    assert stream.error.code is Code.INTERNAL


@in_world
async def test_observers_see_each_leader_and_each_value(world: EtcdWorld) -> None:
    stream = Stream(world, OBSERVE, rpc.LeaderResponse)

    async def seen() -> tuple[bytes, int]:
        reply = cast("rpc.LeaderResponse", await stream.next())
        return reply.kv.value, reply.header.revision

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run)
        stream.ask(rpc.LeaderRequest(name=b"e"))
        await trio.sleep(1)
        first = await elected(world, await world.grant(600), b"one")
        assert await seen() == (b"one", 2)
        await proclaimed(world, first.leader, b"uno")
        assert await seen() == (b"uno", 3)
        nursery.start_soon(elected, world, await world.grant(600), b"two")
        await trio.sleep(1)
        await resigned(world, first.leader)
        assert await seen() == (b"two", 5)
        nursery.cancel_scope.cancel()
