"""What clients do that is in the audit log, and that no secret is."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from quorate.errors import NoLeaderError
from quorate.keyvalue.access.compiled import Access, Denial, Reason
from quorate.keyvalue.access.hashing import hash_secret
from quorate.keyvalue.access.rules import NOBODY
from quorate.keyvalue.clients.client_state import ClientState
from quorate.keyvalue.clients.port_audit import PortAudit
from quorate.keyvalue.protocol import resp
from quorate.node.upkeep.audit import AuditLog
from quorate.transport import Purpose
from tests.support.certificates import client_context, port_context, uri
from tests.support.client_port_world import RawClient, World, command

SECRET = "hunter2-is-secret"
Event = tuple[str, dict[str, object]]


@attrs.define
class Noted:
    """An audit log in memory."""

    events: list[Event] = attrs.field(factory=list[Event])

    def note(self, event: str, /, *, of: str = "", **facts: object) -> None:
        self.events.append((event, {"of": of, **facts} if of else facts))

    def take(self) -> list[Event]:
        """Return the events without addresses and clients, which differ each time."""
        taken, self.events = self.events, []
        for _, facts in taken:
            assert str(facts.pop("address")).startswith("127.0.0.1:")
            assert isinstance(facts.pop("client"), int)
            assert "127.0.0.1" in str(facts.pop("of", "127.0.0.1"))
        return taken


class Inline:
    """A lane without a thread."""

    async def read(self, fn: Callable[[], int]) -> int:
        await trio.lowlevel.checkpoint()
        return fn()


@pytest.fixture
async def noted(tmp_path: Path) -> AsyncIterator[tuple[World, Noted]]:
    async with World.opened(tmp_path / "tables") as opened:
        found = Noted()
        opened.port.state.access.audit = PortAudit(found)
        yield opened, found


async def ask(client: RawClient, text: str) -> bytes:
    await client.send(command(*text.split()))
    return await client.receive_some(1 << 16)


async def test_logins_and_denials(noted: tuple[World, Noted]) -> None:
    world, audit = noted
    client = await world.connect()
    await ask(client, f"ACL SETUSER alice on >{SECRET} ~a* +get")
    audit.take()
    assert await ask(client, f"AUTH alice {SECRET}") == resp.OK
    assert await ask(client, f"AUTH alice {SECRET}") == resp.OK  # remembered
    login = {"user": "alice", "by": "password"}
    assert audit.take() == [("login", login)] * 2
    await ask(client, f"AUTH alice wrong-{SECRET}")
    await ask(client, f"AUTH {SECRET} alice")  # in the wrong order
    assert audit.take() == [("login_failed", {"user": "alice"}), ("login_failed", {"user": ""})]
    for _ in range(3):  # within a minute, the same again is not noted
        await ask(client, f"SET a {SECRET}")
        await ask(client, f"GET {SECRET}")
    denied = [("command", "set"), ("key", "get")]
    assert audit.take() == [
        ("denied", {"user": "alice", "reason": reason, "command": name}) for reason, name in denied
    ]
    other = await world.connect()
    assert (await ask(other, "HELLO 3 AUTH default x")).startswith(b"%")
    assert audit.take() == [("login", {"user": "default", "by": "no password"})]


async def test_no_user_pushes_out_the_events_of_others(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    log = AuditLog(tmp_path / "audit.jsonl", 0, lambda: 0, lane=Inline())  # type: ignore[arg-type]
    audit = PortAudit(log)
    low, other = [
        ClientState(number, f"10.0.0.{number}:999", "", 0.0, 0.0, access=Access(b"low", NOBODY))
        for number in (1, 2)
    ]
    boss = ClientState(3, "10.0.0.1:998", "", 0.0, 0.0, access=Access(b"boss", NOBODY))
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        for _ in range(1000):
            audit.login(low, "password")
            audit.login_failed(low, b"x", known=False)
        for client in (other, boss):
            audit.login(client, "password")
            audit.denied(client, Denial(Reason.COMMAND, b"get"))
        audit.denied(low, Denial(Reason.COMMAND, b"get"))  # not hidden by its logins
        await trio.sleep(1.1)
        audit.login(low, "password")
        await trio.sleep(1.1)
        nursery.cancel_scope.cancel()
    lines = [json.loads(text) for text in (tmp_path / "audit.jsonl").read_text().splitlines()]
    counts = Counter((each["event"], each.get("user"), each["client"]) for each in lines)
    assert counts == {
        ("login", "low", 1): 11,
        ("login_failed", "", 1): 10,
        ("login", "low", 2): 1,
        ("denied", "low", 2): 1,
        ("login", "boss", 3): 1,
        ("denied", "boss", 3): 1,
        ("denied", "low", 1): 1,
    }
    assert lines[-1]["left_out"] == 990


async def test_changes_of_users_without_their_secrets(noted: tuple[World, Noted]) -> None:
    world, audit = noted
    client = await world.connect()
    slow = hash_secret(SECRET.encode(), b"s" * 16).decode()
    text = f"ACL SETUSER bob on >{SECRET} {slow} #{'a' * 64} ~{'k' * 3}* %R~r* +@all -keys reset"
    assert await ask(client, text) == resp.OK
    rules = ["on", ">...", "$...", "#...", "~kkk*", "%R~r*", "+@all", "-keys", "reset"]
    facts = {"user": "default", "command": "setuser", "users": ["bob"], "rules": rules}
    assert audit.take() == [
        ("users_change", facts),
        ("users_change_done", facts | {"outcome": "ok"}),
    ]
    # a password without its sign, or with a wrong one, is no rule
    for word in (SECRET, f"+{SECRET}", f"!{SECRET}", f"<{SECRET}", f"({SECRET})"):
        assert (await ask(client, f"ACL SETUSER bob {word}")).startswith(b"-ERR")
        (_, begun), (event, done) = audit.take()
        assert (event, done["outcome"]) == ("users_change_done", "ERR")
        assert SECRET not in str((begun, done))
    await ask(client, "ACL DELUSER bob nobody")
    facts = {"user": "default", "command": "deluser", "users": ["bob", "nobody"], "rules": []}
    assert audit.take() == [
        ("users_change", facts),
        ("users_change_done", facts | {"outcome": "ok"}),
    ]


async def test_a_change_of_its_own_user_is_noted_as_that_of_the_user(
    noted: tuple[World, Noted],
) -> None:
    world, audit = noted
    client = await world.connect()
    await ask(client, "ACL SETUSER alice on nopass ~* +@all")
    await ask(client, "AUTH alice x")
    audit.take()
    await ask(client, "ACL DELUSER alice")
    assert [facts["user"] for _, facts in audit.take()] == ["alice", "alice"]


async def test_what_operators_do(noted: tuple[World, Noted]) -> None:
    world, audit = noted
    client = await world.connect()
    world.member.parked = []
    await client.send(command("QUORATE.CONTROL", "transfer", "2"))
    await world.until(lambda: world.member.parked)
    facts = {"user": "default", "words": "transfer 2"}
    assert audit.take() == [("operator", facts)]
    (request,), world.member.parked = world.member.parked, None
    request.done(NoLeaderError("nobody"))
    assert (await client.receive_some(1000)).startswith(b"-")
    ((event, done),) = audit.take()
    assert event == "operator_done"
    assert str(done.pop("outcome")).startswith("CLUSTERDOWN")
    assert done == facts
    # looking is no change
    world.member.parked = []
    await client.send(command("QUORATE.CONTROL", "member", "list"))
    await world.until(lambda: world.member.parked)
    assert audit.take() == []


async def test_what_operators_have_one_member_do(noted: tuple[World, Noted]) -> None:
    world, audit = noted
    client = await world.connect()
    assert await ask(client, "QUORATE.CONTROL TRACE stop") == b"+done: trace stop\r\n"
    assert (await ask(client, "QUORATE.CONTROL trace")).startswith(b"-")
    assert [(event, facts["words"]) for event, facts in audit.take()] == [
        ("operator", "trace stop"),
        ("operator_done", "trace stop"),
        ("operator", "trace"),
        ("operator_done", "trace"),
    ]
    # It did not go to the leader, and a user needs the same right.
    assert world.member.commands == []
    await ask(client, "ACL SETUSER alice on nopass ~* +@all -quorate.control")
    await ask(client, "AUTH alice x")
    assert (await ask(client, "QUORATE.CONTROL trace stop")).startswith(b"-NOPERM")


async def test_what_is_refused_at_the_tls_port_is_noted(tmp_path: Path) -> None:
    """A certificate of another CA, no TLS at all, and a certificate that names nobody."""
    context = partial(port_context, 0, "required")
    async with World.opened(tmp_path / "tables", tls=context) as world:
        found = Noted()
        world.port.state.access.audit = PortAudit(found)
        world.member.service.users.set(b"alice", [b"on", b"allkeys", b"allcommands"], 1)
        client = await world.connect_tls(client_context(uri("bob", Purpose.CLIENT, "orders")))
        await client.send(command("PING"))
        assert (await client.receive_until(b"\r\n")).startswith(b"-NOAUTH The certificate")
        stranger = await world.connect_tls(
            client_context(uri("alice", Purpose.CLIENT, "orders"), ca="other CA")
        )
        with suppress(trio.BrokenResourceError):
            assert await stranger.receive(1) == b""
        reasons = [str(facts["reason"]) for kind, facts in found.events if kind == "client_refused"]
        assert reasons[0] == "the certificate names no enabled user: 'bob'"
        assert "TLS: the certificate is refused" in reasons[1]
        assert len(reasons) == 2
