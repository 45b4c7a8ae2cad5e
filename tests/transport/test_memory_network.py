"""The network in memory: latency, cuts, resets, and the same run for the same seed."""

from random import Random

import pytest
import trio
import trio.testing

from quorate.transport import Address, Connection, LogBatch, encode
from quorate.transport.testing import MemoryNetwork
from tests.support.transport_world import Event, commit, simulated, world

HOME = Address("b", 1)


async def echo(connection: Connection) -> None:
    while data := await connection.receive(1000):
        connection.send_nowait(data)


async def started(network: MemoryNetwork, nursery: trio.Nursery) -> Connection:
    """Serve an echo on host b and dial it from host a."""
    nursery.start_soon(network.host("b").serve, HOME, echo)
    await trio.testing.wait_all_tasks_blocked()
    return await network.host("a").connect(HOME)


@simulated
async def test_bytes_take_the_latency_of_their_way() -> None:
    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(Random(0), latency=0.5)
        connection = await started(network, nursery)
        assert trio.current_time() == pytest.approx(1.0)  # there and back
        connection.send_nowait(b"x")
        await trio.sleep(0.25)
        connection.send_nowait(b"y")
        assert await connection.receive(9) == b"x"
        assert trio.current_time() == pytest.approx(2.0)
        assert await connection.receive(9) == b"y"
        assert trio.current_time() == pytest.approx(2.25)
        nursery.cancel_scope.cancel()


@simulated
async def test_jitter_never_reorders() -> None:
    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(Random(0), latency=0.0, jitter=1.0)
        connection = await started(network, nursery)
        data = bytes(range(100))
        for byte in data:
            connection.send_nowait(bytes([byte]))
        back = b""
        while len(back) < 100:
            back += await connection.receive(100)
        assert back == data
        nursery.cancel_scope.cancel()


@simulated
async def test_a_cut_one_way_holds_up_that_way_only() -> None:
    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(Random(0))
        connection = await started(network, nursery)
        network.cut("b", "a", both=False)
        connection.send_nowait(b"there, not back")
        with trio.move_on_after(100) as scope:
            await connection.receive(100)
        assert scope.cancelled_caught
        network.heal("b", "a", both=False)
        assert await connection.receive(100) == b"there, not back"
        nursery.cancel_scope.cancel()


@simulated
async def test_a_dial_into_a_cut_waits_for_it_to_heal() -> None:
    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(Random(0))
        await started(network, nursery)
        network.cut("a", "b")

        async def heal() -> None:
            await trio.sleep(7)
            network.heal("a", "b")

        nursery.start_soon(heal)
        before = trio.current_time()
        await network.host("a").connect(HOME)
        assert trio.current_time() - before == pytest.approx(7, abs=0.01)
        nursery.cancel_scope.cancel()


@simulated
async def test_a_dial_that_is_given_up_is_closed_at_the_other_end() -> None:
    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(Random(0))
        ended = trio.Event()

        async def wait(connection: Connection) -> None:
            assert await connection.receive(1) == b""
            ended.set()

        nursery.start_soon(network.host("b").serve, HOME, wait)
        await trio.testing.wait_all_tasks_blocked()
        network.cut("b", "a", both=False)
        with trio.move_on_after(1):
            await network.host("a").connect(HOME)
        await ended.wait()
        nursery.cancel_scope.cancel()


@simulated
async def test_a_reset_loses_what_is_under_way_and_breaks_both_ends() -> None:
    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(Random(0))
        broken = trio.Event()

        async def wait(connection: Connection) -> None:
            with pytest.raises(trio.BrokenResourceError):
                await connection.receive(1)
            broken.set()

        nursery.start_soon(network.host("b").serve, HOME, wait)
        await trio.testing.wait_all_tasks_blocked()
        connection = await network.host("a").connect(HOME)
        connection.send_nowait(b"lost")
        network.break_links("a", "b")
        await broken.wait()
        with pytest.raises(trio.BrokenResourceError):
            connection.send_nowait(b"x")
        nursery.cancel_scope.cancel()


