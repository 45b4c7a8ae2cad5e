"""Clients come, speak, and go; over real sockets."""

import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest
import trio
from client_port_world import RawClient, World, command

from quorate.errors import NoLeaderError, OversizedRequestError, UnknownOutcomeError
from quorate.keyvalue.client_port import ClientPort, ClientPortLimits
from quorate.keyvalue.connection import RECEIVE_BYTES

OK = b"+OK\r\n"
UNKNOWN = (
    b"-UNKNOWN the outcome of this request is not known: "
    b"it was sent, and may or may not take effect\r\n"
)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with World.opened(tmp_path / "tables") as opened:
        yield opened


@pytest.fixture
async def client(world: World) -> RawClient:
    return await world.connect()


# Requests ------------------------------------------------------------------------------------


async def test_one_command_goes_as_it_was_sent(world: World, client: RawClient) -> None:
    await client.ask(command("set", "a", "1"), OK)
    await client.ask(command("gEt", "a"), b"$1\r\n1\r\n")
    assert world.member.commands == [command("set", "a", "1")]
    assert world.member.queries == [command("gEt", "a")]


async def test_a_pipeline_of_10000_commands_is_answered_in_order(
    world: World, client: RawClient
) -> None:
    count = 10_000
    data = b"".join(command("SET", f"key:{n}", b"%d" % n) for n in range(count))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, data)
        assert await client.receive(len(OK) * count) == OK * count
        data = b"".join(command("GET", f"key:{n}") for n in range(count))
        replies = b"".join(b"$%d\r\n%d\r\n" % (len(str(n)), n) for n in range(count))
        nursery.start_soon(client.send, data)
        assert await client.receive(len(replies)) == replies
    assert len(world.member.commands) < 50


async def test_commands_are_answered_wherever_they_are_cut(world: World) -> None:
    data = command("SET", "a", "\r\n$1\r\n") + command("PING") + command("GET", "a")
    replies = OK + b"+PONG\r\n$6\r\n\r\n$1\r\n\r\n"
    for place in range(1, len(data)):
        client = await world.connect()
        await client.send(data[:place])
        await world.has_read(place)
        await client.ask(data[place:], replies)
        await client.aclose()
        world.port.state.counters.input_bytes = 0


async def test_commands_byte_by_byte(client: RawClient) -> None:
    data = command("SET", "a", "1") + command("INCR", "a")
    for n in range(len(data)):
        await client.send(data[n : n + 1])
    assert await client.receive(9) == b"+OK\r\n:2\r\n"


async def test_inline_commands(client: RawClient) -> None:
    await client.ask(b"PING\r\n", b"+PONG\r\n")
    await client.ask(b"set a 'b c'\r\nget a\n", b"+OK\r\n$3\r\nb c\r\n")
    await client.ask(b"\r\n" + command("GET", "a") + b"PING\r\n", b"$3\r\nb c\r\n+PONG\r\n")


async def test_a_run_goes_as_one_request_and_a_connection_command_cuts_it(
    world: World, client: RawClient
) -> None:
    first = command("SET", "a", "1") + command("GET", "a") + command("INCR", "a")
    reads = command("GET", "a") + command("EXISTS", "a", "b")
    data = first + command("PING") + reads + command("ECHO", "x") + command("DEL", "a")
    replies = b"+OK\r\n$1\r\n1\r\n:2\r\n+PONG\r\n$1\r\n2\r\n:1\r\n$1\r\nx\r\n:1\r\n"
    await client.ask(data, replies)
    assert world.member.commands == [first, command("DEL", "a")]
    assert world.member.queries == [reads]


async def test_wrong_commands_are_answered_at_their_turn(world: World, client: RawClient) -> None:
    data = command("SET", "a", "1") + command("NOSUCH", "x") + command("GET") + command("GET", "a")
    unknown = b"-ERR unknown command 'NOSUCH', with args beginning with: 'x' \r\n"
    arity = b"-ERR wrong number of arguments for 'get' command\r\n"
    await client.ask(data, OK + unknown + arity + b"$1\r\n1\r\n")
    assert world.member.commands == [command("SET", "a", "1")]


