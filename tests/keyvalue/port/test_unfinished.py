"""Input that is not done yet has one budget for all clients, and its memory comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import pytest

from quorate.keyvalue.clients.port_state import ONE_READ_BYTES, ClientPortLimits
from tests.support.client_port_world import command
from tests.support.joined_world import Client, Leader, Port, open_port
from tests.support.logged import events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Hold: TypeAlias = Callable[[Client], tuple[Client, bytes]]

LIMITS = ClientPortLimits(all_input_bytes=1 << 20)
VALUE = b"v" * 300_000
QUEUED = b"+OK\r\n" + b"+QUEUED\r\n"


def partial(client: Client) -> tuple[Client, bytes]:
    return client, b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$%d\r\n" % (1 << 20) + VALUE


def queue(client: Client) -> tuple[Client, bytes]:
    return client, command("MULTI") + command("SET", "a", VALUE)


def backlog(client: Client) -> tuple[Client, bytes]:
    return client, command("SET", "a", VALUE) * 2


PATIENT = pytest.mark.usefixtures("patience")
HOLDERS = pytest.mark.parametrize("hold", [partial, queue, backlog])


@pytest.fixture
def leader() -> Leader:
    return Leader()


@pytest.fixture
def port(leader: Leader) -> Iterator[Port]:
    with open_port(leader, LIMITS) as opened:
        yield opened


@PATIENT
@HOLDERS
async def test_who_holds_most_is_refused_with_an_error_and_lets_go(
    leader: Leader, port: Port, caplog: pytest.LogCaptureFixture, hold: Hold
) -> None:
    large = port.connect()
    small = [port.connect() for _ in range(3)]
    if hold is backlog:
        port.turn((large, command("INCR", "n")))  # the rest waits behind that
    for _ in range(2):
        port.turn(hold(large))  # of more than one piece
    for each in small:
        port.turn(partial(each))
    assert [each.open for each in small] == [True] * 3
    assert port.state.counters.refused_clients == 1
    (refused,) = events(caplog, "client_refused")
    assert (refused["client"], refused["address"]) == (0, "a")
    leader.answer()
    received = large.take()
    assert received.endswith(b" bytes, and is closed; send less at once\r\n")
    before, _, error = received.partition(b"-ERR unfinished input of all clients takes more than ")
    assert error.startswith(b"1048576 bytes; this connection held most of it, ")
    # the replies to all that was done come before the error
    done: dict[Hold, bytes] = {partial: b"", backlog: b"$6\r\nINCR n\r\n"}
    assert before == done.get(hold, before)
    assert port.lingering == [large.connection]
    assert large.connection.unfinished_bytes == 0
    assert 3 * len(VALUE) < port.state.unfinished_bytes < 3 * len(VALUE) + 1000
    # the others go on as if nothing had been
    port.turn((small[0], b"v" * ((1 << 20) - len(VALUE)) + b"\r\n"))
    assert port.state.unfinished_bytes > 0
    for each in (*small, large):
        each.connection.close()
    assert port.state.unfinished_bytes == 0


@PATIENT
async def test_what_is_done_is_not_counted_any_more(leader: Leader, port: Port) -> None:
    client = port.connect()
    leader.at_once = True
    said = command("MULTI") + command("SET", "a", VALUE) + command("EXEC")
    for data in (said, said[:-10], said[-10:], *partial(client)[1:], b"x"):
        port.turn((client, data))
        incomplete = data not in (said, said[-10:])
        assert (port.state.unfinished_bytes > 0) == incomplete
    port.turn((client, b"v" * ((1 << 20) - len(VALUE) - 1) + b"\r\n"))
    assert port.state.unfinished_bytes == 0
    assert port.state.counters.refused_clients == 0


@PATIENT
async def test_a_large_request_under_way_counts_and_is_not_given_up(
    leader: Leader, port: Port
) -> None:
    large, other = port.connect(), port.connect()
    port.turn((large, command("SET", "a", VALUE * 3)), joined=False)
    assert 3 * len(VALUE) <= port.state.unfinished_bytes < 3 * len(VALUE) + 1000
    port.turn(partial(other))
    assert (large.open, other.take()[:24]) == (True, b"-ERR unfinished input of")
    leader.answer()
    assert large.take().startswith(b"$900006\r\nSET a vvv")
    assert port.state.unfinished_bytes == 0


@PATIENT
async def test_a_client_that_holds_what_may_just_have_come_is_not_refused(port: Port) -> None:
    large = [port.connect() for _ in range(20)]
    piece = b"*2\r\n$4\r\nECHO\r\n$200000\r\n" + b"v" * (ONE_READ_BYTES - 100)
    for each in large:
        port.turn((each, piece))
    assert port.state.unfinished_bytes > LIMITS.all_input_bytes
    assert port.state.counters.refused_clients == 0


@PATIENT
@pytest.mark.parametrize("joined", [True, False])
async def test_a_refused_client_gets_the_replies_to_what_is_under_way_before(
    leader: Leader, port: Port, *, joined: bool
) -> None:
    large, other = port.connect(), port.connect()
    plain = command("GET", "k")
    port.turn((large, plain), (other, plain), joined=joined)
    port.turn((large, command("PING") * 40_000))
    port.turn(partial(other), partial(port.connect()))
    assert port.state.counters.refused_clients == 1
    leader.answer()
    received = large.take()
    assert received.startswith(b"$5\r\nGET k\r\n-ERR unfinished input")
    assert received.count(b"\r\n") == 3
    assert port.lingering == [large.connection]
    leader.answer()
    assert other.take() == b"$5\r\nGET k\r\n"


@PATIENT
async def test_small_pieces_count_as_what_they_take(port: Port) -> None:
    client = port.connect()
    port.turn((client, command("INCR", "n")))
    for _ in range(1000):
        port.turn((client, b"*"))
    assert port.state.unfinished_bytes > 60_000
    other = port.connect()
    port.turn((other, command("MULTI") + command("PING") * 90))
    assert other.connection.unfinished_bytes >= 90 * (64 + len(command("PING")))
