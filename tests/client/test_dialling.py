"""What answers at an address is a member that lets us in, or the error says what is wrong."""

import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

import anyio
import anyio.abc
import hiredis
import pytest
import trio
from trio.testing import MockClock

from quorate.client import dialling
from quorate.client.dialling import Dialler, Push
from quorate.client.secure import ClientTls
from quorate.errors import ConfigurationError, HandshakeError, KeyValueError
from quorate.transport import Address
from tests.support.certificates import authority, uri

HELLO = b"%1\r\n$6\r\nserver\r\n$5\r\nredis\r\n"


@asynccontextmanager
async def serving(
    *replies: bytes, asked: list[list[bytes]] | None = None, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[Address]:
    """Serve connections: each command gets the next reply, and then the connection is closed."""

    async def serve(plain: trio.SocketStream) -> None:
        stream: trio.abc.Stream = trio.SSLStream(plain, tls, server_side=True) if tls else plain
        with contextlib.suppress(trio.BrokenResourceError):  # it is gone, or speaks no TLS
            await answer(stream)

    async def answer(stream: trio.abc.Stream) -> None:
        reader, rest = hiredis.Reader(), list(replies)
        while rest and (data := await stream.receive_some(65536)):
            if data.startswith(b"\x16"):  # a ClientHello
                await stream.send_all(b"-ERR Protocol error\r\n")
                break
            reader.feed(bytes(data))
            while rest and (words := reader.gets()) is not False:
                if asked is not None:
                    asked.append(words)
                await stream.send_all(rest.pop(0))
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        opened = partial(trio.serve_tcp, serve, 0, host="127.0.0.1")
        (listener,) = await nursery.start(opened)
        yield Address(*listener.socket.getsockname())
        nursery.cancel_scope.cancel()


async def test_it_logs_in_and_reads_values_and_pushes() -> None:
    asked: list[list[bytes]] = []
    said = b">2\r\n+news\r\n:1\r\n-ERR no\r\n#t\r\n,1.5\r\n_\r\n*1\r\n$1\r\na\r\n"
    async with serving(HELLO, said, asked=asked) as address:
        wire = await Dialler(user="alice", password="secret").open(address)
        await wire.send(b"*1\r\n$4\r\nPING\r\n")
        push = await wire.receive()
        assert isinstance(push, Push)
        assert push == [b"news", 1]
        error = await wire.receive()
        assert isinstance(error, KeyValueError)
        assert error.code == "ERR"
        assert [await wire.receive() for _ in range(4)] == [True, 1.5, None, [b"a"]]
        with pytest.raises(ConnectionResetError, match="closed by the other end"):
            await wire.receive()
        await wire.aclose()
        with pytest.raises(ConnectionResetError):
            await wire.send(b"late")
    assert asked[0] == [b"HELLO", b"3", b"AUTH", b"alice", b"secret"]


async def test_it_goes_on_without_a_login_only_if_it_may() -> None:
    wrong, none = b"-WRONGPASS invalid pair\r\n", b"-NOAUTH There are no users yet\r\n"
    asked: list[list[bytes]] = []
    login = partial(Dialler, user="alice", password="secret")
    async with serving(wrong, HELLO, asked=asked) as address:
        await (await login(or_nobody=True).open(address)).aclose()
        assert asked.pop() == [b"HELLO", b"3"]
        with pytest.raises(KeyValueError, match=r"^WRONGPASS invalid pair$"):
            await login().open(address)
        assert len(asked) == 2
    async with serving(wrong, none) as address:
        with pytest.raises(KeyValueError, match=r"^WRONGPASS .*; without a login: NOAUTH There"):
            await login(or_nobody=True).open(address)


async def test_an_idle_connection_that_was_closed_is_not_used_again() -> None:
    async with serving(HELLO, b"+late\r\n") as address:
        wire = await Dialler().open(address)
        assert wire.usable
        await wire.send(b"*1\r\n$4\r\nPING\r\n")
        # A reply that nobody reads is as bad as a closed connection.
        while wire.usable:  # noqa: ASYNC110 - the system sets it
            await trio.sleep(0.001)
        assert await wire.receive() == b"late"
        while wire.usable:  # noqa: ASYNC110 - as above
            await trio.sleep(0.001)
        await wire.aclose()
        assert not wire.usable


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", HandshakeError, "not a RESP reply.*client port"),
        (b"+OK\r\n", HandshakeError, "expected the reply to HELLO, found b'OK'"),
        (b"-WRONGPASS invalid username-password pair\r\n", KeyValueError, "^WRONGPASS"),
        (b"-NOAUTH HELLO must be called\r\n", KeyValueError, "^NOAUTH"),
        (b"-ERR max number of clients reached\r\n", ConnectionRefusedError, "max number"),
        (b"-CLUSTERDOWN no leader\r\n", ConnectionRefusedError, "no leader"),
        (b"", ConnectionResetError, "is it a client port.*TLS needs tls="),
        (b"*1\r\n%1\r\n*0\r\n", HandshakeError, "HELLO|RESP"),
    ],
)
async def test_what_answers_otherwise(reply: bytes, kind: type[Exception], words: str) -> None:
    async with serving(reply) as address:
        with pytest.raises(kind, match=words):
            await Dialler(password="secret").open(address)


