"""Requests that wait while the rules of their user change, and members that may not know of it."""

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest

from quorate.errors import NoLeaderError
from quorate.keyvalue.protocol import resp
from tests.support.client_port_world import RawClient, World, command

NOAUTH = b"-NOAUTH Authentication required.\r\n"


def no_command(name: str) -> bytes:
    return f"-NOPERM this user has no permissions to run the '{name}' command\r\n".encode()


def line(text: str) -> bytes:
    return command(*text.split())


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World.opened(tmp_path / "tables") as opened:
        yield opened


async def bob_of(world: World, rules: str = "on nopass ~* +@all") -> RawClient:
    world.member.service.users.set(b"bob", rules.encode().split(), 1)
    client = await world.connect()
    await client.ask(line("AUTH bob x"), resp.OK)
    return client


async def park(world: World, client: RawClient, *lines: str) -> None:
    """Send commands of which the last one waits for a leader."""
    world.member.parked = []
    for text in lines[:-1]:
        await client.ask(line(text), resp.OK if text == "MULTI" else resp.QUEUED)
    await client.send(line(lines[-1]))
    await world.until(lambda: world.member.parked)


def change(world: World, *words: bytes) -> None:
    """Change bob as the log would."""
    world.member.service.users.set(b"bob", words, 2)


@pytest.mark.parametrize(
    ("lines", "rules", "reply"),
    [
        (["SET a 1"], "-set", no_command("set")),
        (["GETDEL a"], "-@write", no_command("getdel")),
        (["GET a"], "-get", no_command("get")),
        (["SET a 1"], "off", NOAUTH),
        (["SET a 1"], "resetpass", NOAUTH),
        (["MULTI", "SET a 1", "GET a", "EXEC"], "-get", no_command("get")),
        (["WATCH a"], "resetkeys", b"-NOPERM this user has no permissions to access one of"),
        (["ACL SETUSER eve on"], "-acl", no_command("acl|setuser")),
        (["QUORATE.ONCE 7 1 SET a 1"], "-quorate.once", no_command("quorate.once")),
        (["QUORATE.CONTROL snapshot"], "-quorate.control", no_command("quorate.control")),
        (["WAIT 9 0"], "-wait", no_command("wait")),
        (["SET a 1"], "resetkeys ~b", b"-NOPERM this user has no permissions to access one of"),
    ],
)
async def test_a_request_that_waits_is_held_to_the_new_rules(
    world: World, lines: list[str], rules: str, reply: bytes
) -> None:
    bob = await bob_of(world)
    await park(world, bob, *lines)
    before = len(world.member.commands), len(world.member.queries)
    change(world, *rules.encode().split())
    world.member.release()
    assert (await bob.receive_until(b"\r\n")).startswith(reply)
    assert (len(world.member.commands), len(world.member.queries)) == before
    await bob.ask(line("HELLO 9"), b"-NOPROTO unsupported protocol version\r\n")  # all in order


@pytest.mark.parametrize(
    ("rules", "reply"),
    [
        ("-get", no_command("get")),
        ("-quorate.request", no_command("quorate.request")),
        ("resetkeys ~b", b"-NOPERM this user has no permissions to access one of"),
        ("-quorate.once", resp.bulk(b"*1\r\n$-1\r\n")),
    ],
)
async def test_a_whole_request_that_waits_is_held_to_the_new_rules(
    world: World, rules: str, reply: bytes
) -> None:
    bob = await bob_of(world)
    await bob.ask(line("QUORATE.SESSION OPEN"), resp.ONE)
    world.member.parked = []
    payload = line("WATCH a 0") + line("GET b")
    await bob.send(resp.pack((b"QUORATE.REQUEST", b"1", b"1", b"2", payload)))
    await world.until(lambda: world.member.parked)
    change(world, *rules.encode().split())
    world.member.release()
    assert (await bob.receive_until(reply[-9:] if reply[:1] == b"$" else b"\r\n")).startswith(reply)


async def test_a_request_that_is_still_allowed_is_sent(world: World) -> None:
    bob = await bob_of(world)
    await park(world, bob, "WATCH a")
    change(world, b"-set")
    world.member.release()
    assert await bob.receive(5) == resp.OK
    await park(world, bob, "MULTI", "GET a", "INCR b", "EXEC")
    change(world, b"-del")
    world.member.release()
    assert await bob.receive(13) == b"*2\r\n$-1\r\n:1\r\n"


async def test_joined_requests_are_taken_apart(world: World) -> None:
    bob, root = await bob_of(world), await world.connect()
    await root.ask(line("PING"), resp.PONG)
    world.member.parked = []
    read = world.port.state.counters.input_bytes
    for client, key in ((root, "a"), (bob, "b"), (root, "c")):
        await client.send(line(f"SET {key} 1"))
    await world.has_read(read + 2 * len(line("SET a 1")))
    change(world, b"-set")
    world.member.release()
    assert await bob.receive_until(b"\r\n") == no_command("set")
    await root.receive(10)
    stored = b"".join(world.member.commands)
    assert (stored.count(b"SET"), stored.count(b"\r\nb\r\n")) == (2, 0)


async def test_a_request_waits_until_the_users_are_known_again(world: World) -> None:
    bob = await bob_of(world)
    await park(world, bob, "SET a 1")
    world.member.follow(2)  # of which this member hears nothing
    users = world.port.state.access.users
    await world.until(lambda: not users.known)
    world.member.topology = attrs.evolve(world.member.topology, is_leader=True)
    world.member.release()
    assert await bob.receive(5) == resp.OK
    assert users.known


async def test_a_request_fails_if_nobody_can_say_whether_it_is_allowed(world: World) -> None:
    bob = await bob_of(world)
    await park(world, bob, "SET a 1")
    users = world.port.state.access.users
    await world.until(lambda: not users.known)
    own = [each for each in world.member.parked or () if b"SET" in each.payload]
    world.member.error, world.member.parked = NoLeaderError(), None
    world.member.parked = own
    world.member.release()
    reply = await bob.receive_until(b"\r\n")
    assert reply == b"-CLUSTERDOWN no leader was found in time; nothing was done\r\n"
    assert not world.member.commands


async def test_a_client_that_leaves_takes_its_request_along(world: World) -> None:
    bob = await bob_of(world)
    await park(world, bob, "SET a 1")
    change(world, b"-set")
    bob.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    bob.stream.socket.close()  # a reset
    await world.until(lambda: not world.port.state.clients)
    world.member.release()
    assert not world.member.commands


async def test_an_administrator_that_is_removed_while_it_hashes_changes_nothing(
    world: World,
) -> None:
    bob = await bob_of(world)
    await bob.send(line("ACL SETUSER eve on >secret"))
    await world.until(
        lambda: [each.client.changes_users for each in world.port.state.clients.values()]
    )
    change(world, b"-acl")
    assert await bob.receive_until(b"\r\n") == no_command("acl|setuser")
    assert world.member.service.users.get(b"eve") is None
