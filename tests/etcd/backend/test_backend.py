"""What becomes of a client's message on its way to the member and back."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import trio
from google.protobuf.message import Message
from trio.testing import wait_all_tasks_blocked

from quorate.errors import (
    NoLeaderError,
    OversizedRequestError,
    RefusedError,
    RequestError,
    UnknownOutcomeError,
)
from quorate.etcd.backend import submission
from quorate.etcd.backend.backend import MAX_MESSAGE_BYTES
from quorate.etcd.backend.caller import LEADER_WAIT_S, Caller
from quorate.etcd.backend.identity import Identity
from quorate.etcd.codes import Code, EtcdError
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op
from tests.support.etcd_world import EtcdWorld, in_world

PUT = rpc.PutRequest(key=b"a", value=b"1").SerializeToString()


def test_ids_differ_by_cluster_and_member_and_are_never_0() -> None:
    one, other = Identity("one"), Identity("other")
    numbers = [each.member_id(own) for each in (one, other) for own in range(3)]
    numbers += [one.cluster_id, other.cluster_id]
    assert len(set(numbers)) == len(numbers)
    assert all(0 < number < 2**64 for number in numbers)
    assert Identity("one").cluster_id == one.cluster_id
    assert Identity("one").member_id(2) == one.member_id(2)


@in_world
async def test_a_reply_begins_with_who_answered_at_which_revision(world: EtcdWorld) -> None:
    header = (await world.ask(Op.PUT, rpc.PutRequest(key=b"a"), rpc.PutResponse)).header
    backend = world.backend
    assert header.cluster_id == backend.cluster_id
    assert header.member_id == backend.member_id_of(0)
    assert (header.revision, header.raft_term) == (2, backend.raft_term)
    # A reply without a revision leaves it out.
    assert rpc.PutResponse.FromString(backend.header(0)).header.revision == 0


PUTS = rpc.RequestOp(request_put=rpc.PutRequest(key=b"a"))
READS = rpc.RequestOp(request_range=rpc.RangeRequest(key=b"a"))
READS_HERE = rpc.RequestOp(request_range=rpc.RangeRequest(key=b"a", serializable=True))


@pytest.mark.parametrize(
    ("op", "message", "where"),
    [
        pytest.param(Op.PUT, rpc.PutRequest(key=b"a"), "log", id="put"),
        pytest.param(Op.RANGE, READS.request_range, "leader", id="range"),
        pytest.param(Op.RANGE, READS_HERE.request_range, "here", id="serializable"),
        pytest.param(Op.LEASE_LEASES, rpc.LeaseLeasesRequest(), "leader", id="leases"),
        pytest.param(Op.TXN, rpc.TxnRequest(), "leader", id="empty txn"),
        pytest.param(Op.TXN, rpc.TxnRequest(success=[PUTS]), "log", id="txn that puts"),
        pytest.param(Op.TXN, rpc.TxnRequest(failure=[READS]), "leader", id="txn that reads"),
        pytest.param(Op.TXN, rpc.TxnRequest(success=[READS_HERE]), "here", id="serializable txn"),
        pytest.param(Op.TXN, rpc.TxnRequest(success=[READS_HERE, READS]), "leader", id="mixed txn"),
    ],
)
@in_world
async def test_only_what_changes_something_goes_into_the_log(
    world: EtcdWorld, op: Op, message: Message, where: str
) -> None:
    replies: list[bytes | EtcdError] = []
    world.backend.submit(op, message.SerializeToString(), replies.append)
    await wait_all_tasks_blocked()
    assert isinstance(replies[0], bytes)
    await world.backend.call(op, message.SerializeToString())
    member = world.member
    # Its backend asks the leader from time to time, which is no query of the state.
    counts = {"log": len(member.commands), "leader": len(member.queries), "here": len(member.stale)}
    assert counts == {"log": 0, "leader": 0, "here": 0} | {where: 2}


@in_world
async def test_a_bad_message_gets_an_error_and_is_not_sent(world: EtcdWorld) -> None:
    replies: list[bytes | EtcdError] = []
    too_large = rpc.PutRequest(key=b"a", value=b"x" * MAX_MESSAGE_BYTES).SerializeToString()
    for message in (b"", b"\xff", too_large):
        assert world.backend.submit(Op.PUT, message, replies.append) is None
    texts = [reply.text for reply in replies if isinstance(reply, EtcdError)]
    assert texts[0] == "etcdserver: key is not provided"
    assert texts[1].startswith("grpc: error unmarshalling request")
    assert texts[2] == "etcdserver: request is too large"
    assert not world.member.commands


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (NoLeaderError("x"), Code.UNAVAILABLE, "etcdserver: no leader"),
        (
            UnknownOutcomeError("x"),
            Code.UNAVAILABLE,
            "etcdserver: request timed out, possibly due to connection lost",
        ),
        (OversizedRequestError("x"), Code.INVALID_ARGUMENT, "etcdserver: request is too large"),
        (RefusedError("it is suspended"), Code.UNAVAILABLE, "etcdserver: it is suspended"),
    ],
)
@in_world
async def test_errors_of_the_member_are_told_in_etcds_words(
    world: EtcdWorld, error: RequestError, code: Code, text: str
) -> None:
    world.member.error = error
    replies: list[bytes | EtcdError] = []
    world.backend.submit(Op.PUT, PUT, replies.append)
    with pytest.raises(EtcdError) as caught:
        await world.backend.call(Op.PUT, PUT)
    assert isinstance(replies[0], EtcdError)
    for each in (replies[0], caught.value):
        assert (each.code, each.text) == (code, text)


@in_world
async def test_a_reply_that_is_too_large_asks_for_pages(world: EtcdWorld) -> None:
    world.member.error = OversizedRequestError("a reply of 99999999 bytes")
    with pytest.raises(
        EtcdError, match="the reply is too large; read fewer keys at once"
    ) as caught:
        await world.get(b"a")
    assert caught.value.code == Code.RESOURCE_EXHAUSTED


@in_world
async def test_a_request_waits_for_a_leader_for_a_bounded_time(world: EtcdWorld) -> None:
    world.member.parked = []
    request = world.backend.submit(Op.PUT, PUT, lambda _: None, caller=Caller(7))
    assert request is not None
    assert request.deadline == trio.current_time() + LEADER_WAIT_S
    assert request.principal == 7


@in_world
async def test_a_cancelled_request_is_not_answered(world: EtcdWorld) -> None:
    world.member.parked = []
    replies: list[bytes | EtcdError] = []
    request = world.backend.submit(Op.PUT, PUT, replies.append)
    assert request is not None
    request.cancel()
    with trio.move_on_after(1):
        await world.backend.call(Op.PUT, PUT)
    world.member.release()
    assert not replies
    assert not world.member.commands


@in_world
async def test_too_many_waiting_requests_are_refused(world: EtcdWorld) -> None:
    world.member.parked = []
    replies: list[bytes | EtcdError] = []
    with patch.object(submission, "MAX_WAITING", 3):
        requests = [world.backend.submit(Op.PUT, PUT, replies.append) for _ in range(4)]
        assert requests[3] is None
        assert [reply.text for reply in replies if isinstance(reply, EtcdError)] == [
            "etcdserver: too many requests"
        ]
        # One that is cancelled, even twice, makes room for one; so does each that is answered.
        assert requests[0] is not None
        for _ in range(2):
            requests[0].cancel()
        assert world.backend.submit(Op.PUT, PUT, replies.append) is not None
        assert world.backend.submit(Op.PUT, PUT, replies.append) is None
        await wait_all_tasks_blocked()
        world.member.release()
        assert [type(reply) for reply in replies] == [EtcdError, EtcdError, bytes, bytes, bytes]
        world.member.parked = []
        assert all(world.backend.submit(Op.PUT, PUT, replies.append) for _ in range(3))


@in_world
async def test_calls_of_tasks_are_load_like_requests(world: EtcdWorld) -> None:
    world.member.parked = []
    with patch.object(submission, "MAX_WAITING", 2):
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(world.backend.call, Op.PUT, PUT)
            await trio.sleep(0.1)
            with pytest.raises(EtcdError, match="too many requests"), trio.fail_after(5):
                await world.backend.call(Op.PUT, PUT)
            assert world.backend.submit(Op.PUT, PUT, lambda _: None) is None
            world.member.release()
        # What was answered, failed or cancelled makes room.
        for _ in range(3):
            world.member.error = NoLeaderError("x")
            with pytest.raises(EtcdError, match="no leader"):
                await world.backend.call(Op.PUT, PUT)
            world.member.error, world.member.parked = None, []
            with trio.move_on_after(1):
                await world.backend.call(Op.PUT, PUT)
            world.member.release()
            await world.backend.call(Op.PUT, PUT)


@in_world
async def test_a_lease_without_an_id_gets_a_positive_one(world: EtcdWorld) -> None:
    leases = [await world.grant(10) for _ in range(10)]
    assert len(set(leases)) == 10
    assert all(0 < lease < 2**63 for lease in leases)
    assert await world.grant(10, lease=5) == 5
