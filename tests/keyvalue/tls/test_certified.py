"""Whose certificate it is: the user that it names, or nobody; and strangers without users."""

from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from quorate.keyvalue.tls.certified import certified_user
from quorate.transport import Purpose
from quorate.transport.tls import ClientCertificates
from tests.support.certificates import client_context, port_context, uri
from tests.support.client_port_world import World, command

WHO = command("ACL", "WHOAMI")
NOT_USERS = {
    "a member": uri(0, cluster="orders"),
    "a reader": uri("alice", Purpose.READER, "orders"),
    "another cluster": uri("alice", Purpose.CLIENT, "other"),
    "no user": uri("bob", Purpose.CLIENT, "orders"),
    "a disabled user": uri("carol", Purpose.CLIENT, "orders"),
}


def of(user: str, cluster: str = "orders") -> str:
    return uri(user, Purpose.CLIENT, cluster)


@pytest.mark.parametrize("clients", ["optional", "required"])
async def test_a_certificate_logs_in_the_user_that_it_names(
    tmp_path: Path, clients: ClientCertificates
) -> None:
    context = partial(port_context, 0, clients)
    async with World.opened(tmp_path / "tables", tls=context) as world:
        world.member.service.users.set(b"alice", [b"on", b"~a*", b"+get", b"+acl|whoami"], 1)
        client = await world.connect_tls(client_context(of("alice")))
        await client.ask(WHO, b"$5\r\nalice\r\n")
        await client.ask(command("GET", "abc"), b"$-1\r\n")
        await client.ask(command("RESET"), b"+RESET\r\n")
        await client.ask(WHO, b"$5\r\nalice\r\n")
        await client.send(command("GET", "xyz"))
        assert (await client.receive_until(b"\r\n")).startswith(b"-NOPERM")
        # A deleted user's session ends; its certificate is good for nothing any more.
        world.member.service.users.delete([b"alice"], 2)
        assert await client.rest() == b""
        again = await world.connect_tls(client_context(of("alice")))
        await again.send(WHO)
        assert (await again.receive_until(b"\r\n")).startswith(b"-NOAUTH The certificate names no")


@pytest.mark.parametrize("kind", NOT_USERS)
@pytest.mark.parametrize("clients", ["optional", "required"])
async def test_a_certificate_of_nobody_is_never_the_default_user(
    tmp_path: Path, kind: str, clients: ClientCertificates
) -> None:
    context = partial(port_context, 0, clients)
    async with World.opened(tmp_path / "tables", tls=context) as world:
        world.member.service.users.set(b"alice", [b"on", b"allkeys", b"allcommands"], 1)
        world.member.service.users.set(b"carol", [b"off", b"allkeys", b"allcommands"], 2)
        world.member.service.users.set(b"dora", [b"on", b"nopass", b"+@all"], 3)
        client = await world.connect_tls(client_context(NOT_USERS[kind]))
        for words in (["PING"], ["GET", "a"], ["SET", "a", "1"], ["ACL", "WHOAMI"]):
            await client.send(command(*words))
            found = await client.receive_until(b"\r\n")
            assert found.startswith(b"-NOAUTH The certificate names no enabled user: "), found
        assert world.member.commands == []
        await client.ask(command("AUTH", "dora", "x"), b"+OK\r\n")
        await client.ask(WHO, b"$4\r\ndora\r\n")


async def test_a_certificate_is_asked_for_as_configured(tmp_path: Path) -> None:
    optional, required = partial(port_context, 0, "optional"), partial(port_context, 0, "required")
    async with World.opened(tmp_path / "a", tls=port_context) as world:
        client = await world.connect_tls(client_context(of("alice")))
        await client.ask(WHO, b"$7\r\ndefault\r\n")  # it is not asked for one
    async with World.opened(tmp_path / "b", tls=optional) as world:
        client = await world.connect_tls(client_context())
        await client.ask(WHO, b"$7\r\ndefault\r\n")
        await refused(world, of("alice"), ca="other CA")
    async with World.opened(tmp_path / "c", tls=required) as world:
        await refused(world)
        await refused(world, of("alice"), ca="other CA")
        assert not world.port.state.clients
        assert world.port.state.counters.failed_handshakes == 2


