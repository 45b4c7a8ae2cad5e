"""A TLS connection: bytes in any pieces, strangers of any kind, and ends that are no ends."""

# pyright: reportPrivateUsage=false

import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing, suppress
from random import Random

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.errors import HandshakeError
from quorate.transport import Address, Connection, LinkLimits
from quorate.transport.identity import Identity
from quorate.transport.streams import send_all
from quorate.transport.testing import MemoryNetwork
from quorate.transport.tls import Material, TlsConnection, TlsNetwork
from quorate.transport.tls.connection import CHUNK_BYTES, HANDSHAKE_BYTES
from tests.support.certificates import authority, material
from tests.support.transport_world import simulated

SERVER = Address("b", 7)


@attrs.define(eq=False)
class Throttled:
    """A connection that takes a few bytes at a time, and then none until it was waited for."""

    inner: Connection
    rng: Random
    most: int
    ready: bool = True
    kept: int = 0  # most bytes that were offered at once
    free: bool = False  # takes everything from now on
    identity: Identity | None = None

    @property
    def peer(self) -> str:
        return self.inner.peer

    def send_nowait(self, data: bytes | memoryview) -> int:
        self.kept = max(self.kept, len(data))
        if self.free:
            return self.inner.send_nowait(data)
        size = min(len(data), self.rng.randint(0, self.most)) if self.ready else 0
        self.ready = size == len(data)
        return self.inner.send_nowait(data[:size]) if size else 0

    async def wait_writable(self) -> None:
        await self.inner.wait_writable()
        self.ready = True

    async def receive(self, max_bytes: int) -> bytes:
        return await self.inner.receive(self.rng.randint(1, max(1, min(max_bytes, self.most))))

    def close(self) -> None:
        self.inner.close()


async def close(connection: TlsConnection) -> None:
    """Close an end once everything is out, and with room for the end itself."""
    while not connection._flush():
        await connection._inner.wait_writable()
    if isinstance(connection._inner, Throttled):
        connection._inner.free = True
    connection.close()


@asynccontextmanager
async def raw_pair() -> AsyncGenerator[tuple[Connection, Connection]]:
    """Connect two hosts in memory without TLS."""
    network, ends, came = MemoryNetwork(Random(0)), list[Connection](), trio.Event()

    async def keep(connection: Connection) -> None:
        ends.append(connection)
        came.set()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(network.host("b").serve, SERVER, keep)
        await trio.sleep(0.1)
        with closing(await network.host("a").connect(SERVER)) as near:
            await came.wait()
            yield near, ends[0]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def pair(
    wrap: Callable[[Connection], Connection] = lambda one: one,
    *,
    client: Material | None = None,
) -> AsyncGenerator[tuple[TlsConnection, TlsConnection]]:
    """Connect two hosts by TLS; `wrap` puts something between TLS and the network."""
    async with raw_pair() as (near, far):
        here = TlsConnection(wrap(near), (client or material(0)).client, server=False)
        there = TlsConnection(wrap(far), material(1).server, server=True)
        async with trio.open_nursery() as nursery:
            for end in (here, there):
                nursery.start_soon(end.shake_hands, trio.Lock())
        yield here, there


async def read_all(connection: Connection, sizes: Random) -> bytes:
    data = bytearray()
    while piece := await connection.receive(sizes.choice([1, 7, 4096, 1 << 20])):
        data += piece
    return bytes(data)


