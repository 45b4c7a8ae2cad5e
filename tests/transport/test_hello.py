"""The hello: who is refused, and that both sides say why."""

import logging
from random import Random

import pytest
import trio

from quorate.errors import HandshakeError, WireError
from quorate.transport import (
    PROTOCOL_VERSION,
    Connection,
    FrameStream,
    Hello,
    HelloReply,
    HelloStatus,
    LinkLimits,
    StopCatchup,
    StreamPurpose,
    encode,
    open_stream,
)
from quorate.transport.testing import MemoryNetwork
from tests.support.transport_world import (
    Recorder,
    address,
    commit,
    hello,
    make_links,
    simulated,
    stranger,
    world,
)

REFUSALS = [
    (
        hello(1, cluster="other"),
        HelloStatus.WRONG_CLUSTER,
        "cluster 'other', expected 'test'",
    ),
    (
        hello(1, protocol_version=1 << 16),
        HelloStatus.WRONG_VERSION,
        "protocol version 1, expected 3",
    ),
    (hello(7), HelloStatus.WRONG_MEMBER, "member 7, expected one of 1, 2"),
    (
        hello(0),
        HelloStatus.WRONG_MEMBER,
        "member 0 for CONSENSUS, expected the id of another member",
    ),
    (
        hello(-1),
        HelloStatus.WRONG_MEMBER,
        "member -1 for CONSENSUS, expected the id of another member",
    ),
    (
        hello(-1, purpose=StreamPurpose.CATCHUP),
        HelloStatus.WRONG_MEMBER,
        "member -1 for CATCHUP, expected the id of another member",
    ),
    (
        hello(1, called_member_id=2),
        HelloStatus.WRONG_MEMBER,
        "called member 2, this is member 0",
    ),
]


@pytest.mark.parametrize(("wrong", "status", "reason"), REFUSALS)
def test_a_hello_of_someone_else_is_refused_and_both_sides_know_why(
    wrong: Hello, status: HelloStatus, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    @simulated
    async def check() -> None:
        async with trio.open_nursery() as nursery:
            network, recorder = MemoryNetwork(Random(0)), Recorder()
            addresses = {number: address(number) for number in range(3)}
            await nursery.start(make_links(0, addresses, network.host("host0"), recorder).run)
            for _ in range(3):
                odd = await stranger(network.host("odd"), address(0), wrong)
                assert await odd.reply() == HelloReply(0, status, reason, 100)
                assert await odd.ends()
            with pytest.raises(HandshakeError, match=f"refused us: {reason}"):
                await open_stream(network.host("odd"), address(0), wrong)
            assert recorder.events == []
            nursery.cancel_scope.cancel()

    check()
    assert caplog.text.count(reason) == 1  # it was refused four times


@simulated
async def test_another_minor_version_is_accepted() -> None:
    async with world(1) as w:
        recorder, host = Recorder(), w.network.host("host5")
        addresses = {5: address(5), 1: address(1)}
        await w.nursery.start(make_links(5, addresses, host, recorder).run)
        newer = hello(1, protocol_version=PROTOCOL_VERSION + 3)
        made = await stranger(w.network.host("host1"), address(5), newer, commit(1))
        reply = await made.reply()
        assert reply is not None
        assert reply.status is HelloStatus.ACCEPTED
        await recorder.until("message", 1)


@simulated
async def test_members_of_another_history_are_refused_once_ones_own_is_known() -> None:
    async with world(1) as w:
        host, recorder = w.network.host("host5"), Recorder()
        links = make_links(5, {5: address(5), 1: address(1), 2: address(2)}, host, recorder)
        await w.nursery.start(links.run)
        made = [
            await stranger(w.network.host(f"x{i}"), address(5), hello(i, history=i), commit(1))
            for i in (1, 2)
        ]
        for each, member in zip(made, (1, 2), strict=True):
            reply = await each.reply()
            assert reply is not None
            assert reply.status is HelloStatus.ACCEPTED
            await recorder.until("message", member)
        links.set_history(1)
        await recorder.until("lost", 2)
        assert await made[1].ends()
        assert recorder.count("lost", 1) == 0
        again = await stranger(w.network.host("x2"), address(5), hello(2, history=2))
        reply = await again.reply()
        assert reply is not None
        assert reply.status is HelloStatus.WRONG_CLUSTER
        unknowing = await stranger(w.network.host("x2"), address(5), hello(2))
        reply = await unknowing.reply()
        assert reply is not None
        assert reply.status is HelloStatus.ACCEPTED


def test_a_dialler_that_is_refused_says_so_once_and_backs_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "quorate.transport")

    @simulated
    async def check() -> None:
        async with world(1) as w:
            await w.start(1, 2, cluster="other")
            await w.start(2, 3)
            await trio.sleep(60)
            assert w.recorders[1].events == []

    check()
    text = "no link to member 0 at host0:7000: host0:7000 (member 0) refused us:"
    assert caplog.text.count(f"{text} cluster 'other', expected 'test'") == 1
    assert caplog.text.count(f"{text} member 2, expected one of none") == 1
    assert caplog.text.count("refused CONSENSUS from member 1: cluster 'other', expected") == 1
    assert caplog.text.count("refused CONSENSUS from member 2: member 2, expected one of") == 1