async def test_a_containers_keyed_subcommand_is_a_query(world: World, client: RawClient) -> None:
    await client.ask(command("SET", "a", "1"), OK)
    await client.ask(command("OBJECT", "ENCODING", "a"), b"$3\r\nint\r\n")
    assert world.member.queries == [command("OBJECT", "ENCODING", "a")]


async def test_what_a_client_sends_meanwhile_is_one_request_later(
    world: World, client: RawClient
) -> None:
    world.member.parked = []
    sent = 0
    for one in (command("SET", "a", "1"), *[command("INCR", "a")] * 5, command("GET", "a")):
        await client.send(one)
        sent += len(one)
        await world.has_read(sent)
    assert len(world.member.parked) == 1
    world.member.release()
    replies = OK + b":2\r\n:3\r\n:4\r\n:5\r\n:6\r\n$1\r\n6\r\n"
    assert await client.receive(len(replies)) == replies
    assert world.member.commands[1:] == [command("INCR", "a") * 5 + command("GET", "a")]


async def test_resp3_is_chosen_by_hello_and_told_to_the_service(client: RawClient) -> None:
    await client.ask(command("GET", "nothing"), b"$-1\r\n")
    await client.send(command("HELLO", "3") + command("GET", "nothing"))
    assert await client.receive_until(b"_\r\n") == (
        b"%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.4.0\r\n"
        b"$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:1\r\n$4\r\nmode\r\n$7\r\ncluster\r\n"
        b"$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n_\r\n"
    )


async def test_a_large_value_arrives_in_pieces(client: RawClient) -> None:
    value = b"v" * (3 * RECEIVE_BYTES + 1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, command("SET", "a", value) + command("GET", "a"))
        reply = OK + b"$%d\r\n%b\r\n" % (len(value), value)
        assert await client.receive(len(reply)) == reply


# Errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (NoLeaderError(), b"-CLUSTERDOWN no leader was found in time; nothing was done\r\n"),
        (
            UnknownOutcomeError(),
            UNKNOWN,
        ),
        (OversizedRequestError(), b"-ERR the request is too large\r\n"),
        (OversizedRequestError("60 MiB\r\nat most"), b"-ERR 60 MiB  at most\r\n"),
    ],
    ids=["no leader", "unknown", "oversized", "oversized, in words"],
)
async def test_a_failed_request_is_an_error_for_each_of_its_commands(
    world: World, client: RawClient, error: NoLeaderError, text: bytes
) -> None:
    world.member.error = error
    await client.ask(command("SET", "a", "1") * 3 + command("PING"), text * 3 + b"+PONG\r\n")
    await client.ask(command("MULTI") + command("GET", "a") * 2, OK + b"+QUEUED\r\n" * 2)
    await client.ask(command("EXEC") + command("PING"), text + b"+PONG\r\n")
    await client.ask(command("WATCH", "a"), text)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"*1\r\n$x\r\n", b"invalid bulk length"),
        (b"*-x\r\n", b"invalid multibulk length"),
        (b"*1\r\n$99999999999\r\n", b"invalid bulk length"),
        (b"*2000000\r\n", b"invalid multibulk length"),
        (b"*1\r\n:5\r\n", b"expected '$', got ':'"),
        (b"a" * 70_000, b"too big inline request"),
    ],
)
async def test_who_breaks_the_protocol_is_told_so_and_closed(
    world: World, client: RawClient, data: bytes, error: bytes
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, command("PING") + data)
        assert await client.rest() == b"+PONG\r\n-ERR Protocol error: " + error + b"\r\n"
    assert world.port.state.counters.protocol_errors == 1
    await world.until(lambda: not world.port.state.clients)


