"""Sockets of joined clients that take a part of a reply, or nothing, and clients that go on."""

from __future__ import annotations

import select
import socket
import struct
from typing import TYPE_CHECKING, Never

import pytest

from quorate.keyvalue.clients.port_state import ClientPortLimits
from quorate.keyvalue.port.connection import STALLED_SECONDS, WAIT_READABLE, Connection
from quorate.node.requests.request import RequestKind
from tests.support.client_port_world import command
from tests.support.joined_world import Client, Leader, Port, open_port
from tests.support.logged import events

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGE = 60_000  # a reply of that is more than a small socket takes
KINDS = pytest.mark.parametrize("name", ["SET", "GET"])


def call(name: str, size: int = 1) -> bytes:
    """A command that is answered with what it is."""
    return command("GET", "k" * size) if name == "GET" else command("SET", "k" * size, "v")


def reply(name: str, size: int = 1) -> bytes:
    words = name.encode() + b" " + b"k" * size + (b"" if name == "GET" else b" v")
    return b"$%d\r\n%b\r\n" % (len(words), words)


@pytest.fixture
def leader() -> Leader:
    return Leader()


@pytest.fixture
def port(leader: Leader) -> Iterator[Port]:
    with open_port(leader) as opened:
        yield opened


@pytest.fixture
def three(port: Port) -> list[Client]:
    return [port.connect() for _ in range(3)]


def small(client: Client) -> Client:
    """Make what the socket takes at once little."""
    client.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return client


def fill(client: Client) -> int:
    """Send as much as the socket takes."""
    sent = 0
    while True:
        try:
            sent += client.near.send(b"x" * 1000)
        except BlockingIOError:
            return sent


def break_off(client: Client) -> None:
    """Close the far end."""
    client.socket.close()


# --- sockets


@KINDS
def test_the_rest_of_a_reply_comes_when_the_socket_takes_it(
    leader: Leader, port: Port, three: list[Client], name: str
) -> None:
    full = fill(small(three[1]))
    port.turn(*[(each, call(name, 20_000)) for each in map(small, three)])
    leader.answer()
    whole = len(reply(name, 20_000))
    assert port.state.unread_bytes >= whole
    assert all(each.idle for each in three)
    assert three[1].connection.waiting_bytes == (0, whole)
    assert port.state.counters.output_bytes == 3 * whole
    assert three[0].take() == three[2].take() == reply(name, 20_000)
    assert three[1].take() == b"x" * full + reply(name, 20_000)
    assert port.state.unread_bytes == 0
    assert {*port.events.values()} == {WAIT_READABLE}


@KINDS
def test_replies_keep_their_order_behind_what_is_not_sent_yet(
    leader: Leader, port: Port, three: list[Client], name: str
) -> None:
    client = small(three[0])
    for size in (LARGE, 1, 2):
        port.turn((client, call(name, size)), (three[1], call(name, size)))
        leader.answer()
    expected = reply(name, LARGE) + reply(name, 1) + reply(name, 2)
    assert client.take() == three[1].take() == expected


@KINDS
def test_a_broken_socket_is_closed_and_no_other(
    leader: Leader, port: Port, three: list[Client], name: str
) -> None:
    port.turn(*[(each, call(name)) for each in three])
    break_off(three[1])
    leader.answer()
    assert [each.open for each in three] == [True, False, True]
    assert three[0].take() == three[2].take() == reply(name)
    assert len(port.state.clients) == 2


