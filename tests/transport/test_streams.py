"""Streams: catch-up and replay connections, with flow control."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
import trio.testing

from quorate.errors import HandshakeError, WireError
from quorate.transport import (
    Address,
    Connection,
    FrameStream,
    Hello,
    LogBatch,
    ReplayRequest,
    StreamPurpose,
    TcpNetwork,
    encode,
    open_stream,
)
from quorate.transport.streams import joined
from quorate.transport.testing import MemoryNetwork
from tests.support.transport_world import (
    Recorder,
    address,
    commit,
    free_addresses,
    hello,
    make_links,
    simulated,
    world,
)

BATCH = LogBatch(1, 2, bytes(100_000))


async def send_batches(_hello: Hello, stream: FrameStream) -> None:
    """Serve a replay: as many batches as the request's stop position says."""
    request = await stream.receive()
    assert isinstance(request, ReplayRequest)
    for number in range(request.stop_position):
        await stream.send(LogBatch(1, number, BATCH.batch))


async def sleep(_connection: Connection) -> None:
    await trio.sleep_forever()


async def replay(stream: FrameStream, count: int) -> list[int]:
    async with stream:
        await stream.send(ReplayRequest(0, count))
        found = list[int]()
        while (message := await stream.receive()) is not None:
            assert isinstance(message, LogBatch)
            found.append(message.confirm_id)
        return found


@simulated
async def test_a_member_replays_from_another_and_the_end_is_in_order() -> None:
    async with world(2, on_stream=send_batches) as w:
        stream = await w.links[0].open_stream(1, purpose=StreamPurpose.REPLAY)
        assert await replay(stream, 30) == list(range(30))


@simulated
async def test_a_client_that_is_no_member_may_open_a_replay() -> None:
    async with world(1, on_stream=send_batches) as w:
        client = hello(-1, purpose=StreamPurpose.REPLAY)
        stream = await open_stream(w.network.host("tool"), address(0), client)
        assert await replay(stream, 3) == [0, 1, 2]