async def test_commands_before_a_protocol_error_are_done_first(
    world: World, client: RawClient
) -> None:
    world.member.parked = []
    await client.send(command("SET", "a", "1") + b"*1\r\n$x\r\n")
    await world.until(lambda: world.member.parked)
    world.member.release()
    assert await client.rest() == OK + b"-ERR Protocol error: invalid bulk length\r\n"


async def test_a_browser_is_hung_up_on(world: World, client: RawClient) -> None:
    await client.send(b"POST / HTTP/1.1\r\nHost: x\r\n\r\nSET a 1\r\n")
    assert b"unknown command 'POST'" in await client.rest()
    assert world.member.commands == []


# Coming and going ----------------------------------------------------------------------------


async def test_quit_is_answered_and_closes(client: RawClient) -> None:
    await client.send(command("SET", "a", "1") + command("QUIT") + command("PING"))
    assert await client.rest() == OK + OK


async def test_a_client_that_leaves_is_forgotten(world: World, client: RawClient) -> None:
    await client.ask(command("PING"), b"+PONG\r\n")
    assert len(world.port.state.clients) == 1
    await client.aclose()
    await world.until(lambda: not world.port.state.clients)


async def test_a_parked_request_is_withdrawn_when_its_client_hangs_up(
    world: World, client: RawClient
) -> None:
    world.member.parked = []
    await client.send(command("SET", "a", "1"))
    await world.until(lambda: world.member.parked)
    await client.aclose()
    await world.until(lambda: not world.port.state.clients)
    world.member.release()
    assert world.member.commands == []


async def test_hanging_up_is_noticed_while_nothing_more_is_read(tmp_path: Path) -> None:
    limits = ClientPortLimits(input_bytes=1000)
    async with World.opened(tmp_path / "tables", limits) as world:
        client = await world.connect()
        world.member.parked = []
        await client.send(command("SET", "a", "1"))
        await world.until(lambda: world.member.parked)
        await client.send(command("SET", "a", "2" * 2000))
        await world.until(lambda: world.port.state.counters.input_bytes > 2000)
        await client.send(command("SET", "a", "3" * 2000))
        await trio.sleep(0.01)
        assert world.port.state.counters.input_bytes < 3000
        await client.aclose()
        await world.until(lambda: not world.port.state.clients)
        world.member.release()
        assert world.member.commands == []


async def test_a_client_read_ahead_is_read_again_when_its_request_is_done(tmp_path: Path) -> None:
    async with World.opened(tmp_path / "tables", ClientPortLimits(input_bytes=10)) as world:
        client = await world.connect()
        one, more, sent = command("SET", "a", "1"), command("INCR", "a"), 0
        for _ in range(3):
            world.member.parked = []
            await client.send(one)
            await world.has_read(sent + len(one))
            await client.send(more)
            await world.has_read(sent + len(one + more))
            await client.send(more)  # not read now
            world.member.release()
            assert await client.receive(13) == OK + b":2\r\n:3\r\n"
            sent += len(one + more + more)


async def test_a_half_closed_connection_gets_what_was_ready_and_is_closed(
    world: World, client: RawClient
) -> None:
    await client.send(command("PING") + command("SET", "a", "1") + command("GET", "a"))
    await client.stream.send_eof()
    assert await client.rest() == b"+PONG\r\n+OK\r\n$1\r\n1\r\n"
    world.member.parked = []
    second = await world.connect()
    await second.send(command("SET", "a", "2"))
    await second.stream.send_eof()
    assert await second.rest() == b""
    world.member.release()
    assert len(world.member.commands) == 1


async def test_one_client_too_many_is_refused(tmp_path: Path) -> None:
    async with World.opened(tmp_path / "tables", ClientPortLimits(max_clients=2)) as world:
        first, second = await world.connect(), await world.connect()
        await first.ask(command("PING"), b"+PONG\r\n")
        await second.ask(command("PING"), b"+PONG\r\n")
        third = await world.connect()
        assert await third.rest() == b"-ERR max number of clients reached\r\n"
        await first.aclose()
        await world.until(lambda: len(world.port.state.clients) == 1)
        fourth = await world.connect()
        await fourth.ask(command("PING"), b"+PONG\r\n")


