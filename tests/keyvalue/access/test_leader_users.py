"""A member whose state may be old asks the leader for the users; so does a witness."""

from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest
import trio

from quorate.errors import NoLeaderError
from quorate.keyvalue.access.directory import Directory
from quorate.keyvalue.access.rules import DEFAULT
from quorate.keyvalue.access.users import DEFAULT_NAME, Users
from quorate.keyvalue.clients.client_state import ClientState
from quorate.keyvalue.clients.port_access import PortAccess
from quorate.keyvalue.clients.port_state import ClientPortLimits, PortState
from quorate.keyvalue.port.leader_users import follow_users
from quorate.keyvalue.protocol import resp
from quorate.keyvalue.service import KeyValueService
from tests.support.client_port_world import OneMember, World, command

START = 1.5  # seconds until a question of the next period is answered


@pytest.fixture
async def member(tmp_path: Path) -> AsyncIterator[OneMember]:
    """The leader."""
    service = KeyValueService.open(tmp_path, cluster="orders", member_id=0)
    yield OneMember(service)
    service.close()


def port_of(member: OneMember, users: Directory) -> PortState:
    return PortState(member, ClientPortLimits(), access=PortAccess(users, spread_s=2.0))


async def test_a_new_member_borrows_until_its_own_state_is_as_new(
    member: OneMember, autojump_clock: trio.testing.MockClock
) -> None:
    member.service.users.set(b"bob", [b"on", b"nopass", b"~a*", b"+get"], 7)
    own = Users()
    users = Directory(own, settled=False)
    state = port_of(member, users)
    member.parked = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow_users, state)
        await trio.sleep(START)
        assert not users.known  # no leader so far
        member.release()
        await trio.testing.wait_all_tasks_blocked()
        assert [*users] == [b"bob", b"default"]
        assert users.get(b"bob") == member.service.users.get(b"bob")
        assert not users.settled
        own.set(b"eve", [], 3)  # it applies the log, which is still old
        await trio.sleep(START)
        assert [*users] == [b"bob", b"default"]
        own.set(b"carol", [], 7)
        await trio.sleep(START)
        assert users.settled
        assert [*users] == [b"carol", b"default", b"eve"]
        # It asks on, but the users are sent no more.
        asked = len(member.queries)
        await trio.sleep(START)
        question = member.queries[asked]
        assert question == command("QUORATE.USERS", "7")
        assert member.service.query(question, 0) == b"*1\r\n:7\r\n"
        nursery.cancel_scope.cancel()


async def test_a_cluster_without_users_is_asked_once(
    member: OneMember, autojump_clock: trio.testing.MockClock
) -> None:
    own = Users()
    state = port_of(member, Directory(own, settled=False))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow_users, state)
        await trio.sleep(10 * START)
        assert len(member.queries) == 1
        member.parked = []  # no leader is heard any more, and everybody is still let in
        await trio.sleep(10 * START)
        assert state.access.users.known
        own.set(b"bob", [b"on"], 5)
        await trio.sleep(START)
        assert not state.access.users.known
        nursery.cancel_scope.cancel()


async def test_a_member_that_is_behind_borrows_what_it_has_not_applied(
    member: OneMember, autojump_clock: trio.testing.MockClock
) -> None:
    own = Users()
    own.set(b"bob", [b"on"], 5)
    member.service.users.set(b"bob", [b"on"], 5)
    users = Directory(own, settled=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow_users, port_of(member, users))
        await trio.sleep(START)
        assert users.settled
        member.service.users.delete([b"bob"], 9)
        await trio.sleep(START)
        assert ([*users], users.version) == ([b"default"], 9)
        own.delete([b"bob"], 9)
        await trio.sleep(START)
        assert users.settled
        nursery.cancel_scope.cancel()


async def test_a_witness_asks_over_and_over(
    member: OneMember, autojump_clock: trio.testing.MockClock
) -> None:
    users = Directory(settled=False)
    state = port_of(member, users)
    member.topology = attrs.evolve(member.topology, witness=True)
    member.service.users.set(b"bob", [b"on"], 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow_users, state)
        await trio.sleep(START)
        assert [*users] == [b"bob", b"default"]
        assert users.get(DEFAULT_NAME) == DEFAULT
        member.service.users.delete([b"bob"], 2)
        await trio.sleep(START)
        assert [*users] == [b"default"]
        # one lost answer changes nothing, a long silence closes the port to strangers
        member.error = NoLeaderError()
        await trio.sleep(0.5)
        assert users.known
        await trio.sleep(3.0)
        assert not users.known
        assert users.access(DEFAULT_NAME) is None
        access = users.while_unknown(DEFAULT_NAME)
        assert (access.open, access.joins) == (False, 0)
        member.error = None
        await trio.sleep(START)
        assert users.get(DEFAULT_NAME) == DEFAULT
        nursery.cancel_scope.cancel()