async def test_nobody_answers(autojump_clock: MockClock) -> None:
    with pytest.raises(OSError, match=r"[Cc]onnection refused"):
        await Dialler().open(Address("127.0.0.1", 1))
    listener = trio.socket.socket()
    await listener.bind(("127.0.0.1", 0))
    listener.listen()
    with listener, pytest.raises(TimeoutError, match="no answer within 5 s"):
        await Dialler().open(Address(*listener.getsockname()))


class NoNames(trio.abc.HostnameResolver):
    async def getaddrinfo(self, *_args: object, **_options: object) -> NoReturn:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def getnameinfo(self, sockaddr: object, flags: int) -> NoReturn:
        raise NotImplementedError


async def test_a_host_without_an_address() -> None:
    trio.socket.set_custom_hostname_resolver(NoNames())
    with pytest.raises(OSError, match="unknown host: Name or service not known"):
        await Dialler().open(Address("no-such-host", 7000))


async def test_a_reply_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialling, "_MAX_VALUE_BYTES", 1000)
    async with serving(HELLO, b"$5000\r\n" + b"x" * 5000) as address:
        wire = await Dialler().open(address)
        await wire.send(b"*1\r\n$4\r\nPING\r\n")
        with pytest.raises(ConnectionAbortedError, match="a reply of more than 1000 bytes"):
            await wire.receive()
        await wire.aclose()


@pytest.fixture
def tls(tmp_path: Path) -> ClientTls:
    return ClientTls(str(authority().write(tmp_path / "client").ca))


def certified(folder: Path, *names: str) -> ssl.SSLContext:
    """Make the TLS of a server with these names in its certificate."""
    files = authority().write(folder, *names)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    return context


async def test_a_member_is_known_by_its_certificate(tls: ClientTls, tmp_path: Path) -> None:
    context = certified(tmp_path / "member", uri(1))
    async with serving(HELLO, b"+PONG\r\n", tls=context) as address:
        wire = await Dialler(tls=tls).open(address)
        await wire.send(b"*1\r\n$4\r\nPING\r\n")
        assert await wire.receive() == b"PONG"
        await wire.aclose()


async def test_a_certificate_of_somebody_else_is_refused(tls: ClientTls, tmp_path: Path) -> None:
    async with serving(HELLO, tls=certified(tmp_path / "other")) as address:
        with pytest.raises(HandshakeError, match="its certificate is for None: expected that of"):
            await Dialler(tls=tls).open(address)


async def test_tls_at_a_port_without_it(tls: ClientTls) -> None:
    async with serving(HELLO) as address:
        with pytest.raises(HandshakeError, match=f"{address}: TLS: .*is it a port without TLS?"):
            await Dialler(tls=tls).open(address)


def test_a_ca_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r'ca = "nowhere\.crt": it cannot be read'):
        ClientTls("nowhere.crt")
    (tmp_path / "ca.crt").write_text("nothing")
    with pytest.raises(ConfigurationError, match="expected certificates of CAs"):
        ClientTls(str(tmp_path / "ca.crt"))


async def test_a_connection_that_is_reset_at_once_is_a_lost_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def reset(host: str, port: int) -> object:
        stream = await connect(host, port)
        await accepted.wait()
        linger = struct.pack("ii", 1, 0)  # closing it sends a reset
        ends[0].socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        ends[0].socket.close()
        with contextlib.suppress(OSError):
            while stream.extra(anyio.abc.SocketAttribute.raw_socket).getpeername():
                await trio.lowlevel.checkpoint()
        return stream

    async def accept(stream: trio.SocketStream) -> None:
        ends.append(stream)
        accepted.set()
        await trio.sleep_forever()

    connect, ends, accepted = anyio.connect_tcp, list[trio.SocketStream](), trio.Event()
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, accept, 0, host="127.0.0.1"))
        address = Address(*listener.socket.getsockname())
        monkeypatch.setattr(anyio, "connect_tcp", reset)
        with pytest.raises(ConnectionResetError, match="closed by the other end"):
            await Dialler().open(address)
        nursery.cancel_scope.cancel()
