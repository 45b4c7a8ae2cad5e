"""Clients with TLS at the port: commands, replies, back-pressure, and the end of a connection."""

# pyright: reportPrivateUsage=false

import logging
import os
import socket
import ssl
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from quorate.keyvalue.port.listener import ClientPortLimits
from quorate.transport import Purpose
from tests.support.certificates import client_context, port_context, uri
from tests.support.client_port_world import World, command

OK = b"+OK\r\n"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncGenerator[World]:
    async with World.opened(tmp_path / "tables", tls=port_context) as made:
        yield made


async def test_commands_are_answered_on_both_ports(world: World) -> None:
    plain, secure = await world.connect(), await world.connect_tls(client_context())
    await secure.ask(command("SET", "a", "1"), OK)
    await plain.ask(command("GET", "a"), b"$1\r\n1\r\n")
    await secure.ask(command("INCR", "a") + command("GET", "a"), b":2\r\n$1\r\n2\r\n")
    tls = secure.tls
    assert tls is not None
    assert tls.version() == "TLSv1.3"
    port = b"%d" % world.port.state.tls_port
    reply = b"*2\r\n$8\r\ntls-port\r\n$%d\r\n%b\r\n" % (len(port), port)
    await secure.ask(command("CONFIG", "GET", "tls-port"), reply)
    assert world.port.state.counters.connections == 2


async def test_the_plain_port_may_be_closed(tmp_path: Path) -> None:
    async with World.opened(tmp_path / "tables", tls=port_context, plain=False) as world:
        assert world.port.state.port == 0
        assert world.address[1] == world.port.state.tls_port
        client = await world.connect_tls(client_context())
        await client.ask(command("PING"), b"+PONG\r\n")


async def test_large_values_go_both_ways(world: World) -> None:
    value = os.urandom(3_000_000)
    client = await world.connect_tls(client_context())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.send, command("SET", "a", value) + command("GET", "a") * 5)
        expected = OK + b"$3000000\r\n%b\r\n" % value * 5
        assert await client.receive(len(expected)) == expected


@pytest.mark.parametrize("size", [1, 15_000, 70_000, 500_000])
async def test_a_client_that_reads_late_gets_every_byte(world: World, size: int) -> None:
    """Ciphertext that the socket does not take waits, and the byte that is owed is not repeated."""
    value = os.urandom(size)
    client = await world.connect_tls(client_context())
    await client.ask(command("SET", "a", value), OK)
    count = 20_000_000 // max(size, 200)
    await client.send(command("GET", "a") * count)
    one = b"$%d\r\n%b\r\n" % (size, value)
    await world.until(lambda: world.port.state.unread_bytes or size == 1)
    got = await client.receive(count * len(one))
    assert got == one * count
    await world.until(lambda: not world.port.state.unread_bytes)
    await client.ask(command("PING"), b"+PONG\r\n")


async def test_a_client_that_never_reads_is_closed(tmp_path: Path) -> None:
    limits = ClientPortLimits(output_bytes=1 << 20, all_output_bytes=4 << 20)
    async with World.opened(tmp_path / "tables", limits, tls=port_context) as world:
        client = await world.connect_tls(client_context())
        await client.ask(command("SET", "a", b"x" * 1_000_000), OK)
        await client.send(command("GET", "a") * 30)
        await world.until(
            lambda: (
                world.port.state.counters.slow_clients or world.port.state.unread_bytes > 1 << 20
            )
        )
        assert world.port.state.unread_bytes < 8 << 20


def by_hand(address: tuple[str, int], *, rest: bytes, end: bool = False) -> bytes:
    """Shake hands with the first command in the same segment as the end; return all replies.

    Args:
        address: of the port.
        rest: what is sent together with the end of the handshake.
        end: send the end of TLS, too, and leave the connection open.
    """
    arrived, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context().wrap_bio(arrived, outgoing)
    got = b""
    with socket.create_connection(address, timeout=5) as sock:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(outgoing.read())
                arrived.write(sock.recv(65536))
        tls.write(rest)
        if end:
            with suppress(ssl.SSLWantReadError):
                tls.unwrap()
        sock.sendall(outgoing.read())
        while not got.endswith(b"+PONG\r\n") or end:
            data = sock.recv(65536)
            if not data:
                break
            arrived.write(data)
            if not end:  # OpenSSL reads no more after its own end
                with suppress(ssl.SSLWantReadError):
                    got += tls.read(65536)
            else:
                got += data
    return got


async def test_a_command_that_comes_with_the_end_of_the_handshake_is_read(world: World) -> None:
    address = (world.address[0], world.port.state.tls_port)
    rest = command("SET", "a", "1") + command("PING")
    made = partial(by_hand, address, rest=rest)
    assert await trio.to_thread.run_sync(made) == OK + b"+PONG\r\n"


async def test_the_end_of_tls_is_the_end_of_input(world: World) -> None:
    """What was sent before is answered, and then the port closes, although TCP is still open."""
    address = (world.address[0], world.port.state.tls_port)
    made = partial(by_hand, address, rest=command("SET", "a", "1") * 3, end=True)
    assert await trio.to_thread.run_sync(made)
    assert world.member.commands == [command("SET", "a", "1") * 3]
    await world.until(lambda: not world.port.state.clients)


async def test_a_client_that_closes_at_once_has_its_command_done(world: World) -> None:
    client = await world.connect_tls(client_context())
    await client.send(command("SET", "a", "1"))
    client.stream.socket.close()  # without an end of TLS, as most libraries do
    await world.until(lambda: world.member.commands)
    await world.until(lambda: not world.port.state.clients)


