"""The streams of Watch and Lease, as services."""

from __future__ import annotations

from typing import cast

import trio

from quorate.etcd.backend.caller import LEADER_WAIT_S
from quorate.etcd.backend.contact import LOOK_S, LOST_S
from quorate.etcd.codes import Code, EtcdError
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op
from tests.support.etcd_world import EtcdWorld, in_world

from .calls import Stream

WATCH = "/etcdserverpb.Watch/Watch"
KEEP_ALIVE = "/etcdserverpb.Lease/LeaseKeepAlive"


def create(key: bytes) -> rpc.WatchRequest:
    return rpc.WatchRequest(create_request=rpc.WatchCreateRequest(key=key))


@in_world
async def test_a_watch_outlives_the_end_of_its_requests(world: EtcdWorld) -> None:
    stream = Stream(world, WATCH, rpc.WatchResponse)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run)
        stream.ask(create(b"a"))
        stream.half_close()
        assert cast("rpc.WatchResponse", await stream.next()).created
        await trio.sleep(100)
        await world.put(b"a")
        assert len(cast("rpc.WatchResponse", await stream.next()).events) == 1
        nursery.cancel_scope.cancel()
    assert world.hub.count == 0


@in_world
async def test_watches_end_on_a_member_that_has_lost_its_leader(world: EtcdWorld) -> None:
    stream = Stream(world, WATCH, rpc.WatchResponse)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run)
        stream.ask(create(b"a"))
        await stream.next()
        # A short election ends nothing.
        world.member.parked = []
        await trio.sleep(LOST_S - LOOK_S)
        world.member.release()
        await trio.sleep(LOST_S)
        assert not stream.ended.is_set()
        assert world.backend.has_leader
        world.member.lose_leader()
        with trio.fail_after(LOST_S + 2 * LOOK_S):
            await stream.ended.wait()
        assert not world.backend.has_leader
    assert isinstance(stream.error, EtcdError)
    assert (stream.error.code, stream.error.text) == (Code.UNAVAILABLE, "etcdserver: no leader")


@in_world
async def test_a_watch_waits_for_a_leader_before_it_is_refused(world: EtcdWorld) -> None:
    world.member.lose_leader()
    await trio.sleep(2 * LOST_S)
    refused = Stream(world, WATCH, rpc.WatchResponse)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(refused.run)
        refused.ask(create(b"a"))
        began = trio.current_time()
        await refused.ended.wait()
        assert trio.current_time() - began == LEADER_WAIT_S
        assert isinstance(refused.error, EtcdError)
        taken = Stream(world, WATCH, rpc.WatchResponse)
        nursery.start_soon(taken.run)
        taken.ask(create(b"a"))
        world.member.error = None
        assert cast("rpc.WatchResponse", await taken.next()).created
        nursery.cancel_scope.cancel()


@in_world
async def test_a_leader_that_is_found_again_takes_watches_again(world: EtcdWorld) -> None:
    world.member.lose_leader()
    await trio.sleep(2 * LOST_S)
    assert not world.backend.has_leader
    world.member.error = None
    await trio.sleep(2 * LOOK_S)
    assert world.backend.has_leader


@in_world
async def test_renewals_of_one_moment_share_an_entry(world: EtcdWorld) -> None:
    leases = [await world.grant(5) for _ in range(100)]
    stream = Stream(world, KEEP_ALIVE, rpc.LeaseKeepAliveResponse)
    before = len(world.member.commands)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run)
        for _ in range(3):
            await trio.sleep(4)
            for lease in leases[::-1][:99]:
                stream.ask(rpc.LeaseKeepAliveRequest(ID=lease))
            for lease in leases[::-1][:99]:
                reply = cast("rpc.LeaseKeepAliveResponse", await stream.next())
                assert (reply.ID, reply.TTL, reply.header.revision) == (lease, 5, 1)
        stream.half_close()
        await stream.ended.wait()
    assert stream.error is None
    assert len(world.member.commands) - before == 3
    left = await world.ask(Op.LEASE_LEASES, rpc.LeaseLeasesRequest(), rpc.LeaseLeasesResponse)
    assert {each.ID for each in left.leases} == set(leases[1:])


@in_world
async def test_an_unknown_lease_has_no_ttl(world: EtcdWorld) -> None:
    stream = Stream(world, KEEP_ALIVE, rpc.LeaseKeepAliveResponse)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run)
        stream.ask(rpc.LeaseKeepAliveRequest(ID=9))
        stream.half_close()
        reply = cast("rpc.LeaseKeepAliveResponse", await stream.next())
        assert (reply.ID, reply.TTL) == (9, 0)


@in_world
async def test_renewals_without_a_leader_end_the_stream(world: EtcdWorld) -> None:
    stream = Stream(world, KEEP_ALIVE, rpc.LeaseKeepAliveResponse)
    world.member.lose_leader()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run)
        stream.ask(rpc.LeaseKeepAliveRequest(ID=9))
        await stream.ended.wait()
    assert isinstance(stream.error, EtcdError)
    assert stream.error.code == Code.UNAVAILABLE
