"""Who did it: the numbers of users, and that each write carries the one of its client."""

import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from quorate.keyvalue.access import principals
from quorate.keyvalue.access.directory import Directory
from quorate.keyvalue.access.principals import Names, shown
from quorate.keyvalue.access.users import Users
from quorate.keyvalue.clients.port_access import PortAccess
from quorate.keyvalue.clients.port_state import ClientPortLimits, PortState
from quorate.keyvalue.port.leader_users import follow_users
from quorate.keyvalue.protocol import resp
from quorate.node.requests.request import still_wanted
from tests.keyvalue.access.test_users import Memory
from tests.support.client_port_world import RawClient, World, command

ALICE, BOB = 1, 2
RESET = struct.pack("ii", 1, 0)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World.opened(tmp_path / "tables") as opened:
        for name in ("alice", "bob"):
            client = await opened.connect()
            await ask(client, f"ACL SETUSER {name} on nopass ~* +@all", resp.OK)
        opened.member.principals.clear()
        opened.member.commands.clear()
        yield opened


async def ask(client: RawClient, text: str, reply: bytes) -> None:
    await client.ask(command(*text.split()), reply)


async def client_of(world: World, name: str) -> RawClient:
    client = await world.connect()
    if name:
        await ask(client, f"AUTH {name} x", resp.OK)
    return client


# --- numbers


def test_a_name_keeps_its_number_and_no_other_name_gets_it() -> None:
    memory = Memory()
    users = Users(memory)

    def number(name: bytes) -> int:
        user = users.get(name)
        assert user is not None
        return user.number

    users.set(b"alice", [], 1)
    users.set(b"bob", [], 2)
    users.set(b"default", [b"off"], 3)
    assert (number(b"alice"), number(b"bob"), number(b"default")) == (1, 2, 0)
    users.set(b"alice", [b"reset", b"on"], 4)
    assert number(b"alice") == 1
    users.delete([b"alice", b"bob"], 5)
    users.set(b"carol", [], 6)
    users.set(b"alice", [], 7)
    assert (number(b"carol"), number(b"alice")) == (3, 1)
    # entries of deleted users can be read, and so they can after a restart
    for each in (users, Users(memory)):
        assert dict(each.names) == {1: b"alice", 2: b"bob", 3: b"carol"}
        assert each.get(b"alice") == users.get(b"alice")


def test_the_oldest_name_without_a_user_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(principals, "MAX_NAMES", 3)
    memory = Memory()
    users = Users(memory)
    for at, name in enumerate((b"a", b"b", b"c", b"d", b"e")):
        users.set(name, [], at)
        users.delete([name] if name != b"a" else [], at)
    assert dict(users.names) == dict(Names(memory.rows)) == {1: b"a", 4: b"d", 5: b"e"}
    users.set(b"b", [], 9)  # its old number is gone: a new one
    assert dict(users.names) == dict(Names(memory.rows)) == {1: b"a", 5: b"e", 6: b"b"}


def test_how_a_principal_is_shown() -> None:
    assert [shown(0, None), shown(7, None), shown(7, b"al\xffice")] == ["", "#7", "al\\xffice"]


async def test_a_member_that_borrows_the_users_borrows_their_numbers(world: World) -> None:
    users = Directory(settled=False)
    port = PortState(world.member, ClientPortLimits(), access=PortAccess(users, spread_s=2.0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow_users, port)
        await world.until(lambda: users.known)
        nursery.cancel_scope.cancel()
    found = {name: access.user.number for name in users if (access := users.access(name))}
    assert found == {b"alice": ALICE, b"bob": BOB, b"default": 0}


# --- the client port


async def test_the_sets_of_one_turn_are_joined_by_user(world: World) -> None:
    names = {"alice": ALICE, "bob": BOB, "": 0}
    clients = [(name, await client_of(world, name)) for name in [*names] * 2]
    for at, (name, client) in enumerate(clients):
        client.send_at_once(command("SET", f"{name}{at}", "v"))
    for _, client in clients:
        assert await client.receive(len(resp.OK)) == resp.OK
    member = world.member
    for principal, payload in zip(member.principals, member.commands, strict=True):
        others = [name for name, number in names.items() if number != principal and name]
        assert not any(name.encode() in payload for name in others)
    assert sum(payload.count(b"SET") for payload in member.commands) == len(clients)
    assert {*member.principals} == {*names.values()}


@pytest.mark.parametrize(
    "text",
    [
        "SET k v",
        "INCR n",
        "SET k v|APPEND k w|GET k",
        "MULTI|SET k v|EXEC",
        "WATCH k|MULTI|SET k v|EXEC",
        "QUORATE.SESSION OPEN 1000",
        "ACL SETUSER carol",
        "ACL SETUSER carol >secret",
        "ACL DELUSER bob",
        "ACL DELUSER alice",  # itself
    ],
)
async def test_each_write_carries_the_user_of_its_client(world: World, text: str) -> None:
    client = await client_of(world, "alice")
    await client.send(b"".join(command(*each.split()) for each in text.split("|")))
    await client.send(command("QUIT"))
    await client.rest()
    assert world.member.principals
    assert set(world.member.principals) == {ALICE}


async def test_a_parked_write_stays_that_of_its_sender(world: World) -> None:
    member = world.member
    clients = [await client_of(world, name) for name in ("alice", "bob", "alice")]
    member.parked = []
    for at, client in enumerate(clients):
        client.send_at_once(command("SET", f"k{at}", "v"))
    await world.until(lambda: sum(each.payload.count(b"SET") for each in member.parked or ()) == 3)
    # A reset: if its SET was joined, that request is split.
    clients[0].stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    clients[0].stream.socket.close()
    await world.until(lambda: len(world.port.state.clients) == len(world.connected) - 1)
    parked, member.parked = member.parked, None
    for request in still_wanted(parked):
        member.answer(request)
    for client in clients[1:]:
        assert await client.receive(len(resp.OK)) == resp.OK
    found = dict(zip(member.commands, member.principals, strict=True))
    assert found == {command("SET", "k1", "v"): BOB, command("SET", "k2", "v"): ALICE}


async def test_a_login_as_another_user_changes_what_follows(world: World) -> None:
    client = await client_of(world, "alice")
    await ask(client, "SET a 1", resp.OK)
    await ask(client, "AUTH bob x", resp.OK)
    await ask(client, "SET b 1", resp.OK)
    await ask(client, "RESET", b"+RESET\r\n")
    await ask(client, "SET c 1", resp.OK)
    assert world.member.principals == [ALICE, BOB, 0]


async def test_an_election_does_not_change_who_a_client_is(world: World) -> None:
    client = await client_of(world, "alice")
    access = world.port.state.access
    access.users.forget()
    await ask(client, "PING", b"+PONG\r\n")
    (state,) = (each.client for each in world.port.state.clients.values() if each.client.principal)
    assert state.principal == ALICE
    access.users.settle()
    await ask(client, "SET a 1", resp.OK)
    assert world.member.principals == [ALICE]
