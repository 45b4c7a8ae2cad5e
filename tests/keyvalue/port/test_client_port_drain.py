"""A port that stops answers what it has read, and ends every connection without a reset."""

import pytest
import trio
import trio.testing

from quorate.errors import NoLeaderError
from quorate.keyvalue.port import listener
from tests.support.client_port_world import RawClient, World, command

OK = b"+OK\r\n"


async def test_what_is_under_way_is_answered_and_what_comes_later_is_not_done(
    world: World, client: RawClient
) -> None:
    world.member.parked = []
    await client.send(command("SET", "a", "1") + command("PING"))
    await world.until(lambda: world.member.parked)
    await client.send(command("INCR", "a"))
    await world.has_read(len(command("SET", "a", "1") + command("PING") + command("INCR", "a")))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.port.drain)
        await trio.testing.wait_all_tasks_blocked(0.01)
        await client.send(command("INCR", "a") * 1000)  # too late
        world.member.release()
        assert await client.rest() == OK + b"+PONG\r\n:2\r\n"
    await client.aclose()
    await world.port.close()
    assert world.port.state.clients == {}
    assert b"".join(world.member.commands) == command("SET", "a", "1") + command("INCR", "a")


async def test_idle_clients_see_the_end_at_once(world: World, client: RawClient) -> None:
    await client.ask(command("PING") + command("SET", "a")[:-3], b"+PONG\r\n")
    other = await world.connect()
    await other.ask(command("PING"), b"+PONG\r\n")
    with trio.fail_after(0.5):
        await world.port.drain()
        assert await client.rest() == await other.rest() == b""


async def test_a_slow_reader_gets_all_of_its_replies(world: World, client: RawClient) -> None:
    value = b"v" * 1_000_000
    await client.ask(command("SET", "a", value), OK)
    await client.send(command("GET", "a") * 20)
    await world.until(
        lambda: any(one.waiting_bytes[1] for one in world.port.state.clients.values())
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.port.drain)
        assert await client.rest() == (b"$%d\r\n%b\r\n" % (len(value), value)) * 20


async def test_who_never_reads_or_waits_for_a_leader_holds_up_the_end_for_a_second_only(
    world: World, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "DRAIN_SECONDS", 0.05)
    world.member.parked = []
    await client.send(command("SET", "a", "1"))
    await world.until(lambda: world.member.parked)
    with trio.fail_after(1):
        await world.port.drain()
        (request,) = world.member.parked
        request.done(NoLeaderError("stopping"))  # as a member does that closes
        await world.port.close()
    assert (await client.rest()).startswith(b"-CLUSTERDOWN ")


async def test_a_port_that_stops_takes_no_more_clients(world: World, client: RawClient) -> None:
    await world.port.drain()
    with pytest.raises(OSError, match="all attempts to connect"):
        await trio.open_tcp_stream(*world.address)
