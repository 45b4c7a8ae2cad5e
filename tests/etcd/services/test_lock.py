"""The service Lock, compared with what etcd 3.5 does."""

from __future__ import annotations

import pytest
import trio

from quorate.etcd.codes import Code, EtcdError
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op
from quorate.etcd.services.locks.lock import lock, unlock
from tests.support.etcd_world import EtcdWorld, in_world


async def locked(world: EtcdWorld, lease: int, name: bytes = b"l") -> rpc.LockResponse:
    request = rpc.LockRequest(name=name, lease=lease)
    return rpc.LockResponse.FromString(await lock(world.call, request))


async def unlocked(world: EtcdWorld, key: bytes) -> None:
    await unlock(world.call, rpc.UnlockRequest(key=key))


@in_world
async def test_a_lock_is_a_key_named_after_its_lease(world: EtcdWorld) -> None:
    lease = await world.grant(60, lease=0xAB)
    reply = await locked(world, lease)
    assert (reply.key, reply.header.revision) == (b"l/ab", 2)
    # Its owner gets it again.
    assert (await locked(world, lease)).key == b"l/ab"
    assert world.member.state.revision == 2


@in_world
async def test_without_a_lease_one_of_60_seconds_is_granted(world: EtcdWorld) -> None:
    reply = await locked(world, 0)
    request = rpc.RangeRequest(key=reply.key)
    kv = (await world.ask(Op.RANGE, request, rpc.RangeResponse)).kvs[0]
    assert reply.key == b"l/%x" % kv.lease
    await trio.sleep(62)
    assert await world.get(reply.key) is None


@in_world
async def test_contenders_get_a_lock_in_the_order_in_which_they_came(world: EtcdWorld) -> None:
    leases = [await world.grant(600) for _ in range(4)]
    owners: list[int] = []

    async def contend(lease: int) -> None:
        reply = await locked(world, lease)
        owners.append(lease)
        await trio.sleep(10)
        await unlocked(world, reply.key)

    async with trio.open_nursery() as nursery:
        for lease in leases:
            nursery.start_soon(contend, lease)
            await trio.sleep(1)
        assert owners == leases[:1]
    assert owners == leases


@in_world
async def test_a_lock_is_free_when_its_lease_ends(world: EtcdWorld) -> None:
    await locked(world, await world.grant(5))
    lease = await world.grant(600)
    began = trio.current_time()
    with trio.fail_after(20):
        reply = await locked(world, lease)
    assert 4 <= trio.current_time() - began <= 8
    assert reply.header.revision == world.member.state.revision


@in_world
async def test_one_that_gives_up_leaves_the_line(world: EtcdWorld) -> None:
    first = await locked(world, await world.grant(600))
    with trio.move_on_after(1):
        await locked(world, await world.grant(600, lease=5))
    assert await world.get(b"l/5") is None
    assert await world.get(first.key) is not None
    assert world.hub.count == 0


@in_world
async def test_a_lease_that_ends_during_the_wait_gets_no_lock(world: EtcdWorld) -> None:
    first = await locked(world, await world.grant(600))

    async def contend() -> None:
        with pytest.raises(EtcdError, match="mutex: session is expired") as caught:
            await locked(world, lease)
        assert caught.value.code == Code.UNKNOWN

    lease = await world.grant(5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(contend)
        await trio.sleep(20)
        await unlocked(world, first.key)


@in_world
async def test_errors_have_the_code_that_etcd_gives_them(world: EtcdWorld) -> None:
    with pytest.raises(EtcdError, match="etcdserver: requested lease not found") as caught:
        await locked(world, 77)
    assert caught.value.code == Code.UNKNOWN
    with pytest.raises(EtcdError, match="etcdserver: key is not provided") as caught:
        await unlocked(world, b"")
    assert caught.value.code == Code.UNKNOWN
    await unlocked(world, b"no key")


@in_world
async def test_a_wait_ends_when_the_leader_is_lost(world: EtcdWorld) -> None:
    await locked(world, await world.grant(600))
    lease = await world.grant(600)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            async def contend() -> None:
                with pytest.raises(EtcdError, match="etcdserver: no leader") as caught:
                    await locked(world, lease)
                assert caught.value.code == Code.UNAVAILABLE

            nursery.start_soon(contend)
            await trio.sleep(1)
            world.member.lose_leader()
