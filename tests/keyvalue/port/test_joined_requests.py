"""Plain commands of several clients are one request as long as all goes well."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from quorate.errors import (
    NoLeaderError,
    OversizedRequestError,
    RefusedError,
    RequestError,
    UnknownOutcomeError,
)
from quorate.keyvalue.clients.port_state import ClientPortLimits
from quorate.keyvalue.limits import AT_ONCE_BYTES, RUN_COMMANDS
from quorate.keyvalue.protocol.payload import IN_PARTS, RESP3
from quorate.node.requests.request import RequestKind, still_wanted
from tests.support.client_port_world import command
from tests.support.joined_world import Client, Leader, Port, open_port

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND, QUERY = RequestKind.COMMAND, RequestKind.QUERY
OK = b"+OK\r\n"
UNKNOWN = b"-UNKNOWN the outcome of this request is not known: "
GET = command("GET", "a")


def write(number: int, size: int = 5) -> bytes:
    return command("SET", f"key {number}", "v" * size)


def echo(*numbers: int) -> bytes:
    return b"".join(b"$15\r\nSET key %d vvvvv\r\n" % number for number in numbers)


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


# --- joining


def test_kinds_and_protocols_are_joined_apart(leader: Leader, port: Port) -> None:
    clients = [port.connect(flags) for flags in (0, RESP3, 0, RESP3)]
    port.turn(*[(each, write(n)) for n, each in enumerate(clients)])
    reads, flags = leader.seen, RESP3 | IN_PARTS
    assert reads == [
        (COMMAND, write(0) + write(2), IN_PARTS),
        (COMMAND, write(1) + write(3), flags),
    ]
    leader.answer()
    leader.seen.clear()
    says = (GET, write(1), write(2), GET)
    port.turn(*zip(clients, says, strict=True))
    assert leader.seen == [
        (QUERY, GET, 0),
        (COMMAND, write(1), RESP3),
        (COMMAND, write(2), 0),
        (QUERY, GET, RESP3),
    ]
    leader.answer()
    assert [each.take() for each in clients] == [
        echo(0) + b"$5\r\nGET a\r\n",
        echo(1) + echo(1),
        echo(2) + echo(2),
        echo(3) + b"$5\r\nGET a\r\n",
    ]
    assert all(each.idle for each in clients)


def test_one_command_alone_is_not_done_in_parts(
    leader: Leader, port: Port, three: list[Client]
) -> None:
    port.turn((three[0], write(0)))
    port.turn((three[1], write(1) * 2))
    assert leader.seen == [(COMMAND, write(0), 0), (COMMAND, write(1) * 2, IN_PARTS)]


def test_what_is_joined_is_bounded_in_bytes(
    leader: Leader, port: Port, three: list[Client]
) -> None:
    size = AT_ONCE_BYTES // 2 - 40
    assert AT_ONCE_BYTES - 90 < 2 * len(write(0, size)) <= AT_ONCE_BYTES
    port.turn(*[(each, write(n, size)) for n, each in enumerate(three)])
    assert [each[1] for each in leader.seen] == [write(0, size) + write(1, size), write(2, size)]
    leader.answer()
    assert all(b"key %d" % n in each.take() for n, each in enumerate(three))
    leader.seen.clear()
    port.turn((three[0], write(0, AT_ONCE_BYTES - 90)), (three[1], write(1, 90)))
    assert len(leader.seen) == 2


def test_what_is_joined_is_bounded_in_commands(
    leader: Leader, port: Port, three: list[Client]
) -> None:
    port.turn((three[0], GET * (RUN_COMMANDS - 1)), (three[1], GET), (three[2], GET))
    assert [each[1] for each in leader.seen] == [GET * RUN_COMMANDS, GET]


def test_what_is_joined_is_no_larger_than_a_request_may_be(leader: Leader) -> None:
    """A member refuses larger ones, and each client may send as much as that."""
    with open_port(leader, ClientPortLimits(request_bytes=1000)) as port:
        three = [port.connect() for _ in range(3)]
        port.turn(*[(each, write(n, 400)) for n, each in enumerate(three)])
        joined = [payload for _, payload, _ in leader.seen]
        assert joined == [write(0, 400) + write(1, 400), write(2, 400)]


def test_more_than_a_request_may_be_is_taken_apart(leader: Leader) -> None:
    with open_port(leader, ClientPortLimits(request_bytes=1000)) as port:
        one, other = port.connect(), port.connect()
        port.turn((one, write(0, 400) * 4), (other, write(1)))
        assert {payload for _, payload, _ in leader.seen} == {write(0, 400) * 2, write(1)}
        while leader.waiting:
            leader.answer()
        assert one.take().count(b"SET key 0") == 4
        assert other.take() == echo(1)


# --- clients that go


def gone(leader: Leader, port: Port) -> list[bytes]:
    """What is sent of what waits."""
    leader.seen.clear()
    leader.send()
    return [request.payload for request in leader.sent]


def test_who_goes_in_the_turn_has_sent_nothing(
    leader: Leader, port: Port, three: list[Client]
) -> None:
    port.begin(*[(each, write(n)) for n, each in enumerate(three)])
    three[1].connection.close()
    port.state.end_turn()
    assert gone(leader, port) == [write(0), write(2)]
    leader.answer()
    assert [three[0].take(), three[2].take()] == [echo(0), echo(2)]
    assert port.state.counters.commands == 3


def test_who_goes_before_it_is_sent_has_sent_nothing(
    leader: Leader, port: Port, three: list[Client]
) -> None:
    port.turn(*[(each, write(n) * 2) for n, each in enumerate(three)])
    (request,) = leader.waiting
    request.deadline, request.losses = 7.0, 1
    three[0].connection.close()
    assert gone(leader, port) == [write(1) * 2, write(2) * 2]
    assert {(one.deadline, one.losses, one.flags) for one in leader.sent} == {(7.0, 1, IN_PARTS)}
    assert [*still_wanted([request])] == [], "it is taken apart once"
    three[1].connection.close()
    assert [one.payload for one in still_wanted(leader.sent)] == [write(2) * 2]
    leader.answer()
    assert three[2].take() == echo(2, 2)
    assert three[2].idle


def test_who_goes_later_keeps_nothing_from_the_others(
    leader: Leader, port: Port, three: list[Client]
) -> None:
    port.turn(*[(each, write(n)) for n, each in enumerate(three)])
    leader.send()
    three[1].connection.close()
    leader.answer()
    assert [three[0].take(), three[2].take()] == [echo(0), echo(2)]
    assert port.state.counters.output_bytes == len(echo(0, 2))
    assert three[0].idle
    port.turn((three[0], GET))
    assert leader.waiting


def test_all_may_go(leader: Leader, port: Port, three: list[Client]) -> None:
    port.turn(*[(each, GET) for each in three])
    port.turn(*[(each, write(1)) for each in (port.connect(), port.connect())])
    leader.send()
    for each in port.clients:
        each.connection.close()
    leader.answer()
    assert port.state.counters.output_bytes == 0


# --- errors


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NoLeaderError("nobody"), b"-CLUSTERDOWN no leader was found in time; "),
        (RefusedError("not now"), b"-REFUSED not now\r\n"),
        (OversizedRequestError("too much"), b"-ERR too much\r\n"),
        (UnknownOutcomeError("lost"), UNKNOWN),
    ],
)
def test_all_get_an_error_in_its_words_for_each_command(
    leader: Leader, port: Port, three: list[Client], error: RequestError, words: bytes
) -> None:
    port.turn(*[(each, write(n) * (n + 1)) for n, each in enumerate(three)])
    leader.send()
    three[2].connection.close()
    leader.error = error
    leader.answer()
    assert three[0].take().startswith(words)
    assert three[1].take() == three[0].received * 2
    assert three[0].received.count(b"\r\n") == 1
    assert three[0].idle


# --- in parts


@pytest.mark.parametrize("at_a_time", range(1, 8))
def test_what_is_done_in_part_is_gone_on_with(at_a_time: int) -> None:
    leader = Leader(at_a_time)
    with open_port(leader) as port:
        three = [port.connect() for _ in range(3)]
        port.turn(*[(each, write(n) * 2) for n, each in enumerate(three)])
        leader.answer()
        received = b"".join([each.take() for each in three])
        assert received == echo(0, 0, 1, 1, 2, 2)[: at_a_time * len(echo(0))]
        while leader.waiting:
            leader.answer()
            for each in three:
                each.take()
        assert [each.received for each in three] == [echo(n, n) for n in range(3)]
        assert sorted(call[1] for call in leader.applied) == [
            b"key %d" % (n // 2) for n in range(6)
        ]
        assert port.state.counters.output_bytes == len(echo(0)) * 6
        assert all(each.idle for each in three)


def test_who_goes_meanwhile_is_not_gone_on_with() -> None:
    for left in range(3):
        leader = Leader(3)
        with open_port(leader) as port:
            three = [port.connect() for _ in range(3)]
            port.turn(*[(each, write(n) * 2) for n, each in enumerate(three)])
            leader.send()
            three[left].connection.close()
            while leader.waiting or leader.sent:
                leader.answer()
            received = [echo(n, n) for n in range(3) if n != left]
            assert [each.take() for n, each in enumerate(three) if n != left] == received
            assert len(leader.applied) == 6 - (0, 1, 2)[left]


# --- replies that can't be


@pytest.mark.parametrize(
    "result",
    [
        b"",
        OK * 3,
        OK * 5,
        b"*0\r\n" * 4,
        OK * 3 + b"+OK",
        OK * 3 + b"$5\r\n" + OK,
        OK * 4 + b"\0",
        b"\0" + b"2\r\n" + OK,
        b"\0" + b"2\r\n" + OK * 3,
        b"\0" + b"-1\r\n" + OK * 4,
        b"\0" + b"9\r\n" + OK * 9,
    ],
)
def test_other_replies_than_those_to_what_was_sent_have_an_unknown_outcome(
    leader: Leader, port: Port, three: list[Client], result: bytes
) -> None:
    counts = (1, 2, 1)
    port.turn(*[(each, write(1) * count) for each, count in zip(three, counts, strict=True)])
    (request,) = leader.waiting
    leader.waiting.clear()
    request.done(result)
    request.done(result)  # it is said once
    for each, count in zip(three, counts, strict=True):
        received = each.take()
        assert received.count(UNKNOWN) == count
        assert received.count(b"\r\n") == count
        assert each.idle
    assert not leader.waiting


def test_a_part_that_is_no_number_closes_the_connections(
    leader: Leader, port: Port, three: list[Client], caplog: pytest.LogCaptureFixture
) -> None:
    port.turn(*[(each, write(1)) for each in three])
    leader.send()
    three[1].connection.close()
    leader.sent[0].done(b"\0none\r\n" + OK)
    assert not any(each.open for each in three)
    assert "2 connections are closed" in caplog.text