async def test_a_leader_of_an_earlier_version_has_no_users(
    member: OneMember, autojump_clock: trio.testing.MockClock
) -> None:
    users = Directory(settled=False)

    def refuse(payload: bytes, flags: int) -> bytes:
        return resp.error("ERR unknown command 'QUORATE.USERS', with args beginning with: ")

    vars(member.service)["query"] = refuse
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow_users, port_of(member, users))
        await trio.sleep(START)
        assert users.settled
        nursery.cancel_scope.cancel()


async def test_commands_wait_until_the_users_are_known(tmp_path: Path) -> None:
    async with World.opened(tmp_path / "tables", settled=False) as world:
        world.member.parked = []
        world.member.service.users.set(b"bob", [b"on", b"nopass", b"~*", b"+@all"], 7)
        client, other = await world.connect(), await world.connect()
        await client.ask(command("PING"), resp.PONG)
        skipped = ("CLIENT", "REPLY", "SKIP"), ("SET", "b", "1")
        sent = (*skipped, ("SET", "a", "1"), ("AUTH", "bob", "x"), ("ACL", "WHOAMI"), ("GET", "a"))
        await client.send(b"".join(command(*words) for words in sent))
        await other.send(command("HELLO", "3", "AUTH", "bob", "x") + command("MULTI"))
        await world.has_read(100)
        await world.until(lambda: world.member.parked)
        assert not world.member.commands
        # found is for a cluster without a leader, which has no users
        founder = await world.connect()
        await founder.send(command("QUORATE.CONTROL", "FOUND"))
        await world.until(lambda: len(world.member.parked or ()) == 2)
        world.member.parked.pop()
        world.member.release()
        replies = resp.OK * 2 + b"$3\r\nbob\r\n$1\r\n1\r\n"
        assert await client.receive(len(replies)) == replies
        assert (await other.receive_until(resp.OK)).startswith(b"%7\r\n")


async def test_commands_are_refused_if_no_leader_is_found(tmp_path: Path) -> None:
    async with World.opened(tmp_path / "tables", settled=False) as world:
        world.member.error = NoLeaderError()
        client = await world.connect()
        await client.send(command("SET", "a", "1") + command("PING"))
        reply = await client.receive_until(resp.PONG)
        assert reply.startswith(b"-CLUSTERDOWN no leader was found in time; nothing was done\r\n")
        world.member.error = None
        await client.ask(command("SET", "a", "1"), resp.OK)


async def test_an_election_logs_nobody_out_and_lets_no_removed_user_in(tmp_path: Path) -> None:
    async with World.opened(tmp_path / "tables") as world:
        service, users = world.member.service, world.port.state.access.users
        for name in (b"bob", b"eve"):
            service.users.set(name, [b"on", b"nopass", b"~*", b"+@all"], 7)
        bob, eve = await world.connect(), await world.connect()
        await bob.ask(command("AUTH", "bob", "x"), resp.OK)
        await eve.ask(command("AUTH", "eve", "x"), resp.OK)
        world.member.parked = []
        world.member.follow(2)  # of which this member has not heard
        await world.until(lambda: not users.known)
        await bob.ask(command("PING"), resp.PONG)
        read = world.port.state.counters.input_bytes
        sent = command("SET", "a", "1") + command("ACL", "WHOAMI")
        await bob.send(sent)
        await eve.send(command("SET", "b", "1"))
        await world.has_read(read + len(sent) + len(command("SET", "b", "1")))
        assert not world.member.commands
        service.users.delete([b"eve"], 8)  # while it was cut off
        world.member.topology = attrs.evolve(world.member.topology, is_leader=True)
        world.member.release()
        replies = resp.OK + b"$3\r\nbob\r\n"
        world.member.parked = None
        assert await bob.receive(len(replies)) == replies
        assert await eve.rest() == b"-NOAUTH Authentication required.\r\n"  # and then the end
        await (await world.connect()).ask(command("GET", "b"), resp.NULL[0])
        assert users.settled


async def test_a_session_of_a_certificate_is_never_the_default_user(tmp_path: Path) -> None:
    async with World.opened(tmp_path / "tables", settled=False) as world:
        access, service = world.port.state.access, world.member.service
        client = ClientState(1, "", "", 0.0, 0.0, certified=b"alice")
        access.begin(client)
        assert not client.logged_in
        access.users.settle()
        access.begin(client)
        assert not client.logged_in
        service.users.set(b"alice", [b"on", b"~a", b"+get"], 7)
        access.begin(client)
        assert (client.user, client.logged_in, client.joins) == (b"alice", True, 0)
        service.users.set(b"alice", [b"off"], 8)
        access.begin(client)
        assert not client.logged_in
