"""Links between members: order, back-pressure, replacement, and what breaks them."""

from itertools import pairwise
from random import Random

import pytest
import trio
import trio.testing

from quorate.errors import ConfigurationError
from quorate.transport import Address, Connection, LinkLimits, LogBatch, Message, TcpNetwork, encode
from quorate.transport.network import TcpConnection
from quorate.transport.testing import MemoryNetwork
from quorate.transport.testing.memory_network import MemoryConnection, MemoryHost
from tests.support.transport_world import (
    Recorder,
    Stranger,
    address,
    commit,
    free_addresses,
    hello,
    make_links,
    numbers,
    simulated,
    stranger,
    world,
)

SMALL = LinkLimits(queue_bytes=1 << 20)


@simulated
async def test_every_member_gets_a_link_to_every_other() -> None:
    async with world(3) as w:
        for member in range(3):
            for other in range(3):
                if other != member:
                    assert w.links[member].connected(other)
                    assert not w.links[member].refused(other)


@simulated
async def test_messages_arrive_in_order() -> None:
    async with world(2, jitter=0.01) as w:
        for number in range(1000):
            assert w.links[0].send(1, commit(number))
        await w.recorders[1].until("message", 0, 1000)
        assert numbers(w.recorders[1].messages(0)) == list(range(1000))


@simulated
async def test_a_broadcast_reaches_every_peer_and_not_the_sender() -> None:
    async with world(3) as w:
        w.links[1].broadcast(commit(7))
        for other in (0, 2):
            await w.recorders[other].until("message", 1)
            assert w.recorders[other].messages(1) == [commit(7)]
        assert w.recorders[1].messages(1) == []


@simulated
async def test_messages_that_wait_keep_their_order_with_a_live_log_among_them() -> None:
    async with world(2) as w:
        w.network.cut("host0", "host1")
        expected = [
            commit(number) if number % 3 else LogBatch(1, number, bytes(number * 100))
            for number in range(200)
        ]
        for message in expected:
            if isinstance(message, LogBatch):
                assert w.links[0].send_frame(1, encode(message))
            else:
                assert w.links[0].send(1, message)
        w.network.heal("host0", "host1")
        await w.recorders[1].until("message", 0, 200)
        assert w.recorders[1].messages(0) == expected


@simulated
async def test_a_full_queue_drops_messages_and_keeps_the_link() -> None:
    tiny = LinkLimits(queue_bytes=100_000)
    async with world(2, limits=tiny) as w:
        w.network.cut("host0", "host1")
        sent, number = list[int](), 0
        while w.links[0].send(1, commit(number)):
            sent.append(number)
            number += 1
        assert len(sent) * 45 > tiny.queue_bytes
        assert not w.links[0].send(1, commit(number))
        assert w.links[0].connected(1)
        w.network.heal("host0", "host1")
        await w.recorders[1].until("message", 0, len(sent))
        assert w.links[0].send(1, commit(10**9))
        await w.recorders[1].until("message", 0, len(sent) + 1)
        assert numbers(w.recorders[1].messages(0)) == [*sent, 10**9]
        assert w.recorders[1].count("lost", 0) == 0


@simulated
async def test_a_frame_of_the_live_log_that_does_not_fit_closes_the_link() -> None:
    async with world(2, limits=SMALL) as w:
        w.network.cut("host0", "host1")
        frame = encode(LogBatch(1, 2, bytes(100_000)))
        sent = 0
        while w.links[0].send_frame(1, frame):
            sent += 1
        assert 10 <= sent <= 14  # the queue, and what the network took
        assert not w.links[0].connected(1)
        assert not w.links[0].send(1, commit(1))
        w.network.heal("host0", "host1")
        await w.recorders[1].until("lost", 0)
        assert len(w.recorders[1].messages(0)) < sent  # no gap: then the end, then the new link
        await w.recorders[0].until("up", 1, 2)
        assert w.links[0].send_frame(1, frame)
        await w.recorders[1].until("message", 0, len(w.recorders[1].messages(0)) + 1)


@simulated
async def test_a_frame_larger_than_the_queue_is_taken_when_nothing_waits() -> None:
    async with world(2, limits=SMALL) as w:
        assert w.links[0].send_frame(1, encode(LogBatch(1, 2, bytes(3 << 20))))
        assert not w.links[0].send(1, commit(1))
        await w.recorders[1].until("message", 0)
        assert w.links[0].send(1, commit(2))
        await w.recorders[1].until("message", 0, 2)


