"""Who the members are, what a member says of itself, and the orders of an operator."""

from typing import TypeVar

import attrs
import pytest
import trio
from google.protobuf.message import Message
from trio.testing import MockClock

from quorate.errors import NoLeaderError, RefusedError
from quorate.etcd.codes import Code, EtcdError
from quorate.etcd.messages import rpc_pb2 as rpc
from quorate.etcd.messages.requests import Op
from quorate.etcd.services.table import STREAMS, UNARY
from quorate.node.requests.request import RequestKind
from tests.support.etcd_world import EtcdWorld

R = TypeVar("R", bound=Message)


async def ask(world: EtcdWorld, method: str, request: Message, kind: type[R]) -> R:
    path = f"/etcdserverpb.{method}"
    return kind.FromString(await UNARY[path](world.call, request))


async def fails(world: EtcdWorld, method: str, request: Message) -> tuple[Code, str]:
    with pytest.raises(EtcdError) as caught:
        await ask(world, method, request, rpc.MemberListResponse)
    return caught.value.code, caught.value.text


async def order(
    world: EtcdWorld, method: str, request: Message, result: bytes | RefusedError | NoLeaderError
) -> tuple[str, bytes | EtcdError]:
    """Call a method, and give the leader's answer to its order; return the words and the reply."""
    world.member.parked = []
    replies: list[bytes | EtcdError] = []

    async def call() -> None:
        try:
            replies.append(await UNARY[f"/etcdserverpb.{method}"](world.call, request))
        except EtcdError as error:
            replies.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        (sent,) = (each for each in world.member.parked if each.kind is RequestKind.CONTROL)
        world.member.parked.remove(sent)
        sent.done(result)
        world.member.release()
    return sent.payload.decode(), replies[0]


async def test_members_have_the_names_and_urls_that_they_announced(
    autojump_clock: MockClock,
) -> None:
    async with EtcdWorld.opened() as world:
        one = rpc.Announcement(member_id=1, name="b", client_urls=["http://10.0.0.2:2379"])
        await world.backend.call(Op.ANNOUNCE, one.SerializeToString())
        for linearizable in (False, True):
            request = rpc.MemberListRequest(linearizable=linearizable)
            reply = await ask(world, "Cluster/MemberList", request, rpc.MemberListResponse)
            assert [each.name for each in reply.members] == ["", "b", ""]
            assert [[*each.clientURLs] for each in reply.members] == [
                [],
                ["http://10.0.0.2:2379"],
                [],
            ]
            assert [*reply.members[0].peerURLs] == ["http://10.0.0.1:9000"]
            ids = [world.backend.member_id_of(member) for member in range(3)]
            assert [each.ID for each in reply.members] == ids
            assert reply.header.member_id == ids[0]
            assert (reply.header.revision, reply.header.raft_term) == (0, 5)


async def test_without_a_leader_only_this_member_lists_the_others(
    autojump_clock: MockClock,
) -> None:
    async with EtcdWorld.opened() as world:
        world.member.lose_leader()
        request = rpc.MemberListRequest()
        reply = await ask(world, "Cluster/MemberList", request, rpc.MemberListResponse)
        assert len(reply.members) == 3
        request = rpc.MemberListRequest(linearizable=True)
        code, text = await fails(world, "Cluster/MemberList", request)
        assert (code, text) == (Code.UNAVAILABLE, "etcdserver: no leader")


async def test_a_standby_is_a_learner_and_can_be_promoted(autojump_clock: MockClock) -> None:
    async with EtcdWorld.opened() as world:
        first, second, third = world.member.topology.members
        members = (first, second, attrs.evolve(third, standby=True))
        world.member.topology = attrs.evolve(world.member.topology, members=members)
        request = rpc.MemberPromoteRequest(ID=world.backend.member_id_of(2))
        words, reply = await order(world, "Cluster/MemberPromote", request, b"promoted")
        assert words == "member promote 2"
        assert isinstance(reply, bytes)
        listed = rpc.MemberPromoteResponse.FromString(reply).members
        assert [each.isLearner for each in listed] == [False, False, True]
        request = rpc.MemberPromoteRequest(ID=world.backend.member_id_of(1))
        _, text = await fails(world, "Cluster/MemberPromote", request)
        assert text == "etcdserver: can only promote a learner member"


async def test_a_member_is_removed_by_an_order(autojump_clock: MockClock) -> None:
    async with EtcdWorld.opened() as world:
        request = rpc.MemberRemoveRequest(ID=world.backend.member_id_of(2))
        words, reply = await order(world, "Cluster/MemberRemove", request, b"removed")
        assert words == "member remove 2"
        assert isinstance(reply, bytes)
        assert len(rpc.MemberRemoveResponse.FromString(reply).members) == 2


async def test_what_the_leader_refuses_is_told_in_its_words(autojump_clock: MockClock) -> None:
    async with EtcdWorld.opened() as world:
        request = rpc.MemberRemoveRequest(ID=world.backend.member_id_of(2))
        _, reply = await order(world, "Cluster/MemberRemove", request, RefusedError("too few"))
        assert isinstance(reply, EtcdError)
        assert (reply.code, reply.text) == (Code.FAILED_PRECONDITION, "etcdserver: too few")
        _, reply = await order(world, "Cluster/MemberRemove", request, NoLeaderError())
        assert isinstance(reply, EtcdError)
        assert (reply.code, reply.text) == (Code.UNAVAILABLE, "etcdserver: no leader")


