"""The JSON gateway over connections in memory, and a client of it."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import attrs
import h11
import trio
from trio.testing import lockstep_stream_pair, memory_stream_pair

from quorate.etcd.gateway.server import serve
from quorate.etcd.services.context import PortContext
from tests.support.etcd_world import EtcdWorld

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from quorate.etcd.services.call import Users


@attrs.frozen
class Reply:
    """What came back.

    Attributes:
        chunks: the body as it came, piece by piece.
    """

    status: int
    headers: dict[str, str]
    chunks: list[bytes]

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(chunk) for chunk in self.chunks]


class Client:
    """One connection to a gateway."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.http = h11.Connection(h11.CLIENT)

    async def send(self, *events: h11.Event) -> None:
        for event in events:
            await self.stream.send_all(self.http.send(event) or b"")

    async def next(self) -> Any:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(bytes(await self.stream.receive_some(1 << 16)))
        return event

    async def begin(self, path: str, body: bytes, *lines: tuple[str, str]) -> None:
        """Send a whole request."""
        head = [("host", "localhost"), ("content-length", str(len(body))), *lines]
        await self.send(
            h11.Request(method="POST", target=path, headers=head), h11.Data(data=body),
            h11.EndOfMessage(),
        )  # fmt: skip

    async def rest(self) -> Reply:
        """Return the answer."""
        response = await self.next()
        assert isinstance(response, h11.Response), response
        chunks: list[bytes] = []
        while isinstance(event := await self.next(), h11.Data):
            chunks.append(bytes(event.data))
        headers = {name.decode(): value.decode() for name, value in response.headers}
        if self.http.our_state is h11.DONE and self.http.their_state is h11.DONE:
            self.http.start_next_cycle()
        return Reply(response.status_code, headers, chunks)

    async def post(self, path: str, body: object, *lines: tuple[str, str]) -> Reply:
        """Make a call and return its answer; text is sent as it is."""
        data = body if isinstance(body, str) else json.dumps(body)
        await self.begin(path, data.encode(), *lines)
        return await self.rest()

    async def get(self, path: str, *, method: str = "GET") -> Reply:
        """Ask for a page."""
        await self.send(
            h11.Request(method=method, target=path, headers=[("host", "localhost")]),
            h11.EndOfMessage(),
        )
        return await self.rest()

    async def line(self) -> Any:
        """Return the next line of a stream; None at its end."""
        event = await self.next()
        if isinstance(event, h11.Response):
            assert event.status_code == 200
            event = await self.next()
        return json.loads(bytes(event.data)) if isinstance(event, h11.Data) else None


@attrs.define
class Gateway:
    """A gateway, and the world behind it.

    Attributes:
        lost: why connections ended, as far as it was an error.
    """

    world: EtcdWorld
    context: PortContext
    nursery: trio.Nursery
    lost: list[Exception] = attrs.field(factory=list[Exception])
    open: int = 0

    def connect(self, *, bounded: bool = False) -> Client:
        """Open a connection; a bounded one takes what is sent only as it is read."""
        client, server = lockstep_stream_pair() if bounded else memory_stream_pair()
        self.nursery.start_soon(self._serve, server)
        return Client(client)

    async def _serve(self, stream: trio.abc.Stream) -> None:
        self.open += 1
        try:
            await serve(stream, self.context)
        except (trio.BrokenResourceError, trio.TooSlowError) as error:
            self.lost.append(error)
        finally:
            self.open -= 1
            await trio.aclose_forcefully(stream)

    async def post(self, path: str, body: object, *lines: tuple[str, str]) -> Reply:
        """Make a call on a connection of its own."""
        return await self.connect().post(path, body, *lines)


@asynccontextmanager
async def open_gateway(users: Users | None = None) -> AsyncGenerator[Gateway]:
    """Open a gateway, whose connections are served until it is left."""
    async with EtcdWorld.opened() as world, trio.open_nursery() as nursery:
        context = PortContext(world.backend, world.hub, figures=lambda: "up 1\n")
        if users is not None:
            context = attrs.evolve(context, users=users)
        yield Gateway(world, context, nursery)
        nursery.cancel_scope.cancel()