@simulated
async def test_the_end_of_a_connection_waits_behind_a_cut_like_its_data() -> None:
    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(Random(0))
        got = list[bytes]()
        done = trio.Event()

        async def collect(connection: Connection) -> None:
            while data := await connection.receive(2):
                got.append(data)
            done.set()

        nursery.start_soon(network.host("b").serve, HOME, collect)
        await trio.testing.wait_all_tasks_blocked()
        connection = await network.host("a").connect(HOME)
        network.cut("a", "b")
        connection.send_nowait(b"abc")
        connection.close()
        await trio.sleep(10)
        assert got == []
        network.heal("a", "b")
        await done.wait()
        assert got == [b"ab", b"c"]
        nursery.cancel_scope.cancel()


@simulated
async def test_a_full_connection_whose_other_end_was_closed_behind_a_cut_waits_for_it_to_heal() -> (
    None
):
    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(Random(0))
        closed = trio.Event()

        async def close(connection: Connection) -> None:
            await trio.sleep(1)
            connection.close()
            closed.set()

        nursery.start_soon(network.host("b").serve, HOME, close)
        await trio.testing.wait_all_tasks_blocked()
        connection = await network.host("a").connect(HOME)
        network.cut("a", "b")
        while connection.send_nowait(bytes(100_000)):
            pass
        await closed.wait()
        with trio.move_on_after(10) as waiting:
            await connection.wait_writable()
        assert waiting.cancelled_caught
        network.heal("a", "b")
        await connection.wait_writable()
        with pytest.raises(trio.BrokenResourceError):
            connection.send_nowait(b"x")
        nursery.cancel_scope.cancel()


@simulated
async def test_a_host_refuses_while_it_is_told_to() -> None:
    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(Random(0))
        await started(network, nursery)
        network.refuse("b")
        with pytest.raises(ConnectionRefusedError):
            await network.host("a").connect(HOME)
        network.refuse("b", refused=False)
        await network.host("a").connect(HOME)
        nursery.cancel_scope.cancel()


@simulated
async def test_listeners_without_a_port_get_one_each() -> None:
    async with trio.open_nursery() as nursery:
        host, bound = MemoryNetwork(Random(0)).host("b"), list[Address]()

        async def serve(*, task_status: trio.TaskStatus[Address]) -> None:
            await host.serve(Address("b", 0), echo, task_status=task_status)

        for _ in range(3):
            bound.append(await nursery.start(serve))
        assert len({address.port for address in bound}) == 3
        nursery.cancel_scope.cancel()


def scenario(seed: int) -> list[list[Event]]:
    """Run three members through messages, cuts and resets; return the calls of their handlers."""
    calls = list[list[Event]]()

    @simulated
    async def run() -> None:
        rng = Random(seed)
        async with world(3, jitter=0.01, seed=seed) as w:
            for number in range(150):
                member, other = rng.sample(range(3), 2)
                match rng.randrange(10):
                    case 0:
                        w.network.cut(f"host{member}", f"host{other}", both=rng.random() < 0.5)
                    case 1:
                        w.network.heal(f"host{member}", f"host{other}")
                    case 2:
                        w.network.break_links(f"host{member}", f"host{other}")
                    case 3:
                        w.links[member].send_frame(other, encode(LogBatch(1, 2, bytes(50_000))))
                    case 4:
                        w.links[member].disconnect(other)
                    case _:
                        w.links[member].broadcast(commit(number))
                await trio.sleep(rng.random() * 0.2)
            calls.extend(w.recorders[member].events for member in range(3))

    run()
    return calls


def test_the_same_seed_gives_the_same_run() -> None:
    first = scenario(1)
    assert min(map(len, first)) > 50
    assert scenario(1) == first
    assert scenario(2) != first


@pytest.mark.parametrize("seed", range(5))
def test_no_stream_has_gaps_or_goes_back_whatever_happens(seed: int) -> None:
    for events in scenario(seed):
        last: dict[int, int] = {}
        for event in events:
            message = event.message
            if message is not None and not isinstance(message, LogBatch):
                number = getattr(message, "log_position")  # noqa: B009
                assert number > last.get(event.member, -1)
                last[event.member] = number
