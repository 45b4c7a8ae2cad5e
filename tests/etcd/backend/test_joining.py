"""Puts of one turn of the event loop share an entry of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from trio.testing import wait_all_tasks_blocked

from quorate.errors import UnknownOutcomeError
from quorate.etcd.backend.joining import SMALL_BYTES
from quorate.etcd.codes import EtcdError
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op, encode_request
from quorate.etcd.messages.together import MAX_TOGETHER, encode_together, payloads_untrusted
from quorate.node.requests.request import COMMAND
from tests.support.etcd_world import EtcdWorld, in_world

if TYPE_CHECKING:
    from quorate.node.requests.request import Request


class Clients:
    """Clients that put at a world, and what they hear: revisions, and texts of errors."""

    def __init__(self, world: EtcdWorld) -> None:
        self.heard: list[int | str] = []
        self._world = world

    def put(self, request: rpc.PutRequest, principal: int = 0) -> Request | None:
        message = request.SerializeToString()
        return self._world.backend.submit(Op.PUT, message, self._done, principal=principal)

    def _done(self, reply: bytes | EtcdError) -> None:
        if isinstance(reply, EtcdError):
            self.heard.append(reply.text)
        else:
            self.heard.append(rpc.PutResponse.FromString(reply).header.revision)


def payload(request: rpc.PutRequest) -> bytes:
    return encode_request(Op.PUT, request.SerializeToString())


A, B, C = (rpc.PutRequest(key=key) for key in (b"a", b"b", b"c"))


@in_world
async def test_puts_of_a_turn_are_one_entry_with_a_reply_for_each(world: EtcdWorld) -> None:
    clients = Clients(world)
    kept = rpc.PutRequest(key=b"b", ignore_value=True)
    for each in (A, kept, B):
        clients.put(each)
    assert clients.heard == []
    await wait_all_tasks_blocked()
    assert world.member.commands == [encode_together(map(payload, (A, kept, B)))]
    assert clients.heard == [2, "etcdserver: key not found", 3]
    clients.put(C)
    await wait_all_tasks_blocked()
    assert world.member.commands[1:] == [payload(C)]


@in_world
async def test_an_entry_has_puts_of_one_user(world: EtcdWorld) -> None:
    clients = Clients(world)
    for each, user in ((A, 1), (B, 2), (C, 1)):
        clients.put(each, principal=user)
    await wait_all_tasks_blocked()
    assert world.member.commands == [encode_together([payload(A), payload(C)]), payload(B)]
    assert world.member.principals == [1, 2]


@in_world
async def test_puts_that_are_large_or_read_are_entries_of_their_own(world: EtcdWorld) -> None:
    clients = Clients(world)
    large = rpc.PutRequest(key=b"a", value=b"x" * SMALL_BYTES)
    reading = rpc.PutRequest(key=b"a", prev_kv=True)
    for each in (A, large, reading, B):
        clients.put(each)
    await wait_all_tasks_blocked()
    expected = [payload(large), payload(reading), encode_together([payload(A), payload(B)])]
    assert world.member.commands == expected


@in_world
async def test_an_entry_has_a_bounded_number_of_puts(world: EtcdWorld) -> None:
    clients = Clients(world)
    for _ in range(MAX_TOGETHER + 2):
        clients.put(A)
    await wait_all_tasks_blocked()
    counts = [len(payloads_untrusted(each)) for each in world.member.commands]
    assert counts == [MAX_TOGETHER, 2]
    assert clients.heard == [*range(2, MAX_TOGETHER + 4)]


@pytest.mark.parametrize("given_up", [0, 1, 2])
@in_world
async def test_who_gives_up_hears_nothing_and_the_others_do(
    world: EtcdWorld, given_up: int
) -> None:
    world.member.parked = []
    clients = Clients(world)
    requests = [clients.put(A), clients.put(B)]
    await wait_all_tasks_blocked()
    assert [each.kind for each in world.member.parked].count(COMMAND) == 1
    for request in requests[:given_up]:
        assert request is not None
        request.cancel()
    world.member.release()
    assert clients.heard == [[2, 3], [3], []][given_up]
    # With the last of them nobody wants the entry.
    assert len(world.member.commands) == (given_up < 2)


@in_world
async def test_an_error_of_the_entry_is_one_of_each_put(world: EtcdWorld) -> None:
    clients = Clients(world)
    world.member.error = UnknownOutcomeError("lost")
    clients.put(A)
    clients.put(B)
    await wait_all_tasks_blocked()
    text = "etcdserver: request timed out, possibly due to connection lost"
    assert clients.heard == [text, text]
