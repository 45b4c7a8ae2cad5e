"""Connections come, go, end their input, hang up, and want too much."""

import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from quorate.keyvalue.clients.port_state import PortState
from quorate.keyvalue.conversation import conversation, one_command, transactions
from quorate.keyvalue.port.connection import RECEIVE_BYTES
from quorate.keyvalue.port.listener import RESERVED_DESCRIPTORS, ClientPort, ClientPortLimits
from tests.support.client_port_world import RawClient, World, command

OK = b"+OK\r\n"


# Coming and going ----------------------------------------------------------------------------


async def test_quit_is_answered_and_closes(client: RawClient) -> None:
    await client.send(command("SET", "a", "1") + command("QUIT") + command("PING"))
    assert await client.rest() == OK + OK


async def test_a_client_that_leaves_is_forgotten(world: World, client: RawClient) -> None:
    await client.ask(command("PING"), b"+PONG\r\n")
    assert len(world.port.state.clients) == 1
    await client.aclose()
    await world.until(lambda: not world.port.state.clients)


def reset(client: RawClient) -> None:
    """Have a client hang up."""
    linger = b"\x01\0\0\0\0\0\0\0"  # struct linger: on, 0 seconds; closing resets the connection
    client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    client.stream.socket.close()


@pytest.mark.parametrize("rest", [b"", command("SET", "a", "2", "EX", "9")[:-3]])
async def test_a_parked_request_is_done_and_answered_though_the_input_has_ended(
    world: World, client: RawClient, rest: bytes
) -> None:
    world.member.parked = []
    data = command("SET", "a", "1") + rest
    await client.send(data)
    await world.has_read(len(data))
    await client.stream.send_eof()
    other = await world.connect()
    await other.ask(command("PING"), b"+PONG\r\n")
    assert len(world.port.state.clients) == 2
    world.member.release()
    assert await client.rest() == OK
    assert world.member.commands == [command("SET", "a", "1")]
    await world.until(lambda: len(world.port.state.clients) == 1)


async def test_a_client_that_is_gone_for_good_resets_the_connection_by_its_first_reply(
    world: World, client: RawClient
) -> None:
    world.member.parked = []
    await client.send(command("SET", "a", "1"))
    await world.until(lambda: world.member.parked)
    await client.send(command("INCR", "a"))
    await world.has_read(len(command("SET", "a", "1") + command("INCR", "a")))
    await client.aclose()
    parked, world.member.parked = world.member.parked, []
    world.member.answer(parked[0])
    await world.until(lambda: not world.port.state.clients)
    world.member.release()
    assert world.member.commands == [command("SET", "a", "1")]


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
        reset(client)
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


async def test_a_connection_reset_is_no_trouble(world: World) -> None:
    client = await world.connect()
    world.member.parked = []
    await client.send(command("SET", "a", "1"))
    await world.until(lambda: world.member.parked)
    reset(client)
    await world.until(lambda: not world.port.state.clients)
    world.member.release()
    assert world.member.commands == []


# What a client sends in one go before it closes its sending half, and what it is answered.
LAST_WORDS = {
    "nothing": (b"", b""),
    "plain": (command("SET", "a", "1"), OK),
    "inline": (b"INCR n\r\n", b":1\r\n"),
    "run": (command("INCR", "n") * 3, b":1\r\n:2\r\n:3\r\n"),
    "transaction": (
        command("MULTI") + command("SET", "a", "1") + command("EXEC"),
        OK + b"+QUEUED\r\n*1\r\n" + OK,
    ),
    "mixed": (
        command("PING") + command("SET", "a", "1") + command("PING"),
        b"+PONG\r\n+OK\r\n+PONG\r\n",
    ),
    "control": (command("SET", "a", "1") + command("WAIT", "2", "0"), OK + b":1\r\n"),
    "half of a command": (command("PING") + command("SET", "a", "1")[:-3], b"+PONG\r\n"),
    "half of a transaction": (command("MULTI") + command("SET", "a", "1"), OK + b"+QUEUED\r\n"),
    "wrong": (
        command("PING") + b"*1\r\nx",
        b"+PONG\r\n-ERR Protocol error: expected '$', got 'x'\r\n",
    ),
    "the end": (command("QUIT") + command("PING"), OK),
}