@simulated
async def test_each_end_learns_who_the_other_one_is() -> None:
    async with pair() as (here, there):
        assert str(here.identity) == "quorate://test/member/1"
        assert str(there.identity) == "quorate://test/member/0"


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.binary(min_size=1, max_size=200) | st.integers(1, 150_000).map(bytes), max_size=12),
    st.lists(st.binary(min_size=1, max_size=5000), max_size=12),
    st.integers(2000, 100_000),
    st.integers(0, 1 << 32),
)
def test_bytes_arrive_whole_and_in_order_both_ways(
    frames: list[bytes], answers: list[bytes], most: int, seed: int
) -> None:
    got: dict[str, bytes] = {}
    rng = Random(seed)

    async def send(connection: Connection, data: list[bytes]) -> None:
        for frame in data:
            await send_all(connection, frame)
            await trio.lowlevel.checkpoint()
        connection_done[connection].set()

    async def read(name: str, connection: Connection, size: int) -> None:
        data = bytearray()
        while len(data) < size:
            piece = await connection.receive(rng.choice([1, 100, 1 << 16, 1 << 20]))
            assert piece
            data += piece
        got[name] = bytes(data)

    connection_done: dict[Connection, trio.Event] = {}

    @simulated
    async def check() -> None:
        async with pair(lambda one: Throttled(one, rng, most)) as (here, there):
            connection_done.update({here: trio.Event(), there: trio.Event()})
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send, here, frames)
                nursery.start_soon(send, there, answers)
                nursery.start_soon(read, "there", there, sum(map(len, frames)))
                nursery.start_soon(read, "here", here, sum(map(len, answers)))
            assert not here._unsent
            await close(here)
            assert await there.receive(10) == b""

    check()
    assert got == {"there": b"".join(frames), "here": b"".join(answers)}


@settings(deadline=None, max_examples=40)
@given(st.binary(min_size=2, max_size=400), st.integers(0, 1 << 32))
def test_every_call_of_send_keeps_to_the_contract(data: bytes, seed: int) -> None:
    """What is taken adds up to the bytes, however the rest is offered again."""
    rng = Random(seed)

    @simulated
    async def check() -> None:
        async with pair(lambda one: Throttled(one, rng, 200)) as (here, there):
            rest = data
            while rest:
                offered = rest[: rng.randint(1, len(rest))]
                taken = here.send_nowait(offered)
                assert 0 <= taken <= len(offered)
                rest = rest[taken:]
                if taken < len(offered):
                    await here.wait_writable()
                    # Something is taken after the wait, or the network has become full again.
                    assert not here._unsent
            await close(here)
            assert await read_all(there, rng) == data

    check()


@settings(deadline=None, max_examples=40)
@given(st.binary(min_size=1, max_size=60_000), st.integers(0, 61_000))
def test_a_cut_connection_is_never_taken_for_an_end(data: bytes, cut: int) -> None:
    """Anything that arrives is a prefix of what was sent, and then the connection is broken."""

    @simulated
    async def check() -> None:
        async with raw_pair() as (near, far), raw_pair() as (other_near, other_far):
            here = TlsConnection(near, material(0).client, server=False)
            there = TlsConnection(other_far, material(1).server, server=True)

            async def pump(source: Connection, target: Connection, most: list[int]) -> None:
                with suppress(trio.ClosedResourceError, trio.BrokenResourceError):
                    while most[0] and (piece := await source.receive(1000)):
                        await send_all(target, piece[: most[0]])
                        most[0] -= len(piece[: most[0]])
                target.close()

            forward, back = [1 << 40], [1 << 40]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pump, far, other_near, forward)
                nursery.start_soon(pump, other_near, far, back)
                async with trio.open_nursery() as shaking:
                    for end in (here, there):
                        shaking.start_soon(end.shake_hands, trio.Lock())
                forward[0] = cut  # bytes of ciphertext that still come through
                here.send_nowait(data)
                here.close()
                received = bytearray()
                try:
                    while piece := await there.receive(1 << 20):
                        received += piece
                except trio.BrokenResourceError:
                    ended = False
                else:
                    ended = True
                assert data.startswith(bytes(received))
                assert not ended or received == data
                nursery.cancel_scope.cancel()

    check()


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 5000), st.integers(0, 255))
def test_a_changed_byte_breaks_the_connection(place: int, change: int) -> None:
    """A record that was changed on the way is not delivered."""

    @simulated
    async def check() -> None:
        async with pair() as (here, there):
            data = bytes(range(256)) * 8
            assert here.send_nowait(data) == len(data)
            raw = bytearray(await there._inner.receive(1 << 20))
            while len(raw) < 2048:
                raw += await there._inner.receive(1 << 20)
            raw[place % len(raw)] ^= change
            there._arrived.write(raw)
            if not change:  # a change of nothing changes nothing
                assert await there.receive(1 << 20) == data
                return
            here.close()
            with pytest.raises(trio.BrokenResourceError):
                await there.receive(1 << 20)

    check()


