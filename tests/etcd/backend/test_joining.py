"""Puts of one turn of the event loop share an entry of the log."""

from __future__ import annotations

import gc
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from quorate.errors import UnknownOutcomeError
from quorate.etcd.backend.caller import Caller
from quorate.etcd.backend.joining import MAX_ENTRY_BYTES, MAX_JOINED, SMALL_BYTES, Joining
from quorate.etcd.backend.turn_end import TurnEnd
from quorate.etcd.codes import EtcdError
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op, encode_reply, encode_request
from quorate.etcd.messages.together import (
    MAX_TOGETHER,
    encode_replies,
    encode_together,
    payloads_untrusted,
)
from quorate.keyvalue.protocol.payload import ETCD
from quorate.node.requests import forwarding
from quorate.node.requests.request import COMMAND, Request, still_wanted
from tests.support.etcd_world import EtcdWorld, in_world

if TYPE_CHECKING:
    from quorate.errors import RequestError


class Clients:
    """Clients that put at a world, and what they hear: revisions, and texts of errors."""

    def __init__(self, world: EtcdWorld) -> None:
        self.heard: list[int | str] = []
        self._world = world

    def put(self, request: rpc.PutRequest, principal: int = 0) -> Request | None:
        message = request.SerializeToString()
        return self._world.backend.submit(Op.PUT, message, self._done, caller=Caller(principal))

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
async def test_an_entry_fails_when_the_first_of_its_puts_would(world: EtcdWorld) -> None:
    world.member.parked = []
    now = trio.current_time()
    for left_s in (2.0, 0.5):
        caller = Caller(1, deadline=now + left_s)
        world.backend.submit(Op.PUT, A.SerializeToString(), lambda _reply: None, caller=caller)
    await wait_all_tasks_blocked()
    parked = [each for each in world.member.parked if each.kind is COMMAND]
    assert [each.deadline for each in parked] == [now + 0.5]


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
    for _ in range(MAX_JOINED + 2):
        clients.put(A)
    await wait_all_tasks_blocked()
    counts = [len(payloads_untrusted(each)) for each in world.member.commands]
    assert counts == [MAX_JOINED, 2]
    assert clients.heard == [*range(2, MAX_JOINED + 4)]


def test_the_reply_to_joined_puts_is_small_enough_to_be_always_forwarded() -> None:
    replies = [encode_reply(2**62, b"")] * (MAX_JOINED + 1)
    assert len(encode_replies(2**62, replies[1:])) <= forwarding.SMALL_BYTES
    assert len(encode_replies(2**62, replies)) > forwarding.SMALL_BYTES
    assert MAX_JOINED <= MAX_TOGETHER


@pytest.mark.parametrize(("limit", "most"), [(1024, 1024), (32 << 20, MAX_ENTRY_BYTES)])
async def test_an_entry_has_a_bounded_number_of_bytes(
    autojump_clock: object, limit: int, most: int
) -> None:
    sent: list[Request] = []
    turn_end = TurnEnd()
    joining = Joining(sent.extend, turn_end, limit)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn_end.run)
        for _ in range(30):
            joining.add(Request(COMMAND, bytes(most // 10), ETCD, ignore))
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert [len(payloads_untrusted(each.payload)) for each in sent] == [9, 9, 9, 3]
    assert all(len(each.payload) <= most for each in sent)


@pytest.mark.parametrize("given_up", [0, 1, 2])
@in_world
async def test_a_client_that_gives_up_gets_no_reply_and_the_others_do(
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
    assert clients.heard == [[2, 3], [2], []][given_up]
    # A put that was not sent yet is not made. With the last of them nobody wants the entry.
    entries = [[encode_together([payload(A), payload(B)])], [payload(B)], []]
    assert world.member.commands == entries[given_up]


@in_world
async def test_an_error_of_the_entry_is_one_of_each_put(world: EtcdWorld) -> None:
    clients = Clients(world)
    world.member.error = UnknownOutcomeError("lost")
    clients.put(A)
    clients.put(B)
    await wait_all_tasks_blocked()
    text = "etcdserver: request timed out, possibly due to connection lost"
    assert clients.heard == [text, text]


# --- the joined request by itself


def ignore(_result: bytes | RequestError) -> None:
    pass


class Sent:
    """Requests that were joined into one, and their results."""

    def __init__(self, *names: str) -> None:
        self.results: dict[str, bytes | RequestError] = {}
        self.parts = [
            Request(COMMAND, name.encode(), ETCD, partial(self.results.__setitem__, name))
            for name in names
        ]

    async def join(self) -> Request:
        """Return the one request."""
        sent: list[Request] = []
        turn_end = TurnEnd()
        joining = Joining(sent.extend, turn_end, MAX_ENTRY_BYTES)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(turn_end.run)
            for each in self.parts:
                joining.add(each)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        (request,) = sent
        return request


async def test_a_callback_that_raises_costs_the_others_no_reply(
    autojump_clock: object, caplog: pytest.LogCaptureFixture
) -> None:
    def raises(_result: bytes | RequestError) -> None:
        raise RuntimeError("a bug")

    sent = Sent("a", "b", "c")
    sent.parts[1].done = raises
    (await sent.join()).done(encode_replies(4, [b"1", b"2", b"3"]))
    assert sent.results == {"a": b"1", "c": b"3"}
    assert "a client of etcd got no reply" in caplog.text


@pytest.mark.parametrize("replies", [[b"1"], [b"1", b"2", b"3"]])
async def test_a_malformed_reply_is_an_unknown_outcome_of_each_put(
    autojump_clock: object, replies: list[bytes]
) -> None:
    sent = Sent("a", "b")
    (await sent.join()).done(encode_replies(4, replies))
    assert [*map(type, sent.results.values())] == [UnknownOutcomeError] * 2


async def test_a_finished_request_keeps_nothing(autojump_clock: object) -> None:
    sent = Sent("a", "b")
    request = await sent.join()
    request.done(encode_replies(4, [b"1", b"2"]))
    assert request.payload == b""
    assert not any(held is request for held in gc.get_referents(request.done))
    request.done(b"a second result reaches nobody")
    assert sent.results == {"a": b"1", "b": b"2"}


async def test_what_remains_of_a_request_keeps_its_deadline(autojump_clock: object) -> None:
    sent = Sent("a", "b", "c")
    request = await sent.join()
    request.deadline, request.losses = 9.0, 2
    sent.parts[0].cancel()
    (rest,) = still_wanted([request])
    assert payloads_untrusted(rest.payload) == [b"b", b"c"]
    assert (rest.deadline, rest.losses, request.payload) == (9.0, 2, b"")
    sent.parts[2].cancel()
    assert [*still_wanted([rest])] == [sent.parts[1]]


async def test_a_put_cancelled_on_its_way_costs_the_others_no_reply(autojump_clock: object) -> None:
    sent = Sent("a", "b")
    request = await sent.join()
    sent.parts[0].cancel()
    request.done(encode_replies(4, [b"1", b"2"]))
    assert sent.results == {"b": b"2"}
