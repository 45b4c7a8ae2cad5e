"""The contract of connections, checked alike on TCP, on the network in memory, and with TLS."""

import errno
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager, closing
from random import Random
from typing import Any, ClassVar

import attrs
import pytest
import trio
import trio.testing

from quorate.errors import ConfigurationError, WireError
from quorate.transport import (
    Address,
    Connection,
    Network,
    TcpNetwork,
    network,
    parse_address,
    parse_address_untrusted,
)
from quorate.transport.testing import MemoryNetwork
from quorate.transport.tls import TlsNetwork
from tests.support.certificates import material
from tests.support.transport_world import free_addresses


@attrs.frozen
class Site:
    """A network and an address at which one may listen there."""

    dialler: Network
    server: Network
    address: Address


def sites() -> list[Site]:
    memory = MemoryNetwork(Random(0))
    tcp = TcpNetwork()
    plain = [
        Site(tcp, tcp, Address("127.0.0.1", 0)),
        Site(memory.host("a"), memory.host("b"), Address("b", 0)),
    ]
    return plain + [
        Site(
            TlsNetwork(each.dialler, material(0)),
            TlsNetwork(each.server, material(1)),
            each.address,
        )
        for each in plain
    ]


@pytest.fixture(params=[0, 1, 2, 3], ids=["tcp", "memory", "tls-tcp", "tls-memory"])
def site(request: pytest.FixtureRequest) -> Site:
    return sites()[int(request.param)]


@asynccontextmanager
async def pair(site: Site) -> AsyncGenerator[tuple[Connection, Connection]]:
    """Connect; give the dialling and the listening end."""
    ends, bell = list[Connection](), trio.Event()

    async def keep(connection: Connection) -> None:
        ends.append(connection)
        bell.set()
        await trio.sleep_forever()

    async def serve(*, task_status: trio.TaskStatus[Address]) -> None:
        await site.server.serve(site.address, keep, task_status=task_status)

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            bound: Address = await nursery.start(serve)
            connection = await site.dialler.connect(bound)
            with closing(connection):
                await bell.wait()
                yield connection, ends[0]
            nursery.cancel_scope.cancel()


def fill(connection: Connection) -> int:
    """Send until nothing more is taken."""
    total, taken = 0, 1
    while taken:
        taken = connection.send_nowait(bytes(100_000))
        total += taken
    return total


async def read(connection: Connection, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = await connection.receive(size - len(data))
        assert piece
        data += piece
    return data


async def test_bytes_arrive_in_order_both_ways(site: Site) -> None:
    async with pair(site) as (here, there):
        assert here.send_nowait(b"first ") == 6
        assert here.send_nowait(memoryview(b"second")) == 6
        assert there.send_nowait(b"answer") == 6
        assert await read(there, 12) == b"first second"
        assert await read(here, 6) == b"answer"


async def test_a_reader_that_does_not_read_stops_the_writer_without_blocking_it(
    site: Site,
) -> None:
    async with pair(site) as (here, there):
        total = fill(here)
        with trio.move_on_after(0.05):  # TCP still moves bytes from the writer to the reader
            while True:
                await here.wait_writable()
                total += fill(here)
        assert total < 64 << 20
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, there, total)
            await here.wait_writable()
        # The next byte of what was begun comes first: with TLS it may be out already.
        assert here.send_nowait(b"\0more") == 5
        assert await read(there, 5) == b"\0more"


async def test_receive_takes_at_most_what_is_asked_for(site: Site) -> None:
    async with pair(site) as (here, there):
        here.send_nowait(b"abcdef")
        assert await there.receive(4) == b"abcd"
        assert await there.receive(4) == b"ef"


async def test_the_end_comes_after_the_data_and_stays(site: Site) -> None:
    async with pair(site) as (here, there):
        here.send_nowait(b"last words")
        here.close()
        here.close()
        assert await read(there, 10) == b"last words"
        assert await there.receive(10) == b""
        assert await there.receive(10) == b""


async def test_a_closed_connection_says_so(site: Site) -> None:
    async with pair(site) as (here, _):
        here.close()
        with pytest.raises(trio.ClosedResourceError):
            here.send_nowait(b"x")
        with pytest.raises(trio.ClosedResourceError):
            await here.receive(10)
        with pytest.raises(trio.ClosedResourceError):
            await here.wait_writable()


async def test_closing_ends_a_receive_and_a_wait_that_are_under_way(site: Site) -> None:
    async def closed_receive(connection: Connection) -> None:
        with pytest.raises(trio.ClosedResourceError):
            await connection.receive(10)

    async def closed_wait(connection: Connection) -> None:
        with pytest.raises(trio.ClosedResourceError):
            await connection.wait_writable()

    async with pair(site) as (here, _):
        fill(here)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(closed_receive, here)
            nursery.start_soon(closed_wait, here)
            await trio.testing.wait_all_tasks_blocked()
            here.close()


async def test_sending_to_an_end_that_was_closed_fails_in_the_end(site: Site) -> None:
    async with pair(site) as (here, there):
        there.close()
        assert await here.receive(10) == b""
        with pytest.raises(trio.BrokenResourceError):  # noqa: PT012 - TCP says it at the second
            while True:
                here.send_nowait(b"x")
                await trio.sleep(0.001)