async def test_cancelling_the_port_closes_all_connections(tmp_path: Path) -> None:
    async with World.opened(tmp_path / "tables") as world, trio.open_nursery() as nursery:
        port = ClientPort(world.member, "127.0.0.1", 0)
        address = await nursery.start(port.run)
        client = RawClient(await trio.open_tcp_stream(*address))
        await client.ask(command("PING"), b"+PONG\r\n")
        nursery.cancel_scope.cancel()
    assert port.state.clients == {}
    assert await client.rest() == b""
    await client.aclose()
    with pytest.raises(OSError, match="all attempts to connect"):
        await trio.open_tcp_stream(*address)


async def test_a_taken_address_is_an_error(world: World) -> None:
    with pytest.raises(OSError, match="in use"):
        await ClientPort(world.member, *world.address).run()


# Slow readers --------------------------------------------------------------------------------


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


async def test_a_client_that_never_reads_is_closed(tmp_path: Path) -> None:
    limits = ClientPortLimits(output_bytes=1 << 20)
    async with World.opened(tmp_path / "tables", limits) as world:
        client, other = await world.connect(), await world.connect()
        value = b"v" * 100_000
        await other.ask(command("SET", "a", value), OK)
        with pytest.raises(trio.BrokenResourceError):
            await client.send(command("GET", "a") * 1_000_000)
        await other.ask(command("PING"), b"+PONG\r\n")
        assert world.port.state.counters.slow_clients == 1
        assert len(world.port.state.clients) == 1


async def test_quit_waits_until_a_slow_reader_has_everything(client: RawClient) -> None:
    value = b"v" * 1_000_000
    await client.ask(command("SET", "a", value), OK)
    await client.send(command("GET", "a") * 20 + command("QUIT") + command("PING"))
    reply = b"$%d\r\n%b\r\n" % (len(value), value)
    assert await client.rest() == reply * 20 + OK


# Others' programs ----------------------------------------------------------------------------


async def run(*words: str) -> str:
    """Run a program to its end; the port goes on meanwhile."""
    done = await trio.run_process(words, capture_stdout=True, stderr=subprocess.STDOUT)
    return done.stdout.decode()


@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="redis-cli is not installed")
async def test_redis_cli_understands_us(world: World) -> None:
    cli = ("redis-cli", "-p", str(world.address[1]))
    assert await run(*cli, "set", "a", "1") == "OK\n"
    assert await run(*cli, "-3", "get", "a") == "1\n"
    members = tuple(
        attrs.evolve(member, host="127.0.0.1", client_port=world.address[1])
        for member in world.member.topology.members[:1]
    )
    world.member.topology = attrs.evolve(world.member.topology, members=members)
    check = await run("redis-cli", "--cluster", "check", f"127.0.0.1:{world.address[1]}")
    assert "[OK] All 16384 slots covered." in check


@pytest.mark.skipif(shutil.which("redis-benchmark") is None, reason="it is not installed")
async def test_redis_benchmark_runs(world: World) -> None:
    options = ("-t", "set,get,incr", "-n", "3000", "-c", "20", "-P", "7", "-q")
    told = await run("redis-benchmark", "-p", str(world.address[1]), *options)
    assert told.count("requests per second") == 3


async def test_a_connection_reset_is_no_trouble(world: World) -> None:
    client = await world.connect()
    world.member.parked = []
    await client.send(command("SET", "a", "1"))
    await world.until(lambda: world.member.parked)
    linger = b"\x01\0\0\0\0\0\0\0"  # struct linger: on, 0 seconds; closing resets the connection
    client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    await client.aclose()
    await world.until(lambda: not world.port.state.clients)
    world.member.release()
    assert world.member.commands == []
