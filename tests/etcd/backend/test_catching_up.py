"""A client of a follower finds there what it was told, its own writes first of all."""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from quorate.etcd.backend import catching_up
from quorate.etcd.backend.backend import Backend
from quorate.etcd.backend.catching_up import HELD_S
from quorate.etcd.backend.contact import LOST_S
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op, encode_reply, encode_request
from quorate.etcd.services.call import Call
from quorate.etcd.services.compaction import compact
from quorate.etcd.state.machine import EtcdState
from quorate.etcd.watching.hub import WatchHub
from quorate.keyvalue.protocol.payload import ETCD
from quorate.node.requests.request import CONFIRM
from quorate.node.state_machine.service import Command
from tests.support.etcd_world import DictTables, EtcdMember

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import pytest

    from quorate.etcd.codes import EtcdError
    from quorate.node.requests.request import Request

PUT = rpc.PutRequest(key=b"a", value=b"1").SerializeToString()


class Follower(EtcdMember):
    """A member that gets the leader's replies before it applies the entries."""

    def __init__(self) -> None:
        self.tables = DictTables()
        super().__init__(self.tables)
        self.leader_revision = 1
        self.confirms = True
        self.body = rpc.RangeResponse()

    def submit(self, request: Request) -> None:
        """Answer as the leader does, and apply nothing."""
        if request.kind is not CONFIRM:
            self.leader_revision += request.payload[0] == Op.PUT
            request.done(encode_reply(self.leader_revision, self.body.SerializeToString()))
        elif self.confirms:
            request.done(b"")

    def catch_up(self) -> None:
        """Apply one put."""
        now_ms = self.now_ms()
        self.state.apply(Command(encode_request(Op.PUT, PUT), ETCD, 0, 0, 4, 0, 0, now_ms), now_ms)


@attrs.define
class World:
    member: Follower
    backend: Backend
    replies: list[int] = attrs.field(factory=list[int])

    @classmethod
    @asynccontextmanager
    async def opened(cls) -> AsyncGenerator[World]:
        member = Follower()
        backend = Backend(member, member.state, Random(1), "orders")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(backend.run)
            yield cls(member, backend)
            nursery.cancel_scope.cancel()

    def submit(self, op: Op = Op.PUT) -> Request | None:
        """Send a request; the revision of its reply goes to `replies`."""
        message = PUT if op is Op.PUT else rpc.RangeRequest(key=b"a").SerializeToString()
        return self.backend.submit(op, message, self._done)

    async def submit_put(self) -> Request | None:
        """Send a put, and wait until the leader has it."""
        request = self.submit()
        await wait_all_tasks_blocked()
        return request

    def _done(self, reply: bytes | EtcdError) -> None:
        assert isinstance(reply, bytes)
        self.replies.append(rpc.PutResponse.FromString(reply).header.revision)

    async def read_here(self) -> bool:
        """Whether a serializable read finds the key."""
        message = rpc.RangeRequest(key=b"a", serializable=True).SerializeToString()
        return bool(rpc.RangeResponse.FromString(await self.backend.call(Op.RANGE, message)).kvs)


async def test_a_put_is_answered_once_this_member_has_applied_it(autojump_clock: object) -> None:
    async with World.opened() as world:
        await world.submit_put()
        found: list[bool] = []

        async def write_and_read() -> None:
            await world.backend.call(Op.PUT, PUT)
            found.append(await world.read_here())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_and_read)
            await trio.sleep(0.5)
            assert (world.replies, found) == ([], [])
            world.member.catch_up()
            assert (world.replies, found) == ([2], [])
            world.member.catch_up()
        assert found == [True]
        assert trio.current_time() < HELD_S


async def test_a_read_shows_no_revision_that_this_member_lacks(autojump_clock: object) -> None:
    async with World.opened() as world:
        world.submit(Op.RANGE)
        assert world.replies == [1]  # applied already: at once
        world.member.leader_revision = 2
        world.submit(Op.RANGE)
        assert world.replies == [1]
        world.member.catch_up()
        assert world.replies == [1, 2]


async def test_a_snapshot_lets_go_of_replies(autojump_clock: object) -> None:
    async with World.opened() as world:
        await world.submit_put()
        tables = DictTables()
        state = EtcdState(tables)
        put = Command(encode_request(Op.PUT, PUT), ETCD, 0, 0, 4, 0, 0, 0)
        state.apply(put, 0)
        world.member.tables.rows_by_key |= tables.rows_by_key
        world.member.tables.notes.by_key |= tables.notes.by_key
        assert world.replies == []
        world.member.state.reload()
        assert world.replies == [2]


async def test_replies_are_let_go_in_the_order_of_revisions(autojump_clock: object) -> None:
    async with World.opened() as world:
        for revision in (3, 2, 4, 3):
            world.member.leader_revision = revision
            world.submit(Op.RANGE)
        world.member.catch_up()
        world.member.catch_up()
        assert world.replies == [2, 3, 3]
        world.member.catch_up()
        assert world.replies == [2, 3, 3, 4]


async def test_a_reply_is_held_for_a_bounded_time(autojump_clock: object) -> None:
    async with World.opened() as world:
        began = trio.current_time()
        world.submit()
        await trio.sleep(HELD_S - 0.1)
        assert world.replies == []
        await world.backend.call(Op.PUT, PUT)
        assert world.replies == [2]
        assert trio.current_time() < began + 2 * HELD_S + 0.3


async def test_the_bytes_that_are_held_are_bounded(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catching_up, "MAX_HELD_BYTES", 250)
    async with World.opened() as world:
        world.member.body = rpc.RangeResponse(count=1, kvs=[rpc.KeyValue(value=b"x" * 92)])
        world.member.leader_revision = 2
        for _ in range(3):
            world.submit(Op.RANGE)
        assert world.replies == [2]  # the third one is too much
        world.member.catch_up()
        assert world.replies == [2, 2, 2]
        world.member.leader_revision = 3
        world.submit(Op.RANGE)
        assert world.replies == [2, 2, 2]  # what was let go counts no more


async def test_nothing_is_held_without_a_leader(autojump_clock: object) -> None:
    async with World.opened() as world:
        world.member.confirms = False
        await trio.sleep(LOST_S - 1)
        await world.submit_put()
        assert world.replies == []
        await world.backend.wait_without_leader()
        await trio.sleep(0.2)
        await world.submit_put()
        assert world.replies == [2, 3]


async def test_a_held_reply_that_is_cancelled_is_load_no_more(autojump_clock: object) -> None:
    async with World.opened() as world:
        request = await world.submit_put()
        assert request is not None
        request.cancel()
        world.member.catch_up()
        await trio.sleep(HELD_S + 1)
        assert world.replies == []
        await world.submit_put()
        world.member.catch_up()
        assert world.replies == [3]


async def test_a_compaction_is_answered_once_this_member_has_compacted(
    autojump_clock: object,
) -> None:
    async with World.opened() as world, trio.open_nursery() as nursery:
        world.member.leader_revision = 2
        world.member.catch_up()
        request = rpc.CompactionRequest(revision=2)
        answered: list[float] = []

        async def ask() -> None:
            await compact(Call(world.backend, WatchHub(world.member.state)), request)
            answered.append(trio.current_time())

        nursery.start_soon(ask)
        await trio.sleep(0.5)
        assert not answered  # else a watch from revision 1 would begin here
        now_ms = world.member.now_ms()
        payload = encode_request(Op.COMPACT, request.SerializeToString())
        world.member.state.apply(Command(payload, ETCD, 0, 0, 4, 0, 0, now_ms), now_ms)
        await trio.sleep(0.1)
        assert answered
