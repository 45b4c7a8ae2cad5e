"""The bounds of one connection of HTTP/1.1, whatever its client sends at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import trio

from quorate.etcd.gateway.answers import JSON_HEADERS, Answer
from quorate.etcd.gateway.talk import Talk

if TYPE_CHECKING:
    from trio.testing import MockClock

REQUEST = b"POST /v3/auth/status HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"


class Endless:
    """A client that sends requests without end and takes all answers."""

    def __init__(self) -> None:
        self.sent = 0

    async def receive_some(self, most: int) -> bytes:
        await trio.lowlevel.checkpoint()
        data = (REQUEST * (most // len(REQUEST) + 2))[self.sent % len(REQUEST) :][:most]
        self.sent += len(data)
        return data

    async def send_all(self, _data: bytes) -> None:
        await trio.lowlevel.checkpoint()


async def test_a_client_that_sends_ahead_is_read_as_its_requests_are_answered(
    autojump_clock: MockClock,
) -> None:
    client = Endless()
    talk = Talk(cast("trio.abc.Stream", client))
    for answered in range(1, 1501):
        assert await talk.request() is not None
        assert await talk.body() == b"{}"
        with trio.move_on_after(0.1):
            await talk.until_gone()
        await talk.send(Answer(200, b"{}"))
        assert talk.again()
        assert client.sent - answered * len(REQUEST) <= 1 << 16
    assert client.sent > 1 << 16, "all of the first piece was answered, and more"


async def test_a_long_stream_of_pieces_leaves_others_their_turns() -> None:
    near, far = map(trio.SocketStream, trio.socket.socketpair())
    pieces, turns = 100, 0
    async with near, far, trio.open_nursery() as nursery:
        talk = Talk(far)
        await near.send_all(REQUEST)
        assert await talk.request() is not None
        assert await talk.body() == b"{}"
        await talk.begin(200, JSON_HEADERS)

        async def send() -> None:
            for _ in range(pieces):
                await talk.send_piece(b"{}\n")
            nursery.cancel_scope.cancel()

        nursery.start_soon(send)
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1
    assert turns >= pieces - 1