async def asked(tls: trio.SSLStream[trio.SocketStream]) -> bytes | bytearray:
    with trio.fail_after(5):
        await tls.send_all(command("PING"))
        return await tls.receive_some(100)


async def refused(world: World, *uris: str, ca: str = "test CA") -> None:
    """See that a client with this certificate gets no reply, and learns why."""
    client = await world.connect_tls(client_context(*uris, ca=ca))  # the client is done first
    assert client.tls is not None
    with pytest.raises(trio.BrokenResourceError) as caught:
        await asked(client.tls)
    assert "ALERT" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("uris", "user"),
    [
        ([of("alice")], b"alice"),
        (["https://example.com", of("alice")], b"alice"),
        ([of("default")], b"default"),
    ],
)
def test_the_name_of_a_user(uris: list[str], user: bytes) -> None:
    assert certified_user(uris, "orders") == user


@pytest.mark.parametrize(
    "uris", [[], ["https://x"], [of("a"), of("b")], [of("a", "other")], [uri(1, cluster="orders")]]
)
def test_words_that_are_the_name_of_no_user(uris: list[str]) -> None:
    assert b" " in certified_user(uris, "orders")


# --- strangers ------------------------------------------------------------------------------------


def is_never_local(_host: str, _own: str) -> bool:
    return False


async def test_strangers_are_not_everybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While `default` is open, only this machine is served; everybody here is made a stranger."""
    async with World.opened(tmp_path / "tables", protected=True) as world:
        local = await world.connect()
        await local.ask(command("SET", "a", "1"), b"+OK\r\n")
        monkeypatch.setattr("quorate.keyvalue.port.listener._is_local", is_never_local)
        strange = await world.connect()
        await strange.send(command("GET", "a"))
        assert (await strange.receive_until(b"\r\n")).startswith(b"-NOAUTH There are no users yet")
        await local.ask(command("ACL", "SETUSER", "dora", "on", ">x", "+@all", "~*"), b"+OK\r\n")
        await strange.ask(command("AUTH", "dora", "x"), b"+OK\r\n")
        await strange.ask(command("GET", "a"), b"$1\r\n1\r\n")


async def test_nobody_is_a_stranger_at_a_port_that_is_not_protected(world: World) -> None:
    client = await world.connect()
    await client.ask(command("SET", "a", "1"), b"+OK\r\n")
    assert not next(iter(world.port.state.clients.values())).client.remote


# --- the topology ---------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [True, False])
async def test_clients_see_ports_of_their_kind(tmp_path: Path, plain: bool) -> None:  # noqa: FBT001
    opened = World.opened(tmp_path / "tables", tls=port_context, plain=plain, redirect_port=0)
    async with opened as world:
        members = tuple(
            attrs.evolve(
                one,
                tls_port=8000 + one.member_id,
                client_port=one.client_port if plain else 0,
                redirect_port=9000 + one.member_id,
            )
            for one in world.member.topology.members
        )
        no_tls = attrs.evolve(members[2], tls_port=0, client_port=7002)
        world.member.topology = attrs.evolve(world.member.topology, members=(*members[:2], no_tls))
        client = await world.connect_tls(client_context(), redirected=not plain)
        await client.send(command("CLUSTER", "NODES") + command("PING"))
        nodes = await client.receive_until(b"+PONG\r\n")
        first = 8000 if plain else 9000
        assert all(b":%d@" % (first + n) in nodes for n in range(2))
        assert b"10.0.0.3" not in nodes
        world.member.follow(1)
        await client.ask(command("SET", "a", "1"), b"-MOVED 15495 10.0.0.2:%d\r\n" % (first + 1))
        world.member.follow(2)  # which has no port for it
        await client.ask(command("SET", "a", "1"), b"+OK\r\n")
        if plain:
            other = await world.connect()
            await other.send(command("CLUSTER", "NODES") + command("PING"))
            nodes = await other.receive_until(b"+PONG\r\n")
            assert all(b":%d@" % (9000 + n) in nodes for n in range(3))