@simulated
async def test_a_stalled_peer_does_not_delay_another() -> None:
    async with world(3) as w:
        w.network.cut("host0", "host1")
        batch = encode(LogBatch(1, 2, bytes(1 << 20)))
        for number in range(20):
            assert w.links[0].send_frame(1, batch)
            assert w.links[0].send(2, commit(number))
        before = trio.current_time()
        await w.recorders[2].until("message", 0, 20)
        assert trio.current_time() - before == pytest.approx(0.001)
        assert w.recorders[1].messages(0) == []


@simulated
async def test_a_broken_link_is_reported_and_dialled_anew() -> None:
    async with world(2) as w:
        w.network.break_links("host0", "host1")
        for member, other in ((0, 1), (1, 0)):
            await w.recorders[member].until("lost", other)
            await w.recorders[member].until("up", other, 2)
            assert w.recorders[member].count("lost", other) == 1
        assert w.links[0].send(1, commit(1))
        await w.recorders[1].until("message", 0)


@simulated
async def test_sending_over_a_link_that_just_broke_says_so() -> None:
    async with world(3) as w:
        w.network.break_links("host0", "host1")
        assert not w.links[0].send(1, commit(1))
        assert not w.links[0].connected(1)
        w.links[0].broadcast(commit(2))
        await w.recorders[2].until("message", 0)
        await w.recorders[0].until("up", 1, 2)


@simulated
async def test_a_break_loses_what_waits_in_the_queue() -> None:
    async with world(2) as w:
        w.network.cut("host0", "host1")
        assert w.links[0].send_frame(1, encode(LogBatch(1, 2, bytes(1 << 20))))
        assert w.links[0].send(1, commit(1))
        w.network.break_links("host0", "host1")
        w.network.heal("host0", "host1")
        await w.recorders[0].until("up", 1, 2)
        assert w.links[0].send(1, commit(2))
        await w.recorders[1].until("message", 0)
        assert w.recorders[1].messages(0) == [commit(2)]
        kinds = [kind for kind in w.recorders[1].kinds(0) if kind != "up"]
        assert kinds == ["lost", "message"]


@simulated
async def test_a_link_that_was_cut_goes_on_where_it_stopped() -> None:
    async with world(2) as w:
        w.network.cut("host0", "host1", both=False)
        assert w.links[0].send(1, commit(1))
        assert w.links[1].send(0, commit(2))
        await w.recorders[0].until("message", 1)
        await trio.sleep(100)
        assert w.recorders[1].messages(0) == []
        w.network.heal("host0", "host1")
        await w.recorders[1].until("message", 0)
        assert w.recorders[1].kinds(0).count("lost") == 0


@simulated
async def test_disconnect_ends_the_stream_and_dials_anew() -> None:
    async with world(2) as w:
        w.links[0].send(1, commit(1))
        w.links[0].disconnect(1)
        assert not w.links[0].connected(1)
        assert not w.links[0].send(1, commit(2))
        await w.recorders[0].until("up", 1, 2)
        assert w.links[0].send(1, commit(3))
        await w.recorders[1].until("message", 0, 2)
        assert [(e.kind, e.message) for e in w.recorders[1].events if e.member == 0][-3:] == [
            ("message", commit(1)),
            ("lost", None),
            ("message", commit(3)),
        ]


@simulated
async def test_a_member_that_is_gone_is_told_from_one_that_is_cut_off() -> None:
    async with world(3) as w:
        w.network.cut("host0", "host1")
        w.stop(2)
        await w.recorders[0].until("lost", 2)
        await trio.sleep(5)
        assert w.links[0].refused(2)
        assert not w.links[0].connected(2)
        assert not w.links[0].refused(1)
        await w.start(2, 3)
        await w.recorders[0].until("up", 2, 2)
        assert not w.links[0].refused(2)


@simulated
async def test_a_member_whose_link_to_us_is_open_is_not_gone() -> None:
    async with world(2) as w:
        w.network.refuse("host1")
        w.links[0].disconnect(1)
        await trio.sleep(5)
        assert not w.links[0].connected(1)
        assert not w.links[0].refused(1)


@simulated
async def test_a_member_that_comes_back_and_dials_us_is_dialled_at_once() -> None:
    async with world(2) as w:
        w.stop(1)
        await w.recorders[0].until("lost", 1)
        await trio.sleep(60)  # the pause between two dials has grown to a second
        await w.start(1, 2)
        started = trio.current_time()
        await w.recorders[0].until("up", 1, 2)
        assert trio.current_time() - started < 0.05


@simulated
async def test_dials_back_off_up_to_a_second() -> None:
    times = list[float]()

    class Counting(MemoryHost):
        async def connect(self, address: Address) -> MemoryConnection:
            times.append(trio.current_time())
            return await super().connect(address)

    host = Counting(MemoryNetwork(Random(0), latency=0.0), "host0")
    links = make_links(0, {0: address(0), 1: address(1)}, host, Recorder())
    with trio.move_on_after(30):
        await links.run()
    pauses = [later - earlier for earlier, later in pairwise(times)]
    for number, pause in enumerate(pauses):
        longest = min(1.0, 0.02 * 2**number)
        assert longest / 2 <= pause <= longest
    assert len({round(pause, 6) for pause in pauses[6:]}) > 10  # jittered
    assert links.refused(1)


