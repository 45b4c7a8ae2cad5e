"""QUORATE.SESSION and QUORATE.ONCE, from the socket to a real state machine."""

import pytest

from quorate.errors import UnknownOutcomeError
from tests.support.client_port_world import RawClient, World, command

OK, QUEUED = b"+OK\r\n", b"+QUEUED\r\n"
OPEN = command("QUORATE.SESSION", "OPEN")


def once(session: int, sequence: int, *arguments: str) -> bytes:
    return command("QUORATE.ONCE", str(session), str(sequence), *arguments)


async def test_a_command_is_done_once_whatever_connection_it_comes_by(
    world: World, client: RawClient
) -> None:
    await client.ask(OPEN, b":1\r\n")
    await client.ask(once(1, 1, "INCR", "a"), b":1\r\n")
    assert world.member.commands == [OPEN, command("INCR", "a")], "the stamp is not in the payload"
    other = await world.connect()
    await other.ask(once(1, 1, "INCR", "a") + once(1, 2, "incr", "a"), b":1\r\n:2\r\n")
    await other.ask(command("quorate.session", "keepalive", "1", "2"), OK)
    await client.ask(command("QUORATE.SESSION", "CLOSE", "1"), OK)
    await client.send(once(1, 3, "INCR", "a"))
    assert (await client.receive_until(b"\r\n")).startswith(b"-NOSESSION ")
    await client.ask(command("GET", "a"), b"$1\r\n2\r\n")


async def test_they_are_counted(client: RawClient) -> None:
    await client.ask(command("QUORATE.SESSIONS"), b":0\r\n")
    await client.ask(OPEN + OPEN + command("QUORATE.SESSIONS"), b":1\r\n:2\r\n:2\r\n")
    await client.send(command("INFO", "clients") + command("ECHO", "the end"))
    assert b"quorate_sessions:2\r\n" in await client.receive_until(b"the end\r\n")


async def test_a_pipeline_mixes_them_with_others(client: RawClient) -> None:
    data = OPEN + once(1, 1, "INCR", "a") + command("INCR", "a") + command("GET", "a")
    await client.ask(data + once(1, 1, "INCR", "a"), b":1\r\n:1\r\n:2\r\n$1\r\n2\r\n:1\r\n")


async def test_an_unknown_outcome_is_asked_again(world: World, client: RawClient) -> None:
    await client.ask(OPEN, b":1\r\n")
    world.member.error = UnknownOutcomeError("lost")
    await client.send(once(1, 1, "INCR", "a"))
    assert (await client.receive_until(b"\r\n")).startswith(b"-UNKNOWN ")
    world.member.error = None
    await client.ask(once(1, 1, "INCR", "a") * 2, b":1\r\n" * 2)


async def test_a_transaction_is_done_once(world: World, client: RawClient) -> None:
    await client.ask(OPEN, b":1\r\n")
    queued = command("MULTI") + command("INCR", "a") + command("PING") + command("INCR", "b")
    for one in (client, await world.connect()):
        await one.ask(queued + once(1, 1, "EXEC"), OK + QUEUED * 3 + b"*3\r\n:1\r\n+PONG\r\n:1\r\n")
    await client.ask(command("MGET", "a", "b"), b"*2\r\n$1\r\n1\r\n$1\r\n1\r\n")


@pytest.mark.parametrize(
    "words",
    [
        ("1",),
        ("1", "1"),
        ("x", "1", "INCR", "a"),
        ("1", "x", "INCR", "a"),
        ("0", "1", "INCR", "a"),
        ("1", "0", "INCR", "a"),
        ("1", "-1", "INCR", "a"),
        ("1", "9223372036854775808", "INCR", "a"),
        ("1", "1", "INCR"),
        ("1", "1", "NOSUCH", "a"),
        ("1", "1", "GET", "a"),
        ("1", "1", "PING"),
        ("1", "1", "EXEC"),
        ("1", "1", "MULTI"),
        ("1", "1", "QUORATE.SESSION", "CLOSE", "1"),
        ("1", "1", "QUORATE.ONCE", "1", "2", "INCR", "a"),
    ],
)
async def test_what_can_not_be_done_once_is_refused(
    world: World, client: RawClient, words: tuple[str, ...]
) -> None:
    await client.ask(OPEN, b":1\r\n")
    await client.send(command("QUORATE.ONCE", *words))
    assert (await client.receive_until(b"\r\n")).startswith(b"-ERR ")
    assert world.member.commands == [OPEN]
    await client.ask(once(1, 1, "INCR", "a"), b":1\r\n")


async def test_inside_of_a_transaction_nothing_but_its_end_is_done_once(client: RawClient) -> None:
    await client.ask(OPEN + command("MULTI"), b":1\r\n" + OK)
    await client.send(once(1, 1, "INCR", "a"))
    assert (await client.receive_until(b"\r\n")).startswith(b"-ERR inside MULTI only")
    await client.send(once(1, 1, "EXEC"))
    assert (await client.receive_until(b"\r\n")).startswith(b"-EXECABORT ")


async def test_a_transaction_that_watches_is_not_done_once(client: RawClient) -> None:
    await client.ask(OPEN + command("WATCH", "a") + command("MULTI"), b":1\r\n" + OK * 2)
    await client.send(once(1, 1, "EXEC"))
    assert (await client.receive_until(b"\r\n")).startswith(b"-ERR QUORATE.ONCE can't be used")
    await client.ask(command("GET", "a"), b"$-1\r\n")  # the transaction has ended


async def test_a_client_that_knows_clusters_is_sent_to_the_leader(
    world: World, client: RawClient
) -> None:
    await client.ask(OPEN, b":1\r\n")
    await client.send(command("CLUSTER", "SLOTS"))
    await client.receive_until(b"\r\n")
    world.member.follow(1)
    await client.send(once(1, 1, "INCR", "a"))
    assert b"-MOVED 15495 10.0.0.2:7001\r\n" in await client.receive_until(b"7001\r\n")