@simulated
async def test_closing_in_the_middle_ends_both_ends() -> None:
    async with pair() as (here, there):
        while here.send_nowait(bytes(CHUNK_BYTES)):
            pass
        here.close()
        got = await there.receive(1 << 20)
        assert got == bytes(len(got))
        with pytest.raises(trio.BrokenResourceError, match="without the end that TLS has"):
            await read_all(there, Random(0))
        with pytest.raises(trio.BrokenResourceError):
            there.send_nowait(b"x")


@simulated
async def test_memory_of_a_connection_that_nobody_reads_is_bounded() -> None:
    wrapped: list[Throttled] = []

    def wrap(inner: Connection) -> Connection:
        wrapped.append(Throttled(inner, Random(0), 1 << 30))
        return wrapped[-1]

    async with pair(wrap) as (here, _):
        total, taken = 0, 1
        while taken:
            taken = here.send_nowait(bytes(10 << 20))
            total += taken
        assert total < 1 << 20
        assert wrapped[0].kept < CHUNK_BYTES + 1000


@simulated
async def test_a_key_that_has_encrypted_enough_is_used_no_more() -> None:
    async with pair() as (here, there):
        here._key_bytes = 10
        assert here.send_nowait(b"0123456789") == 10
        with pytest.raises(trio.BrokenResourceError, match="its key has encrypted enough"):
            here.send_nowait(b"x")
        assert await there.receive(100) == b"0123456789"


# --- strangers ------------------------------------------------------------------------------------


async def serve(network: TlsNetwork, handler: Callable[[Connection], None]) -> None:
    async def handle(connection: Connection) -> None:
        handler(connection)
        await trio.sleep_forever()

    await network.serve(SERVER, handle)


HELLO = bytes.fromhex("160301020001000001fc0303")  # the beginning of a ClientHello of TLS


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.binary(min_size=1, max_size=3000)
        | st.binary(max_size=300).map(lambda rest: HELLO + rest)
        | st.sampled_from([b"GET / HTTP/1.1\r\n\r\n", b"*1\r\n$4\r\nPING\r\n", bytes(100_000)]),
        min_size=1,
        max_size=5,
    )
)
def test_whatever_a_stranger_sends_costs_only_its_connection(pieces: list[bytes]) -> None:
    @simulated
    async def check() -> None:
        memory, seen = MemoryNetwork(Random(0)), list[Connection]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, TlsNetwork(memory.host("b"), material(1)), seen.append)
            await trio.sleep(0.1)
            with closing(await memory.host("x").connect(SERVER)) as stranger, trio.fail_after(30):
                try:
                    for piece in pieces:
                        await send_all(stranger, piece)
                    while await stranger.receive(1000):
                        pass
                except trio.BrokenResourceError:
                    pass
            assert not seen
            # A good one still gets in.
            with closing(await TlsNetwork(memory.host("a"), material(0)).connect(SERVER)):
                await trio.sleep(0.1)
                assert len(seen) == 1
            nursery.cancel_scope.cancel()

    check()


@simulated
async def test_a_handshake_that_is_too_long_is_refused() -> None:
    async def never(turns: trio.Lock) -> bool:
        return False  # whatever comes, it is not over

    async with raw_pair() as (near, far), trio.open_nursery() as nursery:
        end = TlsConnection(far, material(1).server, server=True)
        end._step = never  # type: ignore[method-assign]
        nursery.start_soon(send_all, near, bytes(HANDSHAKE_BYTES + 1))
        with pytest.raises(HandshakeError, match="bytes of a TLS handshake"):
            await end.shake_hands(trio.Lock())


