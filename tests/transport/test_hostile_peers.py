"""Whatever a connection sends, the member and its other links go on."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.transport import (
    Connection,
    ForwardRequest,
    HelloReply,
    HelloStatus,
    StopCatchup,
    StreamPurpose,
    encode,
)
from tests.support.transport_world import World, address, commit, hello, simulated, stranger, world

GREETING = encode(hello(2))
HUGE = struct.pack("<IBBHI", 0xFFFF_FFFF, 112, 1, 0, 0)

BEFORE_HELLO = {
    "nothing": b"",
    "zeros": bytes(2000),
    "http": b"GET / HTTP/1.1\r\nHost: example\r\n\r\n",
    "huge length": HUGE,
    "a large frame": encode(ForwardRequest(1, 2, 3, bytes(5000))),
    "another message": encode(StopCatchup(1, 2)),
    "a reply": encode(HelloReply(2, HelloStatus.ACCEPTED, "", 1)),
    "half a hello": GREETING[:20],
    "a hello with a flipped bit": GREETING[:30] + bytes([GREETING[30] ^ 4]) + GREETING[31:],
}
AFTER_HELLO = {
    "huge length": HUGE,
    "garbage": bytes(range(256)),
    "a second hello": GREETING,
    "a reply": encode(HelloReply(2, HelloStatus.ACCEPTED, "", 1)),
    "half a frame": encode(commit(1))[:-1],
    "an unknown type": struct.pack("<IBBHI", 0, 200, 1, 0, 0),
}


async def assert_links_work(w: World) -> None:
    """Check that members 0 and 1 still talk over the links that they had."""
    before = [w.recorders[member].count("message", 1 - member) for member in (0, 1)]
    for member in (0, 1):
        assert w.links[member].send(1 - member, commit(5))
        await w.recorders[1 - member].until("message", member, before[1 - member] + 1)
        assert w.recorders[member].count("lost", 1 - member) == 0


@pytest.mark.parametrize("name", BEFORE_HELLO)
def test_bytes_before_a_hello_end_only_their_connection(name: str) -> None:
    @simulated
    async def check() -> None:
        async with world(2) as w:
            made = await stranger(w.network.host("x"), address(0), BEFORE_HELLO[name])
            assert await made.reply() is None
            await assert_links_work(w)

    check()


@pytest.mark.parametrize("name", AFTER_HELLO)
def test_bytes_after_a_hello_end_only_their_link(name: str) -> None:
    @simulated
    async def check() -> None:
        async with world(3) as w:
            recorder = w.recorders[0]
            w.stop(2)
            await recorder.until("lost", 2)
            made = await stranger(w.network.host("x"), address(0), GREETING)
            assert await made.reply()
            await made.send(encode(commit(1)))
            await recorder.until("message", 2)
            await made.send(AFTER_HELLO[name])
            if name == "half a frame":
                made.connection.close()
            await recorder.until("lost", 2, 2)
            assert recorder.messages(2) == [commit(1)]
            await assert_links_work(w)

    check()


@settings(deadline=None)
@given(st.binary(max_size=100), st.booleans())
def test_arbitrary_bytes_end_nothing_but_their_connection(
    data: bytes,
    greets: bool,  # noqa: FBT001
) -> None:
    @simulated
    async def check() -> None:
        async with world(2) as w:
            start = [encode(hello(-1, purpose=StreamPurpose.CATCHUP))] if greets else []
            made = await stranger(w.network.host("x"), address(0), *start, data)
            made.connection.close()
            await assert_links_work(w)

    check()


@simulated
async def test_a_peer_that_answers_its_link_is_dialled_anew() -> None:
    accepted = list[str]()

    async def chatter(connection: Connection) -> None:
        await connection.receive(1000)
        reply = encode(HelloReply(1, HelloStatus.ACCEPTED, "", 1))
        connection.send_nowait(reply)
        accepted.append(connection.peer)
        if len(accepted) == 1:
            connection.send_nowait(b"x")
        if len(accepted) == 2:
            connection.send_nowait(encode(commit(1)))
        await connection.receive(1000)

    async with world(1) as w:
        w.nursery.start_soon(w.network.host("host1").serve, address(1), chatter)
        await w.start(2, 3)
        await w.recorders[2].until("up", 1, 3)