@pytest.mark.parametrize("parked", [False, True], ids=["at once", "parked"])
@pytest.mark.parametrize("words", LAST_WORDS)
async def test_end_of_input_is_no_hanging_up(
    world: World, client: RawClient, words: str, *, parked: bool
) -> None:
    data, replies = LAST_WORDS[words]
    if parked:
        world.member.parked = []
    if data:
        await client.send(data)
    await client.stream.send_eof()
    await world.has_read(len(data))
    if parked:
        await (await world.connect()).ask(
            command("PING"), b"+PONG\r\n"
        )  # the port has seen the end
    while world.member.parked:
        world.member.answer(world.member.parked.pop())
        await trio.lowlevel.checkpoint()
    assert await client.rest() == replies
    await world.until(lambda: len(world.port.state.clients) == parked)
    written = 0 if "half" in words or words == "wrong" else data.count(b"SET")
    assert b"".join(world.member.commands).count(b"SET") == written


async def test_a_half_closed_client_that_reads_slowly_gets_everything(
    world: World, client: RawClient
) -> None:
    value = b"v" * 1_000_000
    await client.ask(command("SET", "a", value), OK)
    await client.send(command("GET", "a") * 20)
    await client.stream.send_eof()
    await world.until(lambda: world.port.state.unread_bytes)
    assert await client.rest() == (b"$%d\r\n%b\r\n" % (len(value), value)) * 20


async def test_a_client_whose_machine_is_gone_is_missed_when_the_setting_says(
    world: World, client: RawClient
) -> None:
    setting = b"*2\r\n$13\r\ntcp-keepalive\r\n$3\r\n300\r\n"
    await client.ask(command("CONFIG", "GET", "tcp-keepalive"), setting)
    ((_, session),) = world.port.state.clients.items()
    with socket.socket(fileno=os.dup(session.fileno)) as near:
        assert near.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle, pause, probes, unanswered_ms = (
            near.getsockopt(socket.IPPROTO_TCP, option)
            for option in (
                socket.TCP_KEEPIDLE,
                socket.TCP_KEEPINTVL,
                socket.TCP_KEEPCNT,
                socket.TCP_USER_TIMEOUT,
            )
        )
    assert idle + pause * probes == 300
    assert unanswered_ms == 300_000


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


async def test_clients_that_hog_the_loop_let_others_have_a_turn(
    world: World, client: RawClient
) -> None:
    hogs = [await world.connect() for _ in range(3)]
    count = 1500
    for hog in hogs:
        await hog.send(command("INFO", "raft", "server") * count + command("ECHO", "the end"))
    counters, most = world.port.state.counters, 0
    for _ in range(20):
        before = counters.output_bytes
        await client.ask(command("PING"), b"+PONG\r\n")
        most = max(most, counters.output_bytes - before)
    for hog in hogs:
        received = await hog.receive_until(b"the end\r\n", chunk_bytes=1 << 20)
        assert received.count(b"# Raft") == count
        assert most < len(received), "so much is sent if a hog is served at a stretch"


async def test_a_conversation_that_pauses_is_not_read_ahead_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation, "PATIENCE_S", -1.0)
    async with World.opened(tmp_path / "tables", ClientPortLimits(input_bytes=1000)) as world:
        client = await world.connect()
        count, most = 20_000, 0
        value = b"v" * 10_000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, command("PING") * count + command("SET", "a", value))
            for _ in range(count):
                assert await client.receive(7) == b"+PONG\r\n"
                (held, _), *_ = (one.waiting_bytes for one in world.port.state.clients.values())
                most = max(most, held)
            assert await client.receive(5) == OK
        assert 1000 < most <= 1000 + RECEIVE_BYTES + len(value)