@pytest.mark.parametrize(
    ("client", "words"),
    [
        (material(0, ca="other CA"), "unable to get local issuer certificate"),
        (None, "wrong version number"),
    ],
)
def test_a_stranger_is_refused_and_the_reason_logged_once(
    client: Material | None, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    @simulated
    async def check() -> None:
        memory, seen = MemoryNetwork(Random(0)), list[Connection]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, TlsNetwork(memory.host("b"), material(1)), seen.append)
            await trio.sleep(0.1)
            for _ in range(3):
                if client is None:
                    with closing(await memory.host("x").connect(SERVER)) as plain:
                        plain.send_nowait(b"GET / HTTP/1.1\r\n\r\n")
                        await plain.receive(1000)
                else:
                    with pytest.raises(HandshakeError, match="the certificate is refused"):
                        await TlsNetwork(memory.host("x"), client).connect(SERVER)
            assert not seen
            nursery.cancel_scope.cancel()

    check()
    if client is None:
        assert caplog.text.count("no TLS connection from x: TLS: ") == 1
        assert words in caplog.text or "http request" in caplog.text
    else:
        assert "no TLS connection from x: TLS: tlsv1 alert unknown ca" in caplog.text


def test_the_alert_reaches_a_dialler_whose_certificate_is_refused() -> None:
    """It trusts the listener, so its own handshake is over before it is refused."""
    strange = material(0, ca="other CA")
    strange.client.load_verify_locations(cadata=authority().pem.decode())

    @simulated
    async def check() -> None:
        memory, seen = MemoryNetwork(Random(0)), list[Connection]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, TlsNetwork(memory.host("b"), material(1)), seen.append)
            await trio.sleep(0.1)
            with closing(await TlsNetwork(memory.host("x"), strange).connect(SERVER)) as made:
                made.send_nowait(b"hello")
                with pytest.raises(trio.BrokenResourceError, match="alert unknown ca"):
                    await made.receive(10)
            assert not seen
            nursery.cancel_scope.cancel()

    try:
        check()
    finally:
        material.cache_clear()


def test_silent_strangers_are_bounded_and_a_member_gets_through(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @simulated
    async def check() -> None:
        memory, seen = MemoryNetwork(Random(0)), list[Connection]()
        limits = LinkLimits(pending_hellos=5)
        async with trio.open_nursery() as nursery:
            server = TlsNetwork(memory.host("b"), material(1), limits)
            nursery.start_soon(serve, server, seen.append)
            await trio.sleep(0.1)
            silent = [await memory.host("x").connect(SERVER) for _ in range(20)]
            with closing(await TlsNetwork(memory.host("a"), material(0)).connect(SERVER)):
                await trio.sleep(0.1)
                assert len(seen) == 1
            for each in silent[:15]:
                assert await each.receive(1) == b""
            with trio.fail_after(6):  # the rest ends by the time limit
                for each in silent[15:]:
                    await each.receive(1)
            for each in silent:
                each.close()
            nursery.cancel_scope.cancel()

    check()
    assert "more than 5 connections without a TLS handshake, most of them from x" in caplog.text


@simulated
async def test_a_listener_without_tls_is_refused() -> None:
    memory = MemoryNetwork(Random(0))

    async def answer(connection: Connection) -> None:
        await connection.receive(1000)
        connection.send_nowait(b"-ERR what is this\r\n")
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.host("b").serve, SERVER, answer)
        await trio.sleep(0.1)
        with pytest.raises(HandshakeError, match="b:7: TLS: "):
            await TlsNetwork(memory.host("a"), material(0)).connect(SERVER)
        nursery.cancel_scope.cancel()


@simulated
async def test_a_silent_listener_is_given_up() -> None:
    memory = MemoryNetwork(Random(0))

    async def wait(connection: Connection) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.host("b").serve, SERVER, wait)
        await trio.sleep(0.1)
        with pytest.raises(trio.TooSlowError):
            await TlsNetwork(memory.host("a"), material(0)).connect(SERVER)
        nursery.cancel_scope.cancel()


def test_only_tls_1_3_is_spoken_unless_set() -> None:
    assert material(0).server.minimum_version is ssl.TLSVersion.TLSv1_3
    assert material(0).client.minimum_version is ssl.TLSVersion.TLSv1_3
