"""A web port with TLS: browsers show no certificate, and new files are taken into use."""

import ssl
from contextlib import suppress
from pathlib import Path
from random import Random

import trio
import trio.testing

from quorate.transport import Address, Purpose
from quorate.transport.streams import send_all
from quorate.transport.testing import MemoryNetwork
from quorate.transport.tls import TlsConnection, load_material
from quorate.web.answers import Answer, Asked, text
from quorate.web.server import MOST_CONNECTIONS, WebServer
from tests.support.certificates import authority, client_context, uri

Clock = trio.testing.MockClock

PLACE = Address("web", 443)
GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


def context_of(folder: Path, name: str) -> ssl.SSLContext:
    files = authority().write(folder / name, uri(0))
    made = load_material(files, cluster="test", purposes=(Purpose.MEMBER,), web=True)
    assert made.web is not None
    assert made.port is None
    return made.web


async def answer(_asked: Asked) -> Answer:
    await trio.lowlevel.checkpoint()
    return text(200, "hello")


async def asked(connection: TlsConnection) -> bytes:
    await send_all(connection, GET)
    return await connection.receive(10_000)


async def test_browsers_speak_tls(tmp_path: Path, autojump_clock: Clock) -> None:
    contexts = [context_of(tmp_path, "new"), context_of(tmp_path, "old")]
    network, turns = MemoryNetwork(Random(1)), trio.Lock()
    host = network.host("browser")
    server = WebServer(answer, tls=lambda: contexts[-1])
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run, network.host("web"), PLACE)

        async def connected() -> TlsConnection:
            connection = TlsConnection(await host.connect(PLACE), client_context(), server=False)
            await connection.shake_hands(turns, certified=False)
            assert (await asked(connection)).endswith(b"hello\n")
            return connection

        first = await connected()
        contexts.pop()
        second = await connected()
        certificates = {each._tls.getpeercert(binary_form=True) for each in (first, second)}  # pyright: ignore[reportPrivateUsage]
        # The port has another certificate now, and the open connection goes on.
        assert len(certificates) == 2
        assert (await asked(first)).endswith(b"hello\n")
        first.close()
        # Those that speak no TLS, or say nothing, do not keep the others out.
        for data in (GET, b"\x16\x03\x01"):
            for _ in range(MOST_CONNECTIONS):
                stranger = await host.connect(PLACE)
                with suppress(trio.BrokenResourceError):  # one too many
                    stranger.send_nowait(data)
        await trio.sleep(6)
        await connected()
        nursery.cancel_scope.cancel()
