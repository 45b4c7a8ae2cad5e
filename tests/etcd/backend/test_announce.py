"""A member says in the log where it listens."""

import trio

from quorate.etcd.backend.announce import announce
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op
from tests.support.etcd_world import EtcdWorld, in_world


async def announced(world: EtcdWorld) -> list[rpc.Announcement]:
    _, body = await world.backend.ask(Op.ANNOUNCEMENTS, b"")
    return list(rpc.Announcements.FromString(body).members)


@in_world
async def test_what_the_log_says_already_is_not_said_again(world: EtcdWorld) -> None:
    for url in ("http://a:2379", "http://a:2379", "http://b:2379"):
        await announce(world.backend, "member-0", (url,))
        (found,) = await announced(world)
        assert (found.member_id, found.name, [*found.client_urls]) == (0, "member-0", [url])
    assert len(world.member.commands) == 2


@in_world
async def test_without_a_leader_it_is_tried_again(world: EtcdWorld) -> None:
    world.member.lose_leader()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(announce, world.backend, "member-0", ("http://a:2379",))
        await trio.sleep(10)
        world.member.error = None
    assert len(await announced(world)) == 1
