"""The rarer faults of the network in memory: slow ways, half-open connections, lost power."""

from random import Random

import pytest
import trio
import trio.testing

from quorate.transport import Address, Connection
from quorate.transport.testing import MemoryNetwork
from quorate.transport.testing.direction import SEGMENT_BYTES, Pace
from tests.support.transport_world import simulated

HOME = Address("b", 1)


async def connected(
    network: MemoryNetwork, nursery: trio.Nursery
) -> tuple[Connection, Connection, trio.CancelScope]:
    """Dial host b from host a; give both ends, and the scope of b."""
    ends: list[Connection] = []
    scope = trio.CancelScope()

    async def keep(connection: Connection) -> None:
        ends.append(connection)
        await trio.sleep_forever()

    async def serve() -> None:
        with scope:
            await network.host("b").serve(HOME, keep)

    nursery.start_soon(serve)
    await trio.testing.wait_all_tasks_blocked()
    here = await network.host("a").connect(HOME)
    return here, ends[0], scope


@simulated
async def test_a_slow_way_lets_so_many_bytes_through_in_a_second() -> None:
    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(Random(0), latency=0.5)
        here, there, _ = await connected(network, nursery)
        network.set_pace("a", "b", Pace(latency=0.5, bytes_per_second=100.0), both=False)
        began = trio.current_time()
        for _ in range(3):
            here.send_nowait(bytes(200))
        for seconds in (2.5, 4.5, 6.5):
            assert len(await there.receive(1000)) == 200
            assert trio.current_time() - began == pytest.approx(seconds)
        here.send_nowait(bytes(100_000))  # which would take 1000 s
        network.set_pace("a", "b", None)
        here.send_nowait(b"x")
        assert len(await there.receive(100_000)) == 100_000
        assert await there.receive(1000) == b"x"
        assert trio.current_time() - began == pytest.approx(7.0)
        nursery.cancel_scope.cancel()


@simulated
async def test_of_what_was_sent_in_one_go_a_part_arrives_before_the_connection_breaks() -> None:
    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(Random(0), latency=0.5)
        here, there, _ = await connected(network, nursery)
        network.set_pace("a", "b", Pace(latency=0.5, bytes_per_second=1000.0), both=False)
        began, sent = trio.current_time(), bytes(range(250)) * 20
        here.send_nowait(sent)
        assert await there.receive(10_000) == sent[:SEGMENT_BYTES]
        assert trio.current_time() - began == pytest.approx(0.5 + SEGMENT_BYTES / 1000)
        assert await there.receive(10_000) == sent[SEGMENT_BYTES : 2 * SEGMENT_BYTES]
        network.break_links("a", "b")
        with pytest.raises(trio.BrokenResourceError):
            await there.receive(10_000)
        nursery.cancel_scope.cancel()


@simulated
async def test_a_half_broken_connection_delivers_what_was_sent_and_breaks_when_it_is_answered() -> (
    None
):
    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(Random(0))
        here, there, _ = await connected(network, nursery)
        here.send_nowait(b"before")
        network.half_break("a", "b")
        with pytest.raises(trio.BrokenResourceError):
            here.send_nowait(b"after")
        with pytest.raises(trio.BrokenResourceError):
            await here.receive(10)
        here.close()
        assert await there.receive(100) == b"before"
        with trio.move_on_after(100) as scope:
            await there.receive(100)
        assert scope.cancelled_caught
        there.send_nowait(b"to nobody")
        with pytest.raises(trio.BrokenResourceError):
            await there.receive(100)
        nursery.cancel_scope.cancel()


@simulated
async def test_nothing_leaves_a_host_without_power_and_its_connections_are_reset_after_it() -> None:
    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(Random(0))
        here, there, lives = await connected(network, nursery)
        there.send_nowait(b"sent in time")
        network.unplug("b")
        there.send_nowait(b"too late")
        lives.cancel()  # which closes its end
        assert await here.receive(100) == b"sent in time"
        with trio.move_on_after(100) as scope:
            await here.receive(100)
        assert scope.cancelled_caught
        network.plug("b")
        with pytest.raises(trio.BrokenResourceError):
            await here.receive(100)
        with pytest.raises(ConnectionRefusedError):
            await network.host("a").connect(HOME)
        nursery.cancel_scope.cancel()