@pytest.mark.parametrize(
    ("method", "request_", "code", "text"),
    [
        ("Cluster/MemberRemove", rpc.MemberRemoveRequest(ID=5), 5, "etcdserver: member not found"),
        ("Cluster/MemberPromote", rpc.MemberPromoteRequest(), 5, "etcdserver: member not found"),
        ("Cluster/MemberAdd", rpc.MemberAddRequest(), 12, "`quorate member add`"),
        ("Cluster/MemberUpdate", rpc.MemberUpdateRequest(), 12, "`quorate member move`"),
        (
            "Maintenance/MoveLeader",
            rpc.MoveLeaderRequest(targetID=5),
            9,
            "etcdserver: bad leader transferee",
        ),
        ("Maintenance/Alarm", rpc.AlarmRequest(action=rpc.AlarmRequest.ACTIVATE), 12, "members"),
        ("Auth/UserAdd", rpc.AuthUserAddRequest(), 12, "ACL SETUSER"),
        ("Auth/AuthEnable", rpc.AuthEnableRequest(), 9, "ACL SETUSER"),
        ("Auth/Authenticate", rpc.AuthenticateRequest(), 9, "authentication is not enabled"),
    ],
)
async def test_what_can_not_be_done_is_an_error_that_says_what_can(
    autojump_clock: MockClock, method: str, request_: Message, code: int, text: str
) -> None:
    async with EtcdWorld.opened() as world:
        found = await fails(world, method, request_)
        assert found[0] == code
        assert text in found[1]


RULES = "'~prefix*' +@read +@write"


@pytest.mark.parametrize(
    ("names", "command"),
    [
        (
            ("UserAdd", "UserChangePassword"),
            f"ACL SETUSER name on '>password' {RULES}",
        ),
        (("UserDelete",), "ACL DELUSER name"),
        (("UserGet",), "ACL GETUSER name"),
        (("UserGrantRole", "UserRevokeRole"), f"ACL SETUSER name {RULES}"),
        (("RoleAdd", "RoleDelete", "RoleGet"), f"ACL SETUSER name {RULES}"),
        (
            ("RoleGrantPermission", "RoleRevokePermission"),
            f"ACL SETUSER name {RULES}",
        ),
    ],
)
async def test_changes_of_users_and_roles_name_the_command_that_does_it_here(
    autojump_clock: MockClock, names: tuple[str, ...], command: str
) -> None:
    async with EtcdWorld.opened() as world:
        for name in names:
            code, text = await fails(world, f"Auth/{name}", rpc.AuthUserAddRequest())
            assert code == Code.UNIMPLEMENTED
            assert f" by {command}, at the port of Redis's clients" in text


async def test_the_leader_moves_only_by_a_call_at_the_leader(autojump_clock: MockClock) -> None:
    async with EtcdWorld.opened() as world:
        request = rpc.MoveLeaderRequest(targetID=world.backend.member_id_of(2))
        words, reply = await order(world, "Maintenance/MoveLeader", request, b"done")
        assert (words, reply) == ("transfer 2", b"")
        world.member.topology = attrs.evolve(world.member.topology, is_leader=False)
        assert await fails(world, "Maintenance/MoveLeader", request) == (
            Code.FAILED_PRECONDITION,
            "etcdserver: not leader",
        )


async def test_a_status_has_numbers_of_this_member(autojump_clock: MockClock) -> None:
    async with EtcdWorld.opened() as world:
        await world.put(b"k")
        reply = await ask(world, "Maintenance/Status", rpc.StatusRequest(), rpc.StatusResponse)
        assert reply.version == "3.5.21"
        assert reply.leader == world.backend.member_id_of(0)
        assert reply.header.revision == 2
        assert reply.raftTerm == 5
        assert reply.raftAppliedIndex == world.member.position > 0
        assert not reply.errors


async def test_a_full_disk_is_an_alarm(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with EtcdWorld.opened() as world:
        full = attrs.evolve(world.member.status(), disk_full=True)
        monkeypatch.setattr(world.member, "status", lambda: full)
        reply = await ask(world, "Maintenance/Alarm", rpc.AlarmRequest(), rpc.AlarmResponse)
        own = world.backend.member_id_of(0)
        assert [*reply.alarms] == [rpc.AlarmMember(memberID=own, alarm=rpc.NOSPACE)]
        other = rpc.AlarmRequest(alarm=rpc.CORRUPT)
        assert not (await ask(world, "Maintenance/Alarm", other, rpc.AlarmResponse)).alarms
        status = await ask(world, "Maintenance/Status", rpc.StatusRequest(), rpc.StatusResponse)
        assert [*status.errors] == [f"memberID:{own} alarm:NOSPACE "]


async def test_hashes_are_of_this_member(autojump_clock: MockClock) -> None:
    async with EtcdWorld.opened() as world:
        await world.put(b"k")
        request = rpc.HashKVRequest()
        reply = await ask(world, "Maintenance/HashKV", request, rpc.HashKVResponse)
        assert reply.hash
        assert reply.header.revision == 2
        everything = rpc.HashRequest()
        whole = await ask(world, "Maintenance/Hash", everything, rpc.HashResponse)
        assert whole.hash == reply.hash
        assert not world.member.queries, "no leader was asked"


async def test_a_snapshot_is_refused_with_what_to_do(autojump_clock: MockClock) -> None:
    async with EtcdWorld.opened() as world:
        with pytest.raises(EtcdError, match="quorate backup"):
            await STREAMS["/etcdserverpb.Maintenance/Snapshot"](
                world.call, NotImplemented, NotImplemented
            )
