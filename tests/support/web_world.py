"""A web server in memory, and requests to it."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

import attrs
import trio

from quorate.transport import Address, Connection
from quorate.transport.streams import send_all
from quorate.transport.testing.memory_network import MemoryHost, MemoryNetwork
from quorate.web.answers import Answer, Asked, Stream
from quorate.web.server import WebServer

PLACE = Address("web", 80)


@attrs.frozen
class Reply:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes


class Browser:
    """Asks a web server, over connections in memory."""

    def __init__(self, network: MemoryHost, place: Address = PLACE) -> None:
        self.network = network
        self.place = place

    async def connect(self) -> Connection:
        return await self.network.connect(self.place)

    async def raw(self, data: bytes, *, within: float = 60.0) -> bytes:
        """Send bytes; return all that comes until the server closes."""
        connection = await self.connect()
        received = b""
        try:
            with trio.fail_after(within):
                if data:
                    await send_all(connection, data)
                while more := await connection.receive(1 << 16):
                    received += more
        except trio.BrokenResourceError:
            pass
        finally:
            connection.close()
        return received

    async def ask(self, target: str, *lines: str, method: str = "GET") -> Reply:
        """Make one request, and close."""
        head = [f"{method} {target} HTTP/1.1", "host: localhost", "connection: close", *lines]
        return parsed(await self.raw("\r\n".join([*head, "", ""]).encode()))


def parsed(answer: bytes) -> Reply:
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return Reply(int(first.split()[1]), headers, body)


@asynccontextmanager
async def open_web(
    answer: Callable[[Asked], Awaitable[Answer | Stream]],
    *,
    knows: Callable[[Asked], bool] = lambda _asked: False,
) -> AsyncGenerator[Browser]:
    """Serve for the length of a block."""
    network = MemoryNetwork(Random(1))
    server = WebServer(answer, knows=knows)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run, network.host("web"), PLACE)
        yield Browser(network.host("browser"))
        nursery.cancel_scope.cancel()
