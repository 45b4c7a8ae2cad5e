"""What a client may take before it has logged in, and what wrong passwords cost."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from quorate.keyvalue.clients import penalties as penalties_module
from quorate.keyvalue.clients.client_state import ClientState
from quorate.keyvalue.clients.penalties import MAX_ADDRESSES, Penalties
from quorate.keyvalue.clients.strangers import LOGIN_SECONDS, Strangers
from quorate.keyvalue.port import listener
from quorate.keyvalue.port.listener import ClientPortLimits
from quorate.keyvalue.protocol import resp
from quorate.keyvalue.protocol.parser import BEFORE_LOGIN as LIMITS
from quorate.keyvalue.protocol.parser import CommandParser, ParserLimits
from tests.support.client_port_world import RawClient, World, command

NOAUTH = b"-NOAUTH Authentication required.\r\n"
WRONG = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
MULTIBULK = b"-ERR Protocol error: unauthenticated multibulk length\r\n"
BULK = b"-ERR Protocol error: unauthenticated bulk length\r\n"
SHA_OF_X = b"#2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"


def line(text: str) -> bytes:
    return command(*text.split())


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    limits = ClientPortLimits(max_clients=16)
    async with World.opened(tmp_path / "tables", limits) as opened:
        users = opened.member.service.users
        users.set(b"bob", [b"on", SHA_OF_X, b"~*", b"+@all"], 1)
        users.set(b"default", [b"resetpass"], 1)
        yield opened


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"*11\r\n", MULTIBULK),
        (b"*1000000\r\n$3\r\nSET", MULTIBULK),
        (b"*2\r\n$4\r\nAUTH\r\n$16385\r\n", BULK),
        (b"*3\r\n$4\r\nAUTH\r\n$9000\r\n" + b"x" * 9000 + b"\r\n$9000\r\n", BULK),
        (b"AUTH " + b"x" * 17_000, b"-ERR Protocol error: too big inline request\r\n"),
    ],
)
async def test_one_command_is_bounded_as_in_redis(world: World, sent: bytes, error: bytes) -> None:
    client = await world.connect()
    await client.send(sent)
    assert await client.rest() == error


async def test_what_follows_a_login_has_the_usual_limits(world: World) -> None:
    client = await world.connect()
    large = command("SET", "a", "x" * 100_000)
    many = command("MSET", *["k", "v"] * 20)
    sent = line("PING") + line("AUTH bob x") + large + many
    await client.ask(sent, NOAUTH + resp.OK * 3)
    inline = await world.connect()
    await inline.ask(
        b"\r\nHELLO 3 AUTH bob no\r\nAUTH bob x\r\nPING\r\n" + many,
        WRONG + resp.OK + resp.PONG + resp.OK,
    )


async def test_little_is_read_ahead_of_a_login(world: World) -> None:
    world.port.state.access.verifier.submit = lambda *_, **__: True  # type: ignore[method-assign]
    client = await world.connect()
    await client.send(line("AUTH nobody x"))
    await world.has_read(len(line("AUTH nobody x")))
    with trio.move_on_after(0.3):
        while True:
            await client.send(b"x" * 65536)
    (connection,) = world.port.state.clients.values()
    assert connection.waiting_bytes[0] <= LIMITS.request_bytes + 65536


def test_commands_before_a_login_are_cut_anywhere() -> None:
    stream = line("PING") + b"\r\nPING\r\n" + line("HELLO 3") + line("AUTH a b") + line("GET a")
    for size in (1, 3, 7, 1000):
        parser, left = CommandParser(ParserLimits()), b""
        taken: list[list[bytes]] = []
        for at in range(0, len(stream), size):
            left += stream[at : at + size]
            while left:
                (commands, encoded), left = parser.take_before_login_untrusted(left)
                assert encoded == b"".join(command(*each) for each in commands)
                taken += commands
        assert [b" ".join(each) for each in taken] == [
            *(b"PING", b"PING", b"HELLO 3"),
            *(b"AUTH a b", b"GET a"),
        ]


# --- how many, and how long


async def test_strangers_are_a_quarter_at_most_and_the_oldest_goes(world: World) -> None:
    known: list[RawClient] = []
    for _ in range(6):
        client = await world.connect()
        await client.ask(line("AUTH bob x"), resp.OK)
        known.append(client)
    strangers = [await world.connect() for _ in range(4)]
    for client in strangers:
        await client.ask(line("PING"), NOAUTH)
    fifth = await world.connect()
    await fifth.ask(line("PING"), NOAUTH)
    assert await strangers[0].rest() == b""
    for client in [*strangers[1:], fifth]:
        await client.ask(line("PING"), NOAUTH)
    assert world.port.state.counters.closed_strangers == 1
    # Those that are logged out count as well.
    world.member.service.users.set(b"bob", [b"resetpass"], 2)
    await world.until(lambda: len(world.port.state.clients) == 4)


async def test_a_login_has_ten_seconds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    known, stranger = await world.connect(), await world.connect()
    await known.ask(line("AUTH bob x"), resp.OK)
    await stranger.ask(line("PING"), NOAUTH)
    state, now = world.port.state, trio.current_time()
    assert state.strangers.end_overdue(now + LOGIN_SECONDS - 0.5) == 0
    assert state.strangers.end_overdue(now + LOGIN_SECONDS + 0.5) == 1
    assert await stranger.rest() == b""
    await known.ask(line("PING"), resp.PONG)
    assert listener.LINGER_SECONDS <= LOGIN_SECONDS  # of the task that looks


def test_strangers_that_are_gone_do_not_count() -> None:
    class Fake:
        def __init__(self, fileno: int) -> None:
            self.client = ClientState(1, "", "", 0.0, 0.0, logged_in=False)
            self.fileno = fileno
            self.closed = False

        def close(self) -> None:
            self.closed = True

    strangers, gone, there = Strangers(), Fake(-1), [Fake(1), Fake(2)]
    assert [strangers.came(each, 0.0, 8) for each in (gone, *there)] == [0, 0, 0]
    assert strangers.came(there[0], 9.0, 8) == 0
    assert not there[0].closed
    assert strangers.end_overdue(LOGIN_SECONDS) == 2


# --- wrong passwords


async def test_wrong_passwords_are_answered_later_and_later(world: World) -> None:
    client = await world.connect()
    began = trio.current_time()
    await client.send(line("AUTH bob no") * 3 + line("AUTH bob x"))
    assert await client.receive(len(WRONG * 3 + resp.OK)) == WRONG * 3 + resp.OK
    assert trio.current_time() - began >= 0.05 + 0.1 + 0.2
    hello = await world.connect()
    began = trio.current_time()
    await hello.ask(line("HELLO 3 AUTH bob no"), WRONG)
    assert trio.current_time() - began >= 0.4


async def test_a_right_password_is_not_answered_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIRST_SECONDS", "MOST_SECONDS"):
        monkeypatch.setattr(penalties_module, name, 3600.0)
    client, other = await world.connect(), await world.connect()
    await client.send(line("AUTH bob no"))
    with trio.fail_after(60):
        await other.ask(line("AUTH bob x"), resp.OK)
    await client.aclose()


async def test_failed_logins_do_not_fill_the_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        client = await world.connect()
        for name in ("bob", "secret-as-name", "other-as-name"):
            await client.send(line(f"AUTH {name} {1025 * 'y'}"))
        await world.until(lambda: not world.port.state.gathered)
        await client.aclose()
    await world.until(lambda: not world.port.state.clients)
    lines = [text for text in caplog.messages if "could not log in" in text]
    assert set(lines) == {
        "a client at 127.0.0.1 could not log in; user: b'bob'",
        "a client at 127.0.0.1 could not log in; user: unknown",
    }
    assert len(lines) == 2


async def test_who_leaves_takes_its_delayed_answer_along(world: World) -> None:
    client = await world.connect()
    await client.send(line("AUTH bob no") + line("QUIT"))
    await client.aclose()
    await world.until(lambda: not world.port.state.clients)


def test_delays_grow_by_address_to_a_limit_and_are_forgotten() -> None:
    penalties = Penalties()
    delays = [penalties.failed(f"10.0.0.1:{port}", 0.0) for port in range(9)]
    assert delays == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.0, 3.0, 3.0]
    assert penalties.failed("10.0.0.2:1", 0.0) == 0.05
    assert penalties.failed("10.0.0.1:1", 61.0) == 0.05
    assert penalties.failed("[2001:db8::1]:1", 0.0) == 0.05
    assert penalties.failed("[2001:db8::2]:1", 0.0) == 0.1  # the same network
    assert penalties.failed("[::ffff:10.0.0.2]:1", 0.0) == 0.1
    assert penalties.failed("somewhere", 0.0) == 0.05


def test_the_table_of_addresses_is_bounded() -> None:
    penalties = Penalties()
    for number in range(MAX_ADDRESSES + 1):
        penalties.failed(f"10.1.{number >> 8}.{number & 255}:1", 0.0)
    assert penalties.failed("10.1.0.0:1", 0.0) == penalties_module.FIRST_SECONDS
    assert penalties.failed("10.1.16.0:1", 0.0) == 2 * penalties_module.FIRST_SECONDS