@simulated
async def test_a_newer_connection_replaces_the_older_before_it_delivers() -> None:
    async with world(1) as w:
        network, addresses, recorder = w.network, {0: address(0), 1: address(1)}, Recorder()
        w.stop(0)
        await trio.sleep(1)
        links = make_links(0, addresses, network.host("host0"), recorder)
        await w.nursery.start(links.run)
        older = await stranger(network.host("host1"), address(0), hello(1, incarnation=1))
        assert await older.reply()
        await older.send(encode(commit(1)))
        await recorder.until("message", 1)
        newer = await stranger(
            network.host("host1"), address(0), hello(1, incarnation=2), commit(3)
        )
        await recorder.until("message", 1, 2)
        assert [(e.kind, e.message) for e in recorder.events] == [
            ("message", commit(1)),
            ("lost", None),
            ("message", commit(3)),
        ]
        assert await older.ends()
        assert await newer.reply()
        newer.connection.close()
        await recorder.until("lost", 1, 2)


@simulated
async def test_a_bug_in_the_handler_ends_run() -> None:
    class Buggy(Recorder):
        def on_message(self, sender: int, message: Message) -> None:
            raise ZeroDivisionError(sender, message)

    network = MemoryNetwork(Random(0))
    addresses = {0: address(0), 1: address(1)}
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            links = make_links(0, addresses, network.host("host0"), Buggy())
            await nursery.start(links.run)
            await stranger(network.host("host1"), address(0), hello(1), commit(1))
            await trio.sleep(10)


def test_a_cluster_name_that_no_hello_can_carry_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at most 256 bytes"):
        make_links(0, {}, TcpNetwork(), Recorder(), cluster="x" * 257)


async def test_two_members_over_tcp() -> None:
    addresses = dict(enumerate(free_addresses(2)))
    recorders = {0: Recorder(), 1: Recorder()}
    links = {n: make_links(n, addresses, TcpNetwork(), recorders[n]) for n in addresses}
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            for member in (0, 1):
                assert await nursery.start(links[member].run) == addresses[member]
            for member in (0, 1):
                await recorders[member].until("up", 1 - member)
            batch = LogBatch(1, 2, bytes(3 << 20))
            for number in range(100):
                assert links[0].send(1, commit(number))
            assert links[0].send_frame(1, encode(batch))
            assert links[0].send(1, commit(100))
            await recorders[1].until("message", 0, 102)
            assert numbers(recorders[1].messages(0)) == list(range(101))
            assert recorders[1].messages(0)[100] == batch
            links[0].disconnect(1)
            await recorders[0].until("up", 1, 2)
            assert recorders[1].kinds(0)[-1] == "lost"
            nursery.cancel_scope.cancel()


async def test_a_tcp_peer_that_never_reads_fills_only_its_own_queue() -> None:
    addresses = dict(enumerate(free_addresses(3)))
    recorders = {0: Recorder(), 2: Recorder()}
    links = {n: make_links(n, addresses, TcpNetwork(), recorders[n], limits=SMALL) for n in (0, 2)}
    accepted = list[Stranger]()

    async def never_read(connection: Connection) -> None:
        accepted.append(Stranger(connection))
        await trio.sleep_forever()

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(TcpNetwork().serve, addresses[1], never_read)
            for member in (0, 2):
                await nursery.start(links[member].run)
            await recorders[0].until("up", 2)
            batch = encode(LogBatch(1, 2, bytes(100_000)))
            for number in range(50):
                links[0].send_frame(1, batch)
                assert links[0].send(2, commit(number))
            await recorders[2].until("message", 0, 50)
            assert not links[0].connected(1)
            assert not links[0].refused(1)
            nursery.cancel_scope.cancel()


class Dialled(TcpNetwork):
    """TCP that tells when a dial has failed."""

    def __init__(self) -> None:
        self.failed = trio.Event()

    async def connect(self, address: Address) -> TcpConnection:
        try:
            return await super().connect(address)
        except OSError:
            self.failed.set()
            raise


async def test_refused_over_tcp_when_nobody_listens() -> None:
    addresses, network = dict(enumerate(free_addresses(2))), Dialled()
    links = make_links(0, addresses, network, Recorder())
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            await nursery.start(links.run)
            assert not links.refused(1)
            await network.failed.wait()
            await trio.testing.wait_all_tasks_blocked()
            assert links.refused(1)
            nursery.cancel_scope.cancel()
