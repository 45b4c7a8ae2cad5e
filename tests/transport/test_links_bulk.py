"""Bulk on links: behind the messages, in a queue of its own, and long frames as signs of life."""

import pytest
import trio

from quorate.transport import ForwardReply, LinkLimits, LogBatch, Message, TcpNetwork, encode
from tests.support.transport_world import (
    Recorder,
    World,
    commit,
    free_addresses,
    make_links,
    numbers,
    simulated,
    world,
)

QUEUE_BYTES = 1 << 20
SMALL = LinkLimits(queue_bytes=QUEUE_BYTES)
HALF = QUEUE_BYTES // 2


def reply(number: int, size: int = 200_000) -> ForwardReply:
    """Make bulk that carries a number; alone it is less than a network in memory takes at once."""
    return ForwardReply(number, 0, bytes(size))


def order(messages: list[Message]) -> list[int]:
    """Give the numbers of messages and bulk as they came, those of bulk negative."""
    return [
        -message.request_id if isinstance(message, ForwardReply) else numbers([message])[0]
        for message in messages
    ]


def fill(w: World, *, limit: int = 1000) -> int:
    """Cut the link and give it bulk until it has no room; return how many."""
    w.network.cut("host0", "host1")
    sent = 0
    while sent < limit and w.links[0].has_room(1):
        sent += 1
        assert w.links[0].send_bulk(1, reply(sent))
    return sent


@simulated
async def test_messages_overtake_bulk_that_waits() -> None:
    async with world(2) as w:
        w.network.cut("host0", "host1")
        for number in (1, 2, 3):  # the first is out, the second is out in part
            assert w.links[0].send_bulk(1, reply(number))
        assert w.links[0].send(1, commit(7))
        assert w.links[0].send_frame(1, encode(commit(8)))
        w.network.heal("host0", "host1")
        await w.recorders[1].until("message", 0, 5)
        assert order(w.recorders[1].messages(0)) == [-1, -2, 7, 8, -3]


@simulated
async def test_a_message_that_is_half_sent_is_finished_before_bulk_and_bulk_before_a_message() -> (
    None
):
    async with world(2) as w:
        w.network.cut("host0", "host1")
        assert w.links[0].send_frame(1, encode(LogBatch(1, 2, bytes(300_000))))
        assert w.links[0].send_bulk(1, reply(1, 300_000))
        w.network.heal("host0", "host1")
        await w.recorders[1].until("message", 0)
        w.network.cut("host0", "host1")  # with the bulk half sent
        assert w.links[0].send(1, commit(7))
        w.network.heal("host0", "host1")
        await w.recorders[1].until("message", 0, 3)
        assert order(w.recorders[1].messages(0)[1:]) == [-1, 7]


