"""Clients of other machines at a port whose clients log in; here each new one is made one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quorate.errors import NoLeaderError, OversizedRequestError
from quorate.keyvalue.access.directory import Directory
from quorate.keyvalue.access.users import Users
from quorate.keyvalue.clients.client_state import ClientState
from quorate.keyvalue.clients.port_access import PortAccess
from quorate.keyvalue.clients.port_audit import PortAudit
from quorate.keyvalue.port import listener
from quorate.keyvalue.protocol import resp
from quorate.node.requests.request import Request, RequestKind
from tests.support.client_port_world import RawClient, World, command
from tests.support.logged import events

NOAUTH = b"-NOAUTH Authentication required.\r\n"
WRONG = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
NONE_YET = (
    b"-NOAUTH There are no users yet, and this client is on another machine: create users "
    b"(ACL SETUSER) on the machine of a member\r\n"
)
SHA_OF_X = b"#2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"


def line(text: str) -> bytes:
    return command(*text.split())


def is_never_local(_host: str, _own: str) -> bool:
    return False


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World.opened(tmp_path / "tables", protected=True) as opened:
        yield opened


@pytest.fixture
async def local(world: World, monkeypatch: pytest.MonkeyPatch) -> RawClient:
    """A client of this machine; those that connect later are on another one."""
    client = await world.connect()
    await client.ask(line("PING"), resp.PONG)
    monkeypatch.setattr(listener, "_is_local", is_never_local)
    return client


@pytest.mark.parametrize(
    "change", ["-@dangerous", "+@all", ">secret nopass", "resetkeys ~a", "reset on nopass +@all ~*"]
)
async def test_no_change_of_the_default_user_lets_strangers_in(
    world: World, local: RawClient, change: str
) -> None:
    stranger = await world.connect()
    await stranger.ask(line("GET a"), NONE_YET)
    await local.ask(line(f"ACL SETUSER default {change}"), resp.OK)
    for client in (stranger, await world.connect()):
        for text in ("GET a", "SET a 1", "INFO", "ACL WHOAMI"):
            await client.send(line(text))
            assert (await client.receive_until(b"\r\n")).startswith(b"-NOAUTH ")
    await local.ask(line("GET a"), resp.NULL[0])


async def test_a_user_without_a_password_is_for_this_machine(
    world: World, local: RawClient
) -> None:
    await local.ask(line("ACL SETUSER bob on nopass ~* +@all"), resp.OK)
    await local.ask(line(f"ACL SETUSER eve on {SHA_OF_X.decode()} ~* +@all"), resp.OK)
    stranger, known = await world.connect(), await world.connect()
    await known.ask(line("AUTH eve x"), resp.OK)
    await local.ask(line("ACL SETUSER default off"), resp.OK)
    await stranger.ask(line("AUTH bob x") + line("GET a"), WRONG + NOAUTH)
    # Somebody who had a password has none any more.
    await known.ask(line("GET a"), resp.NULL[0])
    await known.ask(line("ACL SETUSER eve nopass"), resp.OK)
    await known.ask(line("GET a"), NOAUTH)


async def test_a_refused_login_is_no_login_for_the_audit(world: World, local: RawClient) -> None:
    events: list[str] = []

    class Noted:
        def note(self, event: str, /, *, of: str = "", **facts: object) -> None:
            events.append(f"{event} {facts['user']}")

    world.port.state.access.audit = PortAudit(Noted())
    stranger = await world.connect()
    await stranger.ask(line("AUTH default x"), NONE_YET)
    await stranger.ask(line("HELLO 3 AUTH default x"), NONE_YET)
    await local.ask(line("AUTH default x"), resp.OK)
    assert events == ["login_failed default", "login_failed default", "login default"]


# --- while the users are unknown


@pytest.mark.parametrize("users", [False, True])
async def test_a_stranger_is_one_without_a_leader_too(
    world: World, local: RawClient, *, users: bool
) -> None:
    if users:
        world.member.service.users.set(b"default", [b"-@dangerous"], 7)
    world.member.error = NoLeaderError()
    world.port.state.access.users.forget()
    stranger = await world.connect()
    for text in ("INFO server", "CONFIG GET *", "CLUSTER NODES", "QUORATE.STATUS", "PING", "GET a"):
        await stranger.ask(line(text), NOAUTH)
    assert world.port.state.strangers.end_overdue(1e9) == 1
    assert await stranger.rest() == b""
    large = await world.connect()
    await large.send(b"*2\r\n$4\r\nECHO\r\n$20971520\r\n")
    assert (await large.rest()).startswith(b"-ERR Protocol error: unauthenticated bulk length")
    await local.ask(line("PING"), resp.PONG)
    await local.ask(command("ECHO", b"x" * 100_000), resp.bulk(b"x" * 100_000))


async def test_a_login_waits_until_the_users_are_known(world: World, local: RawClient) -> None:
    await local.ask(line(f"ACL SETUSER eve on {SHA_OF_X.decode()} ~* +@all"), resp.OK)
    world.port.state.access.users.forget()
    world.member.parked = []
    stranger = await world.connect()
    await stranger.send(line("AUTH eve x") + line("GET a"))
    await world.until(lambda: world.member.parked)
    world.member.release()
    replies = resp.OK + resp.NULL[0]
    assert await stranger.receive(len(replies)) == replies


async def test_a_transaction_is_not_taken_apart_if_a_leader_is_found_in_its_middle(
    world: World, local: RawClient
) -> None:
    world.port.state.access.users.forget()
    world.member.error = NoLeaderError()
    await local.ask(line("MULTI"), resp.OK)
    await local.send(line("SET a 1"))
    assert (await local.receive_until(b"\r\n")).startswith(b"-CLUSTERDOWN ")
    world.member.error = None
    await local.ask(line("SET a 2"), resp.QUEUED)
    await local.send(line("EXEC"))
    assert (await local.receive_until(b"\r\n")).startswith(b"-EXECABORT ")
    await local.ask(line("GET a"), resp.NULL[0])


async def test_a_client_lets_go_of_what_it_watches_without_a_leader(
    world: World, local: RawClient
) -> None:
    await local.ask(line("SET a 0") + line("WATCH a"), resp.OK * 2)
    world.port.state.access.users.forget()
    world.member.error = NoLeaderError()
    await local.ask(line("UNWATCH"), resp.OK)
    await local.ask(line("QUORATE.UNWATCH 7"), resp.ZERO)
    world.member.error = None
    await local.ask(line("SET a 1") + line("GET a"), resp.OK + resp.bulk(b"1"))
    sent = line("MULTI") + line("SET a 2") + line("EXEC")
    await local.ask(sent, resp.OK + resp.QUEUED + b"*1\r\n" + resp.OK)


async def test_a_client_that_is_refused_while_it_waits_for_the_users_gets_one_error(
    world: World, local: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    world.port.state.access.users.forget()
    world.member.parked = []
    await local.send(line("GET a") + line("GET b"))
    await world.until(lambda: world.member.parked)
    (connection,) = world.port.state.clients.values()
    connection.refuse(OversizedRequestError("too much"))
    world.member.error, parked = NoLeaderError(), world.member.parked or []
    for request in [*parked]:
        request.done(world.member.error)
    assert await local.rest() == b"-ERR too much\r\n"
    assert not events(caplog, "client_closed")


@pytest.mark.parametrize("end", ["EXEC", "QUORATE.ONCE 1 1 EXEC"])
async def test_an_exec_without_a_leader_ends_the_transaction_and_the_watch(
    world: World, local: RawClient, end: str
) -> None:
    await local.ask(line("SET a 0") + line("WATCH a"), resp.OK * 2)
    world.port.state.access.users.forget()
    world.member.error = NoLeaderError()
    await local.ask(line("MULTI"), resp.OK)
    await local.send(line(end))
    assert (await local.receive_until(b"\r\n")).startswith(b"-CLUSTERDOWN ")
    world.member.error = None
    await local.ask(line("SET a 1") + line("GET a"), resp.OK + resp.bulk(b"1"))
    sent = line("MULTI") + line("SET a 2") + line("EXEC")  # a is not watched any more
    await local.ask(sent, resp.OK + resp.QUEUED + b"*1\r\n" + resp.OK)


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_only_this_machine_founds_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    reached: list[bytes] = []

    def submit(request: Request) -> None:
        if request.kind is RequestKind.CONTROL:
            reached.append(request.payload)
            request.done(b"founded")
        else:
            request.done(NoLeaderError())

    if where == "elsewhere":
        monkeypatch.setattr(listener, "_is_local", is_never_local)
    opened = World.opened(tmp_path / "tables", settled=False, protected=True)
    async with opened as world:
        vars(world.member)["submit"] = submit
        client = await world.connect()
        if where == "here":
            await client.ask(line("QUORATE.CONTROL found 2"), b"+founded\r\n")
        else:
            await client.ask(line("QUORATE.CONTROL found 2"), NOAUTH)
        await client.send(line("QUORATE.CONTROL shutdown"))
        reply = await client.receive_until(b"\r\n")
        assert reply.startswith(b"-CLUSTERDOWN " if where == "here" else b"-NOAUTH ")
    assert reached == [b"found 2"] * (where == "here")


@pytest.mark.parametrize(
    ("certified", "remote", "may"),
    [
        (b"", False, True),
        (b"", True, False),
        (b"default", True, True),
        (b"alice", True, False),
        (b"alice", False, True),
    ],
)
def test_who_may_found_a_cluster(certified: bytes, *, remote: bool, may: bool) -> None:
    access = PortAccess(Directory(Users(), settled=False))
    client = ClientState(1, "", "", 0.0, 0.0, certified=certified, remote=remote)
    access.begin(client)
    assert access.may_found(client) is may
    access.users.settle()
    assert not access.may_found(client)


@pytest.mark.parametrize("free", [False, True])
def test_limits_hold_for_those_that_needed_a_password_when_the_users_were_known(
    *, free: bool
) -> None:
    users = Users()
    access = PortAccess(Directory(users))
    if not free:
        users.set(b"default", [SHA_OF_X], 3)
    access.users.forget()
    client = ClientState(1, "", "", 0.0, 0.0)
    access.begin(client)
    assert client.logged_in is free
    assert not client.access.open
    access.users.settle()
    assert access.revise([]) == []
    access.begin(client)
    assert (client.logged_in, client.access.open) == (free, free)
