"""Clients that read their replies slowly, or not at all."""

from pathlib import Path

import pytest
import trio

from quorate.keyvalue.port import connection, listener
from quorate.keyvalue.port.listener import ClientPortLimits
from tests.support.client_port_world import RawClient, World, command
from tests.support.logged import events

OK = b"+OK\r\n"


async def test_replies_wait_for_a_slow_reader(world: World, client: RawClient) -> None:
    value = b"v" * 100_000
    other = await world.connect()
    await other.ask(command("SET", "a", value), OK)
    reply = b"$%d\r\n%b\r\n" % (len(value), value)
    await client.send(command("GET", "a") * 200 + command("PING"))
    await world.until(
        lambda: any(one.waiting_bytes[1] for one in world.port.state.clients.values())
    )
    await other.ask(command("PING"), b"+PONG\r\n")
    assert await client.receive(200 * len(reply) + 7) == reply * 200 + b"+PONG\r\n"
    await client.ask(command("PING"), b"+PONG\r\n")
    assert all(one.waiting_bytes == (0, 0) for one in world.port.state.clients.values())


async def test_a_client_that_writes_all_before_it_reads_is_served(
    world: World, client: RawClient
) -> None:
    value = b"v" * 50_000
    await client.ask(command("SET", "a", value), OK)
    # neither direction fits into the sockets' buffers
    for _ in range(40):
        await client.send(command("GET", "a") * 5 + command("ECHO", value) * 5)
    reply = b"$%d\r\n%b\r\n" % (len(value), value)
    assert await client.receive(400 * len(reply)) == reply * 400
    assert world.port.state.counters.slow_clients == 0


async def test_a_client_that_never_reads_is_read_no_more_and_closed_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "LINGER_SECONDS", 0.01)
    limits = ClientPortLimits(output_bytes=1 << 20)
    async with World.opened(tmp_path / "tables", limits) as world:
        client, other = await world.connect(), await world.connect()
        value = b"v" * 100_000
        await other.ask(command("SET", "a", value), OK)
        one = command("GET", "a")
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                with pytest.raises(trio.BrokenResourceError):
                    await client.send(one * 1_000_000)

            nursery.start_soon(send)
            state = world.port.state
            await world.until(lambda: state.unread_bytes > 1 << 20)
            await other.ask(command("PING"), b"+PONG\r\n")
            assert state.unread_bytes < (2 << 20)
            assert len(world.member.queries) < 1000
            assert state.counters.slow_clients == 0
            monkeypatch.setattr(connection, "STALLED_SECONDS", 0.02)
        await world.until(lambda: len(state.clients) == 1)
        await other.ask(command("PING"), b"+PONG\r\n")
        assert (state.counters.slow_clients, state.unread_bytes) == (1, 0)
        (closed,) = events(caplog, "client_closed")
        assert (closed["client"], closed["address"][:10]) == (1, "127.0.0.1:")
        assert "read nothing for 0 s" in caplog.text


async def test_a_slow_but_steady_reader_gets_everything_and_little_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "LINGER_SECONDS", 0.01)
    monkeypatch.setattr(connection, "STALLED_SECONDS", 1.0)
    limits = ClientPortLimits(output_bytes=1 << 20)
    async with World.opened(tmp_path / "tables", limits) as world:
        client, value = await world.connect(), b"v" * (1 << 20)
        await client.ask(command("SET", "a", value), OK)
        await client.send(command("GET", "a") * 60 + command("PING"))
        reply, most = b"$%d\r\n%b\r\n" % (len(value), value), 0
        for _ in range(60):
            most = max(most, world.port.state.unread_bytes)
            assert await client.receive(len(reply)) == reply
        assert await client.receive(7) == b"+PONG\r\n"
        assert 1 << 20 < most <= (2 << 20) + 100
        assert (world.port.state.counters.slow_clients, world.port.state.unread_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("data", "following"),
    [
        (command("MULTI") + command("GET", "a") + command("EXEC"), False),
        (command("GET", "a"), False),
        (command("GET", "a"), True),
    ],
    ids=["transactions", "reads", "reads of a follower"],
)
async def test_no_more_is_done_for_a_client_while_its_replies_wait(
    tmp_path: Path, data: bytes, *, following: bool
) -> None:
    limits = ClientPortLimits(output_bytes=1 << 20)
    async with World.opened(tmp_path / "tables", limits) as world:
        client, value = await world.connect(), b"v" * (1 << 20)
        await client.ask(command("SET", "a", value), OK)
        if following:
            await client.ask(command("READONLY"), OK)  # read from what the follower has applied
            world.member.follow(1)
        await client.send(data * 40 + command("QUIT"))
        state = world.port.state
        await world.until(lambda: state.unread_bytes > 1 << 20)
        await world.until(lambda: not state.unfinished)
        done = len(world.member.queries) + len(world.member.stale)
        assert done < 30
        received = await client.rest()
        assert received.count(value) == 40
        assert received.endswith(OK)


async def test_replies_to_all_clients_are_bounded_and_all_of_them_arrive(tmp_path: Path) -> None:
    limits = ClientPortLimits(all_output_bytes=30 << 20)
    async with World.opened(tmp_path / "tables", limits) as world:
        slow = [await world.connect() for _ in range(4)]
        other, value = await world.connect(), b"v" * (1 << 20)
        await other.ask(command("SET", "a", value), OK)
        for client in slow:
            await client.send(command("GET", "a") * 30)
        state = world.port.state
        await world.until(lambda: state.unread_bytes > 15 << 20)
        await other.ask(command("PING"), b"+PONG\r\n")
        assert state.unread_bytes < 21 << 20
        reply = b"$%d\r\n%b\r\n" % (len(value), value)
        for client in slow:
            assert await client.receive(30 * len(reply)) == reply * 30
        assert (state.unread_bytes, state.counters.slow_clients) == (0, 0)


async def test_quit_waits_until_a_slow_reader_has_everything(client: RawClient) -> None:
    value = b"v" * 1_000_000
    await client.ask(command("SET", "a", value), OK)
    await client.send(command("GET", "a") * 20 + command("QUIT") + command("PING"))
    reply = b"$%d\r\n%b\r\n" % (len(value), value)
    assert await client.rest() == reply * 20 + OK