async def test_a_conversation_that_paused_goes_on_behind_a_request(
    world: World, client: RawClient
) -> None:
    world.member.parked = []
    count = 500
    await client.send(command("SET", "a", "1") + command("INFO", "raft") * count + command("QUIT"))
    await world.until(lambda: world.member.parked)
    world.member.release()
    received = await client.rest()
    assert received.startswith(OK)
    assert received.endswith(OK)
    assert received.count(b"# Raft") == count


async def test_a_client_may_go_while_its_conversation_pauses(
    world: World, client: RawClient
) -> None:
    await client.send(command("INFO") * 3000)
    await world.until(lambda: world.port.state.unfinished)
    await client.aclose()
    await world.until(lambda: not world.port.state.clients)
    await world.until(lambda: not world.port.state.unfinished)


async def test_without_descriptors_clients_wait(
    world: World, client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    await client.ask(command("PING"), b"+PONG\r\n")
    waiting = socket.socket()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.fileno() + 1, hard))
    try:
        waiting.setblocking(False)
        waiting.connect_ex(world.address)
        await world.until(lambda: "no client can be accepted" in caplog.text)
        await client.ask(command("PING"), b"+PONG\r\n")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    second = RawClient(trio.SocketStream(trio.socket.from_stdlib_socket(waiting)))
    world.connected.append(second)
    await second.ask(command("PING"), b"+PONG\r\n")


IN_FILE = {"woven": transactions, "run_of": conversation, "redirection": one_command}


@pytest.mark.parametrize("broken", IN_FILE)
async def test_a_mistake_of_ours_ends_one_connection_and_nothing_else(
    world: World,
    client: RawClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    broken: str,
) -> None:
    def fail(*_arguments: object) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(IN_FILE[broken], broken, fail)
    other = await world.connect()
    data = {
        "woven": command("MULTI") + command("PING") + command("SET", "a", "1") + command("EXEC"),
        "run_of": command("SET", "a", "1") + command("PING"),
        "redirection": command("CLUSTER", "SLOTS") + command("SET", "a", "1"),
    }[broken]
    if broken == "redirection":
        world.member.follow(1)
    world.member.parked = []
    await client.send(data)
    if broken == "woven":
        await world.until(lambda: world.member.parked)
    world.member.release()  # here nothing rises
    assert b"*1" not in await client.rest()
    assert "a mistake" in caplog.text
    await world.until(lambda: len(world.port.state.clients) == 1)
    monkeypatch.undo()
    await other.ask(command("PING"), b"+PONG\r\n")


async def test_a_mistake_after_a_pause_ends_one_connection(
    world: World,
    client: RawClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def pause_and_fail(state: PortState, resume: Callable[[], None]) -> None:
        resume_later(state, resume)
        monkeypatch.setattr(one_command, "fault", None)  # what can not be called

    resume_later = PortState.resume_later
    monkeypatch.setattr(PortState, "resume_later", pause_and_fail)
    monkeypatch.setattr(conversation, "PATIENCE_S", -1.0)
    other = await world.connect()
    await client.send(command("PING") * 100)
    assert await client.rest() == b"+PONG\r\n" * 2  # and a pause
    monkeypatch.undo()
    assert "its connection is closed" in caplog.text
    await other.ask(command("PING"), b"+PONG\r\n")


async def test_descriptors_are_left_for_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as probe:
        limit = probe.fileno() + RESERVED_DESCRIPTORS + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    taken: list[socket.socket] = []
    try:
        async with World.opened(tmp_path / "tables") as world:
            room = world.port.state.limits.max_clients
            assert 0 < room <= 20
            assert (
                f"the limit of open files, {limit}, leaves room for {room} clients" in caplog.text
            )
            client = await world.connect()
            await client.ask(command("PING"), b"+PONG\r\n")
            while not taken or taken[-1].fileno() < limit - RESERVED_DESCRIPTORS:
                taken.append(socket.socket())  # the program opens some of its own
            other = await world.connect()
            assert await other.rest() == b"-ERR max number of clients reached\r\n"
            await client.ask(command("PING"), b"+PONG\r\n")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for one in taken:
            one.close()