async def test_quit_ends_with_an_end_of_tls(world: World) -> None:
    stream = await trio.open_tcp_stream(world.address[0], world.port.state.tls_port)
    # It raises an error at an end of TCP alone.
    async with trio.SSLStream(stream, client_context(), https_compatible=False) as tls:
        await tls.send_all(command("QUIT"))
        assert await tls.receive_some(100) == OK
        assert await tls.receive_some(100) == b""


async def test_a_protocol_error_is_answered_and_ends_in_order(world: World) -> None:
    client = await world.connect_tls(client_context())
    await client.send(b"*1\r\n$x\r\n" + command("PING") * 1000)
    assert (await client.rest()).startswith(b"-ERR Protocol error")
    await client.aclose()
    await world.until(lambda: not world.port.state.clients)


@pytest.mark.parametrize("good", [b"", command("SET", "a", "1")])
async def test_bytes_that_are_no_tls_end_a_connection(world: World, good: bytes) -> None:
    client = await world.connect_tls(client_context())
    await client.ask(command("PING"), b"+PONG\r\n")
    if good:
        await client.send(good)
    await client.stream.send_all(b"\x17\x03\x03\x00\x20" + os.urandom(32))
    await world.until(lambda: not world.port.state.clients)
    assert world.member.commands == [good] * bool(good)


async def test_drain_answers_what_was_read(world: World) -> None:
    client = await world.connect_tls(client_context())
    silent = await trio.open_tcp_stream(world.address[0], world.port.state.tls_port)
    world.member.parked = []
    await client.send(command("SET", "a", "1"))
    await world.until(lambda: world.member.parked)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.port.drain)
        await trio.sleep(0.01)
        world.member.release()
        assert await client.rest() == OK
        await client.aclose()
    assert await silent.receive_some(10) == b""
    await silent.aclose()


async def test_only_new_versions_are_spoken(tmp_path: Path) -> None:
    old = client_context(trusts="test CA")
    older = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    older.check_hostname = False
    older.verify_mode = ssl.CERT_NONE
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    async with World.opened(tmp_path / "a", tls=port_context) as world:
        with pytest.raises(trio.BrokenResourceError):
            await world.connect_tls(older)
        await (await world.connect_tls(old)).ask(command("PING"), b"+PONG\r\n")
    both = partial(port_context, minimum="1.2")
    async with World.opened(tmp_path / "b", tls=both) as world:
        client = await world.connect_tls(older)
        await client.ask(command("PING"), b"+PONG\r\n")
        assert client.tls is not None
        assert client.tls.version() == "TLSv1.2"
        assert client.tls.cipher()[0].startswith("ECDHE-")
    older.set_ciphers("AES128-SHA256:@SECLEVEL=0")
    async with World.opened(tmp_path / "c", tls=both) as world:
        with pytest.raises(trio.BrokenResourceError):
            await world.connect_tls(older)


async def test_a_new_certificate_is_for_new_connections(tmp_path: Path) -> None:
    used = [port_context(0)]
    async with World.opened(tmp_path / "tables", tls=lambda: used[0]) as world:
        old = await world.connect_tls(client_context())
        used[0] = port_context(0, ca="other CA")
        with pytest.raises(trio.BrokenResourceError):
            await world.connect_tls(client_context())
        new = await world.connect_tls(client_context(trusts="other CA"))
        await new.ask(command("PING"), b"+PONG\r\n")
        await old.ask(command("PING"), b"+PONG\r\n")


async def test_too_many_clients_are_closed_before_the_handshake(tmp_path: Path) -> None:
    limits = ClientPortLimits(max_clients=1)
    async with World.opened(tmp_path / "tables", limits, tls=port_context) as world:
        await world.connect_tls(client_context())
        with pytest.raises(trio.BrokenResourceError):
            await world.connect_tls(client_context())
        assert world.port.state.counters.refused_connections == 1


async def test_strangers_are_logged_once_and_counted(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    address = (world.address[0], world.port.state.tls_port)
    for _ in range(3):
        async with await trio.open_tcp_stream(*address) as stream:
            await stream.send_all(command("PING") * 2000)
            with suppress(trio.BrokenResourceError):
                while await stream.receive_some(100):
                    pass
    await world.until(lambda: world.port.state.counters.failed_handshakes == 3)
    assert caplog.text.count("no TLS connection with a client at 127.0.0.1: TLS: ") == 1
    assert threading.active_count() < 50


async def test_a_client_with_a_certificate_of_a_former_ca_is_closed(tmp_path: Path) -> None:
    """Which CA it was is not known, so all that were there before the change are."""
    optional = partial(port_context, clients="optional")
    async with World.opened(tmp_path / "tables", tls=optional) as world:
        trusted = frozenset((b"old", b"new"))
        assert world.port._tls is not None
        world.port._tls = attrs.evolve(world.port._tls, authorities=lambda: trusted)
        shown = uri("default", Purpose.CLIENT, "orders")
        old = await world.connect_tls(client_context(shown))
        without = await world.connect_tls(client_context())
        await old.ask(command("SET", "a", "1"), OK)
        trusted = frozenset((b"new",))
        again = await world.connect_tls(client_context(shown))
        assert await old.receive(1) == b""
        for client in (again, without):
            await client.ask(command("PING"), b"+PONG\r\n")