async def test_dialling_where_nobody_listens_is_refused(site: Site) -> None:
    (free,) = free_addresses(1)
    target = Address("b", 9) if site.address.host == "b" else free
    with pytest.raises(ConnectionRefusedError):
        await site.dialler.connect(target)


async def test_an_address_that_is_taken_or_foreign_cant_be_bound(site: Site) -> None:
    async def ignore(connection: Connection) -> None:
        raise AssertionError(connection)

    async def serve(
        address: Address, *, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED
    ) -> None:
        await site.server.serve(address, ignore, task_status=task_status)

    async with trio.open_nursery() as nursery:
        bound: Address = await nursery.start(serve, site.address)
        for taken in (bound, Address("192.0.2.1", 9)):
            with pytest.raises(OSError, match=r"use|assign|taken|not of host"):
                await serve(taken)
        nursery.cancel_scope.cancel()


async def test_an_error_of_a_connection_handler_ends_the_server(site: Site) -> None:
    async def fail(connection: Connection) -> None:
        raise ZeroDivisionError(connection.peer)

    async def serve(*, task_status: trio.TaskStatus[Address]) -> None:
        await site.server.serve(site.address, fail, task_status=task_status)

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            bound: Address = await nursery.start(serve)
            connection = await site.dialler.connect(bound)
            with closing(connection):
                await connection.receive(1)


async def test_a_connection_is_closed_when_its_handler_returns(site: Site) -> None:
    async def leave(connection: Connection) -> None:
        connection.send_nowait(b"bye")

    async def serve(*, task_status: trio.TaskStatus[Address]) -> None:
        await site.server.serve(site.address, leave, task_status=task_status)

    async with trio.open_nursery() as nursery:
        bound: Address = await nursery.start(serve)
        connection = await site.dialler.connect(bound)
        assert await read(connection, 3) == b"bye"
        assert await connection.receive(1) == b""
        connection.close()
        nursery.cancel_scope.cancel()


async def test_tcp_resolves_names_and_refuses_what_is_no_name() -> None:
    tcp = TcpNetwork()
    site = Site(tcp, tcp, Address("localhost", 0))
    async with pair(site) as (here, there):
        assert parse_address(here.peer).host in {"127.0.0.1", "::1"}
        assert parse_address(there.peer).port != parse_address(here.peer).port
    with pytest.raises(OSError, match=r"a\.\.b"):
        await tcp.connect(Address("a..b", 1))


async def test_a_tcp_dial_that_is_cancelled_leaves_no_socket_open() -> None:
    with trio.move_on_after(0) as scope:
        await TcpNetwork().connect(Address("127.0.0.1", 9))
    assert scope.cancelled_caught  # an open socket would be a ResourceWarning, which is an error


async def test_a_reset_breaks_a_tcp_connection() -> None:
    broken = trio.Event()

    async def wait(connection: Connection) -> None:
        with pytest.raises(trio.BrokenResourceError, match="reset"):
            await connection.receive(10)
        broken.set()

    async def serve(*, task_status: trio.TaskStatus[Address]) -> None:
        await TcpNetwork().serve(Address("127.0.0.1", 0), wait, task_status=task_status)

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            bound: Address = await nursery.start(serve)
            with socket.socket() as sock:
                sock.connect((bound.host, bound.port))
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await broken.wait()
            nursery.cancel_scope.cancel()


async def test_a_tcp_dial_that_hangs_can_be_cancelled() -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):  # nobody accepts them: the kernel answers no further dial
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        with trio.move_on_after(0.02) as scope:
            await TcpNetwork().connect(Address(*listener.getsockname()))
        assert scope.cancelled_caught


async def test_a_tcp_socket_that_is_connected_with_itself_counts_as_refused() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        with pytest.raises(ConnectionRefusedError, match="connected with itself"):
            await network._connect(sock, sock.getsockname())  # pyright: ignore[reportPrivateUsage]


class Exhausted(socket.socket):
    """A listener whose process has no file descriptors left for a moment."""

    errors: ClassVar = [BlockingIOError(errno.EAGAIN, "again"), OSError(errno.EMFILE, "too many")]

    def accept(self) -> tuple[socket.socket, Any]:
        if self.errors:
            raise self.errors.pop(0)
        return super().accept()


async def test_accepting_goes_on_after_file_descriptors_had_run_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with trio.fail_after(10), Exhausted() as listener, socket.socket() as sock:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        sock.connect(listener.getsockname())
        connection = await network._accept(listener)  # pyright: ignore[reportPrivateUsage]
        assert connection.peer == str(Address(*sock.getsockname()))
        connection.close()
    assert "can be accepted: [Errno 24] too many" in caplog.text


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("host:7000", Address("host", 7000)),
        ("127.0.0.1:0", Address("127.0.0.1", 0)),
        ("[::1]:7000", Address("::1", 7000)),
    ],
)
def test_an_address_is_read_and_written(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    ["", "host", ":7000", "host:", "host:-1", "host:65536", "host:7x", "::1:7000", "[]:1", "a:²"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="address"):
        parse_address(text)
    with pytest.raises(WireError, match="address"):
        parse_address_untrusted(text)
