"""Clients come, speak, and go; over real sockets."""

from pathlib import Path

import pytest
import trio

from quorate.errors import NoLeaderError, OversizedRequestError, UnknownOutcomeError
from quorate.keyvalue.limits import MAX_ARGUMENTS, RUN_COMMANDS
from quorate.keyvalue.port import listener
from quorate.keyvalue.port.connection import RECEIVE_BYTES
from quorate.keyvalue.port.listener import ClientPortLimits
from tests.support.client_port_world import RawClient, World, command

OK = b"+OK\r\n"
UNKNOWN = (
    b"-UNKNOWN the outcome of this request is not known: "
    b"it was sent, and may or may not take effect\r\n"
)


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


async def test_a_pipeline_of_large_values_is_answered_whole_in_several_requests(
    world: World, client: RawClient
) -> None:
    value = "v" * (1 << 20)
    await client.ask(command("SET", "a", value), OK)
    bulk = b"$%d\r\n%b\r\n" % (len(value), value.encode())
    lines = [command("GET", "a"), command("STRLEN", "none")] * 100
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, b"".join([*lines, command("PING")]))
        for _ in range(100):
            assert await client.receive(len(bulk) + 4) == bulk + b":0\r\n"
    assert await client.receive(7) == b"+PONG\r\n"
    assert 30 < len(world.member.queries) < 150
    appends = [command("APPEND", "a", "w") + command("INCR", "n")] * 50
    replies = b"".join(b":%d\r\n:%d\r\n" % (len(value) + n, n) for n in range(1, 51))
    await client.ask(b"".join(appends), replies)
    assert 1 < len(world.member.commands) < 60


async def test_a_follower_too_answers_large_reads_in_parts(world: World, client: RawClient) -> None:
    await client.ask(command("SET", "a", "v" * (1 << 20)), OK)
    world.member.follow(1)
    client_name = command("CLUSTER", "MYID") + command("READONLY")
    await client.send(client_name)
    await client.receive_until(b"+OK\r\n")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, command("GET", "a") * 100 + command("PING"))
        received = await client.receive_until(b"+PONG\r\n", chunk_bytes=1 << 20)
    assert received.count(b"$1048576\r\n") == 100
    assert b"-ERR" not in received
    assert 30 < len(world.member.stale) <= 100


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


async def test_a_long_pipeline_goes_as_runs_one_after_the_other(
    world: World, client: RawClient
) -> None:
    one = command("INCR", "a")
    count = 2 * RUN_COMMANDS + 10
    world.member.parked = []
    await client.send(one)
    await world.until(lambda: world.member.parked)
    await client.send(one * count + command("PING"))  # held until the first is done
    await world.has_read(len(one) * (count + 1) + len(command("PING")))
    sizes: list[int] = []
    while request := world.member.parked.pop() if world.member.parked else None:
        sizes.append(len(request.payload) // len(one))
        world.member.answer(request)
    assert sizes == [1, RUN_COMMANDS, RUN_COMMANDS, 10]
    replies = b"".join(b":%d\r\n" % (n + 1) for n in range(count + 1))
    assert await client.receive(len(replies) + 7) == replies + b"+PONG\r\n"


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
        (b"*2000000\r\n", b"invalid multibulk length, %d is the most" % MAX_ARGUMENTS),
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
    await client.aclose()
    await world.until(lambda: not world.port.state.clients)


async def test_a_value_beyond_the_limit_is_an_error_even_for_who_sends_all_of_it_first(
    tmp_path: Path,
) -> None:
    async with World.opened(tmp_path / "tables", ClientPortLimits(request_bytes=1 << 20)) as world:
        client = await world.connect()
        await client.send(command("SET", "a", b"v" * (16 << 20)) + command("PING"))
        assert await client.rest() == b"-ERR Protocol error: invalid bulk length\r\n"


async def test_who_broke_the_protocol_and_stays_is_closed_in_the_end(
    world: World, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "LINGER_SECONDS", 0.01)
    async with trio.open_nursery() as nursery:
        port = listener.ClientPort(world.member, "127.0.0.1", 0)
        client = RawClient(await trio.open_tcp_stream(*await nursery.start(port.run)))
        await client.ask(b"*x\r\n", b"-ERR Protocol error: invalid multibulk length\r\n")
        assert await client.rest() == b""
        await world.until(lambda: not port.state.clients)
        await client.aclose()
        nursery.cancel_scope.cancel()


async def test_the_error_arrives_although_there_is_more_to_read(client: RawClient) -> None:
    await client.ask(command("PING"), b"+PONG\r\n")
    assert client.send_at_once(b"*1\r\n$x\r\n" + b"a" * 300_000) > RECEIVE_BYTES
    error = b"-ERR Protocol error: invalid bulk length\r\n"
    assert await client.receive(len(error)) == error
    assert await client.stream.receive_some(1) == b"", "closed, not reset"


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
