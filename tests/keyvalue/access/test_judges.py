"""A program that judges clients by itself, in place of the users' passwords and rules."""

import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import attrs
import pytest
import trio

import quorate
from quorate.keyvalue.access.directory import Directory
from quorate.keyvalue.access.judges import JUDGED, ClientSecurity
from quorate.keyvalue.access.users import Users
from quorate.keyvalue.clients.client_state import ClientState
from quorate.keyvalue.clients.port_access import PortAccess
from quorate.keyvalue.protocol import resp
from quorate.local.cluster import local_configs
from tests.support.client_port_world import RawClient, command

DOCUMENT = (Path(__file__).parents[3] / "docs" / "embedding.md").read_text()
WRONG = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"


def no_command(name: str) -> bytes:
    return f"-NOPERM this user has no permissions to run the '{name}' command\r\n".encode()


def line(text: str) -> bytes:
    return command(*text.split())


@attrs.define
class Shown:
    """What the document's example knows."""

    day: bool = True

    def clients(self) -> ClientSecurity:
        (code,) = [
            each
            for each in re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
            if "ClientSecurity" in each
        ]
        known = {"admin": b"root", "bob": b"secret"}
        names: dict[str, object] = {
            "quorate": quorate,
            "known": known,
            "by_day": lambda: self.day,
            "Sequence": Sequence,
        }
        exec(compile(code, "embedding.md", "exec", dont_inherit=True), names)
        made = names["clients"]
        assert isinstance(made, ClientSecurity)
        return made


@attrs.frozen
class Example:
    """The document's example at work, and two of its clients."""

    shown: Shown
    node: quorate.Node
    first: RawClient
    second: RawClient


@pytest.fixture
async def example(tmp_path: Path) -> AsyncIterator[Example]:
    shown = Shown()
    (config,) = local_configs(1, tmp_path)
    async with quorate.open_node(config, clients=shown.clients()) as node:
        await node.wait_for_leader()
        assert node.client_address is not None
        streams = [await trio.open_tcp_stream(*node.client_address) for _ in range(2)]
        first, second = map(RawClient, streams)
        yield Example(shown, node, first, second)
        for stream in streams:
            await stream.aclose()


async def test_the_example_of_the_document(example: Example) -> None:
    shown, first, second = example.shown, example.first, example.second
    await first.ask(line("AUTH bob secret"), WRONG)  # no user of the cluster
    for name in ("bob", "admin"):
        assert await example.node.kv.execute("ACL", "SETUSER", name, "on") == b"OK"
    await first.ask(line("AUTH admin root"), resp.OK)
    await second.ask(line("AUTH bob wrong"), WRONG)
    await second.ask(line("AUTH bob secret"), resp.OK)
    await second.ask(line("SET a 1") + line("GET a"), resp.OK + b"$1\r\n1\r\n")
    shown.day = False
    await second.ask(line("SET a 2") + line("GET a"), no_command("set") + b"$1\r\n1\r\n")
    transaction = line("MULTI") + line("GET a")
    await second.ask(transaction, no_command("multi") + b"$1\r\n1\r\n")
    await first.ask(line("SET a 2"), resp.OK)
    await first.ask(line("ACL DELUSER bob"), resp.ONE)
    assert await second.rest() == b""


async def test_nobody_comes_in_without_being_judged(example: Example) -> None:
    """The user `default` needs no password, and is not one that the program knows."""
    first = example.first
    for text in ("SET k v", "FLUSHALL", "ACL WHOAMI", "INFO"):
        await first.ask(line(text), b"-NOAUTH Authentication required.\r\n")
    await first.ask(line("AUTH default x") + line("AUTH x"), WRONG * 2)
    await example.node.kv.execute("ACL", "SETUSER", "eve", "on", "nopass", "+@all")
    await first.ask(line("AUTH eve x"), WRONG)


async def test_a_port_may_be_open_if_each_login_is_judged(tmp_path: Path) -> None:
    (config,) = local_configs(1, tmp_path)
    config = attrs.evolve(config, client_listen_host="0.0.0.0")
    both = Shown().clients()
    for clients in (None, attrs.evolve(both, authenticator=None)):
        with pytest.raises(quorate.ConfigurationError, match="client_listen_host"):
            async with quorate.open_node(config, clients=clients):
                pytest.fail("it must not open")
    async with quorate.open_node(config, clients=both) as node:
        await node.wait_for_leader()


async def test_a_judged_client_asks_nothing_while_the_users_are_unknown() -> None:
    access = PortAccess(
        Directory(Users(), settled=False), authenticator=Shown().clients().authenticator
    )
    client = ClientState(1, "", "", 0.0, 0.0)
    access.begin(client)
    assert not client.logged_in
    assert access.is_stranger(client)
    assert not access.may_found(client)


def test_what_is_left_out_stays_with_the_users() -> None:
    class Nobody:
        def allows(self, principal: str, command: Sequence[bytes]) -> bool:
            return False

    users = Users()
    users.set(b"bob", [b"on", b"nopass"], 1)
    access = PortAccess(Directory(users, authoriser=Nobody()))
    client = ClientState(1, "", "", 0.0, 0.0)
    access.begin(client)
    assert (client.access.open, client.joins) == (False, 0)
    assert access.logins.check(b"bob", b"x") == b"nopass"
    assert access.logins.check(b"eve", b"x") != JUDGED
    # By the passwords alone, nobody has this proof.
    assert not access.logins.holds(b"default", JUDGED) or client.access.user.nopass


def test_a_judged_session_ends_with_its_user() -> None:
    class Everybody:
        def login(self, user: str, secret: bytes) -> bool:
            return bool(user and secret)

    users = Users()
    users.set(b"bob", [b"on"], 1)
    access = PortAccess(Directory(users), authenticator=Everybody())
    client = ClientState(1, "", "", 0.0, 0.0)
    pending = access.logins.check(b"bob", b"x")
    assert pending is not None
    assert not isinstance(pending, bytes)
    proof = pending.work()
    assert proof == JUDGED
    assert access.lets_in(client, b"bob", proof)
    access.log_in(client, b"bob", proof)
    assert client.logged_in
    users.set(b"bob", [b"off"], 2)
    access.log_in(client, b"bob", proof)
    assert not client.logged_in