@simulated
async def test_small_messages_travel_together_and_large_ones_alone() -> None:
    sizes = (10, 100_000, 100_000, 100_000, 300_000, 20, 10)
    batches = [LogBatch(1, number, bytes(size)) for number, size in enumerate(sizes)]

    async def send(_hello: Hello, stream: FrameStream) -> None:
        await stream.send_many(())
        await stream.send_many(batches)

    assert [len(sent) // 100_000 for sent in joined(map(encode, batches))] == [2, 1, 3, 0]
    assert [len(sent) for sent in joined([b"x"] * 130)] == [64, 64, 2]
    async with world(2, on_stream=send) as w:
        stream = await w.links[0].open_stream(address(1), purpose=StreamPurpose.CATCHUP)
        async with stream:
            assert [await stream.receive() for _ in batches] == batches
            assert await stream.receive() is None


@simulated
async def test_what_came_with_a_message_needs_no_wait() -> None:
    small = [LogBatch(1, number, b"small") for number in range(3)]

    async def send(_hello: Hello, stream: FrameStream) -> None:
        await stream.send_many(small)
        await trio.sleep(1)
        await stream.send(small[0])

    async with world(2, on_stream=send) as w:
        stream = await w.links[0].open_stream(address(1), purpose=StreamPurpose.CATCHUP)
        async with stream:
            assert await stream.receive() == small[0]
            assert [stream.receive_nowait() for _ in range(3)] == [*small[1:], None]
            assert await stream.receive() == small[0]
            assert stream.receive_nowait() is None


@simulated
async def test_the_server_of_a_stream_sees_the_hello() -> None:
    heard = list[Hello]()

    async def hear(hello: Hello, stream: FrameStream) -> None:
        heard.append(hello)
        await stream.send(BATCH)  # at once, with the answer to the hello

    async with world(2, on_stream=hear) as w:
        stream = await w.links[0].open_stream(
            address(1), purpose=StreamPurpose.CATCHUP, log_session_id=5, join_position=4096
        )
        async with stream:
            assert await stream.receive() == BATCH
            assert await stream.receive() is None
        (found,) = heard
        assert (found.member_id, found.purpose) == (0, StreamPurpose.CATCHUP)
        assert (found.log_session_id, found.join_position) == (5, 4096)
        assert found.called_member_id == -1


@simulated
async def test_a_slow_reader_holds_up_the_writer() -> None:
    sent = 0

    async def count(_hello: Hello, stream: FrameStream) -> None:
        nonlocal sent
        while sent < 100:
            await stream.send(BATCH)
            sent += 1

    async with (
        world(2, on_stream=count) as w,
        await w.links[0].open_stream(1, purpose=StreamPurpose.CATCHUP) as stream,
    ):
        await trio.sleep(10)
        assert sent <= 3  # as much as the network itself holds
        for received in range(100):
            assert await stream.receive() == BATCH
            assert sent <= received + 8
            await trio.sleep(0.1)
        assert await stream.receive() is None


async def test_forty_megabytes_through_a_slow_reader_over_tcp() -> None:
    sent = 0

    async def count(_hello: Hello, stream: FrameStream) -> None:
        nonlocal sent
        while sent < 400:
            await stream.send(BATCH)
            sent += 1

    (here,) = free_addresses(1)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            addresses = {0: here, 1: here}
            await nursery.start(make_links(0, addresses, TcpNetwork(), Recorder(count)).run)
            wish = hello(1, purpose=StreamPurpose.CATCHUP, called_member_id=0)
            async with await open_stream(TcpNetwork(), here, wish) as stream:
                assert await stream.receive() == BATCH
                await trio.testing.wait_all_tasks_blocked(0.02)
                assert sent < 300  # the kernel holds some megabytes, this process nothing
                for _ in range(399):
                    assert await stream.receive() == BATCH
                assert await stream.receive() is None
            nursery.cancel_scope.cancel()


@simulated
async def test_both_ends_may_send() -> None:
    async def echo(_hello: Hello, stream: FrameStream) -> None:
        while (message := await stream.receive()) is not None:
            await stream.send(message)

    async with (
        world(2, on_stream=echo) as w,
        await w.links[0].open_stream(1, purpose=StreamPurpose.CATCHUP) as stream,
    ):
        for number in range(10):
            await stream.send(commit(number))
            assert await stream.receive() == commit(number)


@asynccontextmanager
async def stream_of(answer: Callable[[Connection], Awaitable[None]]) -> AsyncGenerator[FrameStream]:
    """Give a stream to a hand-made peer."""
    network = MemoryNetwork(Random(0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(network.host("peer").serve, Address("peer", 1), answer)
        await trio.testing.wait_all_tasks_blocked()
        stream = FrameStream(await network.host("x").connect(Address("peer", 1)))
        async with stream:
            yield stream
        nursery.cancel_scope.cancel()


@simulated
async def test_an_end_within_a_frame_is_an_error() -> None:
    async def half(connection: Connection) -> None:
        connection.send_nowait(encode(commit(1)) + encode(commit(2))[:-1])

    async with stream_of(half) as stream:
        assert await stream.receive() == commit(1)
        with pytest.raises(WireError, match="ended the stream inside a frame"):
            await stream.receive()


@simulated
async def test_a_hello_in_the_middle_is_an_error() -> None:
    async def again(connection: Connection) -> None:
        connection.send_nowait(encode(hello(1)))

    async with stream_of(again) as stream:
        with pytest.raises(WireError, match="sent a Hello in the middle"):
            await stream.receive()


@simulated
async def test_a_stream_that_is_closed_here_says_so() -> None:
    async with stream_of(sleep) as stream:
        async with trio.open_nursery() as nursery:

            async def closed() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await stream.receive()

            nursery.start_soon(closed)
            await trio.testing.wait_all_tasks_blocked()
            stream.close()
        with pytest.raises(trio.ClosedResourceError):
            await stream.receive()
        with pytest.raises(trio.ClosedResourceError):
            await stream.send(commit(1))


@simulated
async def test_a_cancelled_send_closes_the_stream() -> None:
    async with stream_of(sleep) as stream:
        with trio.move_on_after(1) as scope:
            while True:
                await stream.send(BATCH)
        assert scope.cancelled_caught
        with pytest.raises(trio.ClosedResourceError):
            await stream.send(commit(1))


@simulated
async def test_a_reset_breaks_the_stream_and_not_the_member() -> None:
    async def wait(_hello: Hello, stream: FrameStream) -> None:
        async with trio.open_nursery() as nursery:  # so that the error comes in a group
            nursery.start_soon(stream.receive)

    async with world(2, on_stream=wait) as w:
        async with await w.links[0].open_stream(1, purpose=StreamPurpose.CATCHUP) as stream:
            w.network.break_links("host0", "host1")
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive()
        await w.recorders[0].until("up", 1, 2)


@simulated
async def test_a_bug_in_a_stream_handler_ends_run() -> None:
    async def fail(hello: Hello, _stream: FrameStream) -> None:
        raise ZeroDivisionError(hello.member_id)

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with (
            world(2, on_stream=fail) as w,
            await w.links[0].open_stream(1, purpose=StreamPurpose.CATCHUP) as stream,
        ):
            await stream.receive()
            await trio.sleep(1)


@simulated
async def test_a_stream_that_is_refused_raises() -> None:
    async with world(2) as w:
        with pytest.raises(HandshakeError, match="called member"):
            await open_stream(
                w.network.host("host0"),
                address(1),
                hello(0, purpose=StreamPurpose.CATCHUP, called_member_id=5),
            )
        with pytest.raises(ConnectionRefusedError):
            await w.links[0].open_stream(Address("host1", 9), purpose=StreamPurpose.REPLAY)