@KINDS
def test_nothing_more_is_done_for_a_client_that_does_not_read(leader: Leader, name: str) -> None:
    limits = ClientPortLimits(output_bytes=100_000)
    with open_port(leader, limits) as port:
        slow, other = small(port.connect()), port.connect()
        for _ in range(6):
            port.turn((slow, call(name, LARGE // 2)), (other, call(name, 1)))
            leader.answer()
        assert len(leader.seen) == 6 + 3  # two of the first are joined, and four of hers are done
        assert port.state.unread_bytes <= 100_000 + LARGE // 2 + 100
        assert not port.events[slow.connection.fileno] & select.EPOLLIN
        assert other.take() == reply(name) * 6
        received = b""
        while leader.waiting or len(received) < len(reply(name, LARGE // 2)) * 6:
            received += slow.take()
            leader.answer()
        assert received == reply(name, LARGE // 2) * 6
        assert port.events[slow.connection.fileno] == WAIT_READABLE
        assert (port.state.unread_bytes, port.state.counters.slow_clients) == (0, 0)


@KINDS
def test_who_reads_nothing_for_long_is_closed_and_no_other(
    leader: Leader, port: Port, three: list[Client], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    for each in three:
        fill(small(each))
    port.turn(*[(each, call(name)) for each in three])
    leader.answer()
    assert all(each.connection.waiting_bytes[1] for each in three)
    for seconds in (0.0, STALLED_SECONDS - 1, STALLED_SECONDS):
        three[1].socket.recv(1000)  # too little to make it writable
        if not seconds:
            three[2].take()
        for each in three:
            each.connection.close_if_stalled(seconds)
    assert [each.open for each in three] == [False, True, True]
    assert [each["client"] for each in events(caplog, "client_closed")] == [0]
    assert port.state.counters.slow_clients == 1


@KINDS
def test_the_slowest_is_closed_amidst_a_request_of_its_own(leader: Leader, name: str) -> None:
    """By the reply to another client of it, whether its own was sent before that or comes later."""
    for place in (0, 1, 2):
        limits = ClientPortLimits(all_output_bytes=LARGE)
        with open_port(leader, limits) as port:
            clients = [small(port.connect()) for _ in range(4)]
            slow = clients[place]
            fill(clients[3])
            fill(slow)
            port.turn((slow, call(name, LARGE - 1000)))
            leader.answer()
            assert slow.open
            size = 10_000  # with their replies there is too much
            port.turn(*[(each, call(name, size)) for each in clients])
            leader.answer()
            assert [each.open for each in clients] == [n != place for n in range(4)]
            assert port.state.counters.slow_clients == 1
            for each in clients:
                if each is not slow:
                    assert each.take().endswith(reply(name, size))
            assert port.state.unread_bytes == 0


@KINDS
def test_the_slowest_is_closed_before_its_own_reply(leader: Leader, name: str) -> None:
    """It has sent more meanwhile, so its reply goes another way, behind that of the other."""
    with open_port(leader, ClientPortLimits(all_output_bytes=LARGE)) as port:
        other, slow = small(port.connect()), small(port.connect())
        fill(other)
        fill(slow)
        port.turn((slow, call(name, LARGE - 1000)))
        leader.answer()
        port.turn((other, call(name, 2000)), (slow, call(name, 3)))
        port.turn((slow, call(name, 4)))
        before = port.state.counters.output_bytes
        leader.answer()
        assert (other.open, slow.open) == (True, False)
        assert port.state.counters.output_bytes - before == len(reply(name, 2000))
        assert other.take().endswith(reply(name, 2000))
        assert not leader.waiting


# --- clients that go on, or are to end


@KINDS
@pytest.mark.usefixtures("patience")
async def test_what_comes_meanwhile_is_done_behind_it(
    leader: Leader, port: Port, three: list[Client], name: str
) -> None:
    port.turn(*[(each, call(name)) for each in three])
    port.turn((three[1], call("SET", 2)), (three[0], command("PING")))
    assert len(leader.waiting) == 1
    leader.answer()
    assert three[0].take() == reply(name) + b"+PONG\r\n"
    assert three[1].take() == reply(name)
    assert three[2].take() == reply(name)
    assert [each.idle for each in three] == [True, False, True]
    leader.answer()
    assert three[1].take() == reply("SET", 2)


@KINDS
@pytest.mark.usefixtures("patience")
async def test_a_client_that_is_closed_by_another_of_its_request_gets_nothing_more(
    leader: Leader, port: Port, three: list[Client], name: str
) -> None:
    port.turn(*[(each, call(name)) for each in three])
    kill = command("CLIENT", "KILL", "ID", str(three[2].client.client_id))
    port.turn((three[0], kill), (three[2], call("SET", 2)))
    leader.answer()
    assert three[0].take() == reply(name) + b":1\r\n"
    assert three[1].take() == reply(name)
    assert not three[2].open
    assert not leader.waiting


@KINDS
def test_a_connection_that_is_to_end_is_answered_before(
    leader: Leader, port: Port, three: list[Client], name: str
) -> None:
    port.turn(*[(each, call(name)) for each in three])
    three[0].connection.finish()
    assert port.lingering == []
    leader.answer()
    assert port.lingering == [three[0].connection]
    assert three[0].take() == three[1].take() == reply(name)
    port.turn((three[0], call(name)), (three[1], call(name)))
    assert [payload for _, payload, _ in leader.seen[1:]] == [call(name)]


@pytest.mark.usefixtures("patience")
async def test_who_is_cluster_aware_is_joined_on_the_leader(
    leader: Leader, port: Port, three: list[Client]
) -> None:
    port.turn((three[0], command("READONLY")))
    port.turn(*[(each, call("SET")) for each in three])
    assert [len(payload) for _, payload, _ in leader.seen] == [3 * len(call("SET"))]


# --- mistakes


@KINDS
@pytest.mark.parametrize("method", ["settle", "_send_reply"])
def test_a_mistake_closes_the_connections(
    name: str, method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    leader = Leader()
    with open_port(leader) as port:
        make_a_mistake(leader, port, name, method, monkeypatch)
    assert "3 connections are closed" in caplog.text


def make_a_mistake(
    leader: Leader, port: Port, name: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    three, other = [port.connect() for _ in range(3)], port.connect()
    fill(three[1])

    def mistake(*_: object) -> Never:
        raise ZeroDivisionError

    port.turn(*[(each, call(name)) for each in three])
    with monkeypatch.context() as patch:
        patch.setattr(Connection, method, mistake)
        leader.answer()
    assert not any(each.open for each in three)
    port.turn((other, call(name)))
    leader.answer()
    assert other.take() == reply(name)
    assert leader.waiting == []


def test_a_connection_that_was_reset_is_closed(leader: Leader, port: Port) -> None:
    one, other = port.connect(), port.connect()
    port.turn((one, call("GET")), (other, call("GET")))
    one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.socket.close()
    assert {request.kind for request in leader.waiting} == {RequestKind.QUERY}
    leader.answer()
    assert (one.open, other.take()) == (False, reply("GET"))