@simulated
async def test_bulk_takes_no_room_from_the_live_log() -> None:
    async with world(2, limits=SMALL) as w:
        bulk = fill(w)
        frame = encode(LogBatch(1, 2, bytes(100_000)))
        for _ in range(QUEUE_BYTES // len(frame)):
            assert w.links[0].send_frame(1, frame)
        assert w.links[0].connected(1)
        w.network.heal("host0", "host1")
        await w.recorders[1].until("message", 0, bulk + QUEUE_BYTES // len(frame))


@simulated
async def test_the_live_log_takes_no_room_from_bulk() -> None:
    async with world(2, limits=SMALL) as w:
        w.network.cut("host0", "host1")
        while w.links[0].send(1, commit(1)):
            pass
        assert w.links[0].has_room(1)
        assert w.links[0].send_bulk(1, reply(1))


@simulated
async def test_there_is_room_for_bulk_until_half_a_queue_of_it_waits() -> None:
    async with world(2, limits=SMALL) as w:
        sent = fill(w)
        network = 256 << 10  # what it takes itself
        assert (sent - 1) * 200_000 - network < HALF <= sent * 200_100 - network
        w.network.heal("host0", "host1")
        await w.recorders[1].until("message", 0, sent)
        assert w.links[0].has_room(1)


@simulated
async def test_bulk_that_was_made_is_taken_up_to_a_whole_queue_whatever_its_size() -> None:
    async with world(2, limits=SMALL) as w:
        sent = fill(w)
        while w.links[0].send_bulk(1, reply(sent + 1, 300_000)):
            sent += 1
        assert sent * 300_100 >= QUEUE_BYTES
        w.network.heal("host0", "host1")
        await w.recorders[1].until("message", 0, sent)
        assert w.recorders[1].count("lost", 0) == 0
        assert w.links[0].send_bulk(1, reply(0, 3 * QUEUE_BYTES))
        await w.recorders[1].until("message", 0, sent + 1)


@simulated
async def test_there_is_no_room_without_a_link() -> None:
    async with world(2) as w:
        assert w.links[0].has_room(1)
        w.network.refuse("host1")
        w.links[0].disconnect(1)
        assert not w.links[0].has_room(1)
        assert not w.links[0].send_bulk(1, reply(1))


@simulated
async def test_bulk_is_lost_with_its_connection() -> None:
    async with world(2, limits=SMALL) as w:
        fill(w)
        w.network.break_links("host0", "host1")
        w.network.heal("host0", "host1")
        await w.recorders[0].until("up", 1, 2)
        assert w.links[0].has_room(1)
        assert w.links[0].send_bulk(1, reply(77))
        await w.recorders[1].until("message", 0)
        assert order(w.recorders[1].messages(0)) == [-77]


# --- flushing -------------------------------------------------------------------------------------


@simulated
async def test_a_flush_waits_until_the_network_has_taken_all() -> None:
    async with world(3) as w:
        w.network.cut("host0", "host1")
        assert w.links[0].send_frame(1, encode(LogBatch(1, 2, bytes(1 << 20))))
        assert w.links[0].send_bulk(1, reply(1))
        with trio.move_on_after(10) as scope:
            await w.links[0].flush()
        assert scope.cancelled_caught
        w.network.heal("host0", "host1")
        with trio.fail_after(1):
            await w.links[0].flush()
        w.stop(0)
        await w.recorders[1].until("lost", 0)
        assert len(w.recorders[1].messages(0)) == 2


@simulated
async def test_a_flush_does_not_wait_for_what_is_lost() -> None:
    async with world(2) as w:
        w.network.cut("host0", "host1")
        assert w.links[0].send_bulk(1, reply(1, 1 << 20))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(w.links[0].flush)
            await trio.sleep(1)
            w.network.break_links("host0", "host1")
            with trio.fail_after(0.1):
                await w.links[0].flush()


async def test_what_was_flushed_over_tcp_arrives_although_the_links_end() -> None:
    """The peer begins to read after that; what the kernel has taken it still delivers."""
    addresses = dict(enumerate(free_addresses(2)))
    recorders = {0: Recorder(), 1: Recorder()}
    links = {n: make_links(n, addresses, TcpNetwork(), recorders[n]) for n in addresses}
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            await nursery.start(links[1].run)
            async with trio.open_nursery() as ending:
                await ending.start(links[0].run)
                await recorders[0].until("up", 1)
                for number in (1, 2, 3):
                    assert links[0].send_bulk(1, reply(number, 5 << 20))
                assert links[0].send(1, commit(4))
                await links[0].flush()
                ending.cancel_scope.cancel()
            await recorders[1].until("lost", 0)
            assert sorted(order(recorders[1].messages(0))) == [-3, -2, -1, 4]
            nursery.cancel_scope.cancel()


# --- signs of life --------------------------------------------------------------------------------


@simulated
async def test_each_part_of_a_long_message_is_a_sign_of_life() -> None:
    async with world(2) as w:
        w.network.cut("host0", "host1")
        assert w.links[0].send_bulk(1, reply(1, 1 << 20))
        w.network.heal("host0", "host1")
        await w.recorders[1].until("message", 0)
        signs = [e.time for e in w.recorders[1].events if e.kind == "receiving"]
        assert len(signs) > 5
        [arrived] = [e.time for e in w.recorders[1].events if e.kind == "message"]
        assert signs[0] < arrived - 0.002
        assert signs[-1] <= arrived


@simulated
@pytest.mark.parametrize("count", [1, 1000])
async def test_a_message_that_comes_whole_is_no_sign_but_itself(count: int) -> None:
    async with world(2) as w:
        for number in range(count):
            assert w.links[0].send(1, commit(number))
            if number % 10 == 0:
                await trio.sleep(0.01)
        await w.recorders[1].until("message", 0, count)
        assert w.recorders[1].count("receiving", 0) == 0