@simulated
async def test_a_dialler_accepts_only_the_member_that_it_called() -> None:
    async def answer(connection: Connection) -> None:
        await connection.receive(1000)
        reply = HelloReply(7, HelloStatus.ACCEPTED, "", 1)
        connection.send_nowait(encode(reply))
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(Random(0))
        nursery.start_soon(network.host("host1").serve, address(1), answer)
        with pytest.raises(HandshakeError, match="is member 7, expected member 1"):
            await open_stream(network.host("x"), address(1), hello(0, called_member_id=1))
        async with await open_stream(network.host("x"), address(1), hello(0)) as stream:
            assert stream.peer == "host1:7000"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([b""], trio.BrokenResourceError),
        ([encode(StopCatchup(1, 2))], WireError),
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], WireError),
        ([encode(hello(1))], WireError),
        ([], trio.TooSlowError),
    ],
)
def test_other_answers_than_a_reply_are_refused(
    answers: list[bytes], error: type[Exception]
) -> None:
    @simulated
    async def check() -> None:
        async def answer(connection: Connection) -> None:
            await connection.receive(1000)
            for data in answers:
                connection.send_nowait(data)
            if not answers:
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            network = MemoryNetwork(Random(0))
            nursery.start_soon(network.host("host1").serve, address(1), answer)
            with pytest.raises(error):
                await open_stream(network.host("x"), address(1), hello(0))
            nursery.cancel_scope.cancel()

    check()


@simulated
async def test_a_dial_into_a_cut_network_ends_after_two_seconds() -> None:
    network = MemoryNetwork(Random(0))
    network.cut("x", "host1")
    before = trio.current_time()
    with pytest.raises(trio.TooSlowError):
        await open_stream(network.host("x"), address(1), hello(0))
    assert trio.current_time() - before == pytest.approx(2.0)


@simulated
async def test_a_connection_without_a_hello_is_closed_after_five_seconds() -> None:
    async with world(1) as w:
        silent = await stranger(w.network.host("x"), address(0))
        slow = await stranger(w.network.host("x"), address(0), encode(hello(1))[:20])
        before = trio.current_time()
        assert await silent.ends()
        assert await slow.ends()
        assert trio.current_time() - before == pytest.approx(5.0, abs=0.01)


@simulated
async def test_connections_without_a_hello_give_way_to_newer_ones() -> None:
    limits = LinkLimits(pending_hellos=3)
    async with world(2, limits=limits) as w:
        silent = [await stranger(w.network.host("x"), address(0)) for _ in range(3)]
        newer = await stranger(w.network.host("x"), address(0))
        assert await silent[0].ends()
        assert trio.current_time() < 1.0
        await newer.send(encode(hello(7)))
        assert await newer.reply()
        assert w.links[1].send(0, commit(1))
        await w.recorders[0].until("message", 1)
        for connection in silent[1:]:
            assert await connection.ends()


@simulated
async def test_a_host_with_many_silent_connections_takes_no_room_from_another() -> None:
    async with world(1, limits=LinkLimits(pending_hellos=3)) as w:
        slow = await stranger(w.network.host("y"), address(0), encode(hello(1))[:20])
        silent = [await stranger(w.network.host("x"), address(0)) for _ in range(20)]
        for connection in silent[:-2]:
            assert await connection.ends()
        assert trio.current_time() < 1.0
        await slow.send(encode(hello(1))[20:])
        reply = await slow.reply()
        assert reply is not None
        assert "expected one of none" in reply.reason


@simulated
async def test_a_member_that_starts_gets_in_in_spite_of_silent_connections() -> None:
    async with world(2) as w:
        w.stop(1)
        await w.recorders[0].until("lost", 1)

        async def open_again_and_again() -> None:
            while True:
                await stranger(w.network.host("x"), address(0))

        for _ in range(70):
            await stranger(w.network.host("x"), address(0))
        w.nursery.start_soon(open_again_and_again)
        before = trio.current_time()
        await w.start(1, 2)
        await w.recorders[0].until("up", 1, 2)
        assert w.links[1].send(0, commit(1))
        await w.recorders[0].until("message", 1)
        assert trio.current_time() < before + 1.0


@simulated
async def test_streams_of_one_asker_are_limited_in_number() -> None:
    async def wait(_hello: Hello, stream: FrameStream) -> None:
        await stream.receive()

    async with world(2, limits=LinkLimits(streams=2), on_stream=wait) as w:
        network, nobody = w.network.host("x"), hello(-1, purpose=StreamPurpose.REPLAY)
        one = await open_stream(network, address(0), nobody)
        await open_stream(network, address(0), nobody)
        with pytest.raises(HandshakeError, match="2 streams are open already"):
            await open_stream(network, address(0), nobody)
        await open_stream(network, address(0), hello(1, purpose=StreamPurpose.REPLAY))
        one.close()
        await trio.sleep(0.1)
        await open_stream(network, address(0), nobody)


@simulated
async def test_a_long_reason_is_cut_to_what_a_reply_carries() -> None:
    async with world(1) as w:
        odd = await stranger(w.network.host("x"), address(0), hello(1, cluster="é" * 128))
        reply = await odd.reply()
        assert reply is not None
        assert reply.status is HelloStatus.WRONG_CLUSTER
        assert 250 <= len(reply.reason.encode()) <= 256
