"""Handshakes are sliced, bounded in number and in time, and silent strangers make room."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from quorate.keyvalue.tls import handshakes
from tests.support.certificates import client_context, port_context
from tests.support.client_port_world import World, command


async def silent(world: World, count: int) -> list[trio.SocketStream]:
    """Connect, and say nothing."""
    address = (world.address[0], world.port.state.tls_port)
    return [await trio.open_tcp_stream(*address) for _ in range(count)]


def limits(monkeypatch: pytest.MonkeyPatch, **changes: float) -> None:
    for name, value in changes.items():
        monkeypatch.setattr(handshakes, name, value)


async def test_a_silent_client_is_closed_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits(monkeypatch, HANDSHAKE_SECONDS=0.05)
    async with World.opened(tmp_path / "tables", tls=port_context) as world:
        streams = await silent(world, 3)
        for stream in streams:
            with trio.fail_after(5):
                assert await stream.receive_some(10) == b""
            await stream.aclose()
        assert world.port.state.counters.failed_handshakes == 3
        assert caplog.text.count("no TLS handshake within") == 1
        # One that is over is not closed later.
        limits(monkeypatch, HANDSHAKE_SECONDS=60.0)
        client = await world.connect_tls(client_context())
        limits(monkeypatch, HANDSHAKE_SECONDS=0.05)
        await trio.sleep(0.1)
        await client.ask(command("PING"), b"+PONG\r\n")


async def test_silent_clients_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits(monkeypatch, MAX_PENDING=5, SILENT_SECONDS=0.0)
    async with World.opened(tmp_path / "tables", tls=port_context) as world:
        streams = await silent(world, 20)
        client = await world.connect_tls(client_context())
        await client.ask(command("PING"), b"+PONG\r\n")
        assert world.port.state.counters.failed_handshakes >= 15
        for stream in streams:
            await stream.aclose()


async def test_clients_wait_in_the_kernel_while_all_places_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits(monkeypatch, MAX_PENDING=3, SILENT_SECONDS=60.0, HANDSHAKE_SECONDS=0.5)
    async with World.opened(tmp_path / "tables", tls=port_context) as world:
        streams = await silent(world, 10)
        client = await world.connect_tls(client_context())
        await client.ask(command("PING"), b"+PONG\r\n")
        for stream in streams:
            await stream.aclose()


async def test_a_host_whose_handshakes_get_done_keeps_its_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients of a busy machine are late, and are no strangers."""
    limits(monkeypatch, MAX_PENDING=4, SILENT_SECONDS=0.3, HANDSHAKE_SECONDS=30.0)
    async with World.opened(tmp_path / "tables", tls=port_context) as world:
        late = await silent(world, 3)
        for _ in range(8):
            await world.connect_tls(client_context())
            await trio.sleep(0.1)
        late += await silent(world, 3)  # all places are taken now
        await trio.sleep(0.1)
        assert world.port.state.counters.failed_handshakes == 0
        for stream in late:
            await stream.aclose()


async def test_a_storm_is_sliced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice ends once its time is over, and between two slices all other tasks run."""
    now = 0.0

    def one_second_later() -> float:
        nonlocal now
        now += 1
        return now

    limits(monkeypatch, SLICE_SECONDS=2.0, HANDSHAKE_SECONDS=60.0)
    monkeypatch.setattr(handshakes, "time", SimpleNamespace(perf_counter=one_second_later))
    steps: list[int] = []
    plain = handshakes.Handshakes._step  # pyright: ignore[reportPrivateUsage]
    turns = 0

    def step(self: handshakes.Handshakes, arrival: handshakes.Arrival) -> None:
        steps.append(turns)
        plain(self, arrival)

    async def other_task() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    monkeypatch.setattr(handshakes.Handshakes, "_step", step)
    async with (
        World.opened(tmp_path / "tables", tls=port_context) as world,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(other_task)
        async with trio.open_nursery() as clients:
            for _ in range(40):
                clients.start_soon(world.connect_tls, client_context())
        await world.until(lambda: len(world.port.state.clients) == 40)  # clients are done first
        nursery.cancel_scope.cancel()
    assert len(steps) >= 50  # some clients have sent both their parts when they are looked at
    assert max(steps.count(turn) for turn in set(steps)) <= 4  # two slices: one around the turn
