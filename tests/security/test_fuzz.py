"""Everything that is read before the other end has proved who it is, with any bytes in it.

Only the connection may end, by the errors that are documented. What waits in memory is bounded: the
tests look into the buffers while strangers go on sending. Afterwards an honest member gets in.
"""

# pyright: reportPrivateUsage=false

import re
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from quorate.errors import HandshakeError, WireError
from quorate.keyvalue.protocol import resp
from quorate.transport import (
    Challenge,
    ChallengeResponse,
    Connection,
    Hello,
    HelloReply,
    HelloStatus,
    LogBatch,
    Message,
    Network,
    PeerSecurity,
    encode,
    open_stream,
)
from quorate.transport.streams import send_all
from quorate.transport.testing import MemoryNetwork
from quorate.transport.tls import TlsConnection, TlsNetwork
from quorate.transport.tls.connection import HANDSHAKE_BYTES, HANDSHAKE_RECEIVE_BYTES
from quorate.transport.wire import HELLO_FRAME_BYTES, FrameDecoder
from tests.security.test_impostors import OURS
from tests.support.certificates import material
from tests.support.client_port_world import World, command
from tests.support.transport_world import (
    Recorder,
    address,
    hello,
    make_links,
    numbers,
    simulated,
)
from tests.transport.test_authentication import KEY, key
from tests.transport.test_wire import MESSAGES

few = settings(deadline=None, max_examples=60)

WAYS: dict[str, Callable[[int], PeerSecurity]] = {
    "open": lambda _: PeerSecurity(),
    "key": lambda member: key(KEY, member),
    "TLS": lambda _: OURS,
}


# --- pieces ---------------------------------------------------------------------------------------


def mutated(frame: bytes, seed: int) -> bytes:
    """Change, cut, double or insert a few bytes."""
    rng, data = Random(seed), bytearray(frame)
    for _ in range(rng.choice([0, 1, 1, 2, 5])):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 1:
                del data[at : at + rng.randrange(20)]
            case 2:
                data[at:at] = data[at : at + rng.randrange(100)]
            case _:
                data[at:at] = rng.randbytes(rng.randrange(20))
    return bytes(data)


GREETINGS: list[Message] = [
    hello(1, at=address(1)),
    attrs.evolve(hello(1, at=address(1)), credentials=b"n" * 32),
    hello(-1),
    Challenge(0, 1, bytes(64)),
    ChallengeResponse(0, 1, bytes(32)),
    HelloReply(1, HelloStatus.ACCEPTED, "", 1),
    HelloReply(1, HelloStatus.REMOVED, "you are out", 1),
    LogBatch(1, 0, bytes(10_000)),
]

greetings = st.sampled_from(GREETINGS) | MESSAGES
frames = (
    greetings.map(encode)
    | st.builds(mutated, greetings.map(encode), st.integers(0, 1 << 32))
    | st.binary(max_size=200)
)
# Often a good beginning: otherwise hardly anything gets past the first frame.
beginnings = st.sampled_from([b"", *map(encode, GREETINGS[:3]), *map(encode, GREETINGS[5:7])])
endings = st.sampled_from([b"", *map(encode, GREETINGS)])
streams = st.tuples(beginnings, endings, st.lists(frames, max_size=4).map(b"".join)).map(b"".join)


def pieces(data: bytes, seed: int) -> list[bytes]:
    rng, found = Random(seed), list[bytes]()
    while data:
        size = rng.choice([1, 7, 100, 5000])
        found.append(data[:size])
        data = data[size:]
    return found


async def say(connection: Connection, data: bytes, seed: int) -> None:
    """Send bytes in pieces, until they are out or the other end closes; then close."""
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        for piece in pieces(data, seed):
            await send_all(connection, piece)
            await trio.sleep(0.001)
        with trio.move_on_after(6):
            while await connection.receive(4096):
                pass


@contextmanager
def watched_decoders() -> Generator[list[int]]:
    """Note how much waits in decoders that have not been limited to more than a greeting."""
    most, feed = [0], FrameDecoder._feed_untrusted

    def look(self: FrameDecoder, data: bytes | bytearray | memoryview) -> list[Message]:
        limited = self._largest == HELLO_FRAME_BYTES
        found = feed(self, data)
        if limited and not found:
            most[0] = max(most[0], len(self._buffer))
        return found

    FrameDecoder._feed_untrusted = look  # type: ignore[method-assign]
    try:
        yield most
    finally:
        FrameDecoder._feed_untrusted = feed  # type: ignore[method-assign]


class Careless(Recorder):
    """Takes whatever comes from those that were let in."""

    def on_hello(self, member: int, hello: Hello) -> None: ...


def network_of(way: str, memory: MemoryNetwork, member: int, host: str = "") -> Network:
    inner = memory.host(host or f"host{member}")
    return TlsNetwork(inner, material(member)) if way == "TLS" else inner


# --- hello, challenge, and what comes with them ---------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_member_survives_whatever_dials_it(way: str) -> None:
    @few
    @given(streams, st.integers(0, 1 << 32))
    def check(data: bytes, seed: int) -> None:
        run(data, seed)

    @simulated
    async def run(data: bytes, seed: int) -> None:
        memory, recorder = MemoryNetwork(Random(0)), Careless(drain)
        addresses = {number: address(number) for number in range(3)}
        made = make_links(0, addresses, network_of(way, memory, 0), recorder, security=WAYS[way](0))
        async with trio.open_nursery() as nursery:
            await nursery.start(made.run)
            # With TLS the stranger has a certificate, and says what it likes behind it.
            stranger = network_of(way, memory, 1, "stranger")
            with watched_decoders() as most, closing(await stranger.connect(address(0))) as one:
                await say(one, data, seed)
            assert most[0] <= HELLO_FRAME_BYTES
            assert not made._reception._strangers._waiting
            if way == "key":
                assert recorder.events == []
                assert numbers(recorder.messages(1)) == []
            other = Recorder()
            honest = make_links(
                2, addresses, network_of(way, memory, 2), other, security=WAYS[way](2)
            )
            await nursery.start(honest.run)
            await other.until("up", 0)
            nursery.cancel_scope.cancel()

    check()


async def drain(_hello: Hello, stream: object) -> None:
    assert stream


@pytest.mark.parametrize("way", WAYS)
def test_a_dialler_survives_whatever_answers(way: str) -> None:
    @few
    @given(streams, st.integers(0, 1 << 32))
    def check(data: bytes, seed: int) -> None:
        run(data, seed)

    @simulated
    async def run(data: bytes, seed: int) -> None:
        async def answer(connection: Connection) -> None:
            await say(connection, data, seed)

        memory = MemoryNetwork(Random(0))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(network_of(way, memory, 1).serve, address(1), answer)
            await trio.sleep(0.1)
            said = hello(0, called_member_id=1, at=address(0))
            with watched_decoders() as most:
                try:
                    stream = await open_stream(
                        network_of(way, memory, 0), address(1), said, security=WAYS[way](0)
                    )
                except (HandshakeError, WireError, trio.BrokenResourceError, trio.TooSlowError):
                    pass
                else:
                    assert way != "key"
                    stream.close()
            assert most[0] <= HELLO_FRAME_BYTES
            nursery.cancel_scope.cancel()

    check()


# --- TLS ------------------------------------------------------------------------------------------


@cache
def flights() -> tuple[list[bytes], list[bytes]]:
    """Record a handshake: what the dialler sends, and what the listener sends."""
    here = TlsConnection(Nowhere(), material(0).client, server=False)
    there = TlsConnection(Nowhere(), material(1).server, server=True)
    sent: tuple[list[bytes], list[bytes]] = ([], [])
    for _ in range(4):
        for end, other, to in ((here, there, sent[0]), (there, here, sent[1])):
            with suppress(OSError):
                end._tls.do_handshake()
            if data := end._outgoing.read():
                to.append(data)
                other._arrived.write(data)
    return sent


class Nowhere:
    """A connection that carries nothing."""

    peer = "nowhere"
    identity = None

    def send_nowait(self, data: bytes | memoryview) -> int:
        return len(data)

    async def wait_writable(self) -> None: ...

    async def receive(self, max_bytes: int) -> bytes:
        raise AssertionError(max_bytes)

    def close(self) -> None: ...


class Script(Nowhere):
    """A connection over which prepared pieces come, and then the end."""

    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = chunks
        self.read = 0

    async def receive(self, max_bytes: int) -> bytes:
        await trio.lowlevel.checkpoint()
        if not self.chunks:
            return b""
        piece, self.chunks[0] = self.chunks[0][:max_bytes], self.chunks[0][max_bytes:]
        if not self.chunks[0]:
            del self.chunks[0]
        self.read += len(piece)
        return piece


hellos = st.sampled_from([0, 1])


def mutated_flight(end: int, seed: int) -> bytes:
    return mutated(b"".join(flights()[end]), seed)


def cut_flight(end: int, cut: int) -> bytes:
    return b"".join(flights()[end])[:cut]


def record(kind: int, size: int, body: bytes) -> bytes:
    return bytes([kind, 3, 3]) + size.to_bytes(2, "big") + body


records = (
    st.builds(mutated_flight, hellos, st.integers(0))
    | st.builds(cut_flight, hellos, st.integers(0, 3000))
    | st.binary(max_size=300)
    | st.builds(
        record,
        st.sampled_from([20, 21, 22, 23, 24, 255]),
        st.integers(0, 65535),
        st.binary(max_size=500),
    )
    | st.sampled_from([encode(hello(1)), b"*1\r\n$4\r\nPING\r\n", b"GET / HTTP/1.0\r\n\r\n"])
    | st.just(bytes(HANDSHAKE_BYTES * 2))
)


@few
@given(st.lists(records, max_size=4).map(b"".join), st.booleans(), st.integers(0, 1 << 32))
def test_a_handshake_with_any_bytes_ends_in_words(data: bytes, server: bool, seed: int) -> None:  # noqa: FBT001
    @simulated
    async def check() -> None:
        script = Script(pieces(data, seed))
        context = material(1).server if server else material(1).client
        end = TlsConnection(script, context, server=server)
        with pytest.raises((HandshakeError, trio.BrokenResourceError)):
            await end.shake_hands(trio.Lock())
        assert end.identity is None
        assert script.read <= HANDSHAKE_BYTES + HANDSHAKE_RECEIVE_BYTES
        assert end._arrived.pending <= HANDSHAKE_BYTES + HANDSHAKE_RECEIVE_BYTES
        end.close()

    check()


@few
@given(st.lists(records, max_size=4).map(b"".join), st.integers(0, 1 << 32))
def test_any_records_behind_a_handshake_break_the_connection(data: bytes, seed: int) -> None:
    """They are not encrypted by the other end, so nothing of them is delivered."""

    @simulated
    async def check() -> None:
        script = Script([])
        end = TlsConnection(script, material(1).server, server=True)
        here = TlsConnection(Nowhere(), material(0).client, server=False)
        for _ in range(4):
            for one, other in ((here, end), (end, here)):
                with suppress(OSError):
                    one._tls.do_handshake()
                other._arrived.write(one._outgoing.read())
        await end.shake_hands(trio.Lock())
        script.chunks = pieces(data, seed)
        with pytest.raises(trio.BrokenResourceError):
            await end.receive(1 << 16)
        assert end._arrived.pending <= 1 << 17
        end.close()

    check()


# --- RESP -----------------------------------------------------------------------------------------

WORDS = st.sampled_from(
    b"AUTH HELLO QUIT RESET PING GET SET MULTI EXEC ACL SETUSER DELUSER WHOAMI default bob secret "
    b"3 2 -1 >x on QUORATE.ONCE QUORATE.STATUS QUORATE.CONTROL INFO SETNAME WATCH SUBSCRIBE "
    b"QUORATE.REQUEST QUORATE.WATCH QUORATE.UNWATCH".split()
)
commands = st.lists(WORDS | st.binary(max_size=40), min_size=1, max_size=6).map(
    lambda words: command(*words)
)
said = st.lists(
    commands
    | st.builds(mutated, commands, st.integers(0, 1 << 32))
    | st.binary(max_size=200)
    | st.sampled_from(
        [
            b"*1000000\r\n",
            b"$536870912\r\n",
            b"*-1\r\n",
            b"*99999999999999999999\r\n",
            b"*2\r\n$4\r\nAUTH\r\n$33554431\r\n",
            flights()[0][0],  # TLS at a port without
            b"PING\r\n",
            b"a" * 5000,
        ]
    ),
    min_size=1,
    max_size=8,
).map(b"".join)
FINE = re.compile(
    rb"(-(NOAUTH|ERR|WRONGPASS|NOPROTO|BUSY|DENIED|OOM)[^\r\n]*\r\n|\+OK\r\n|\+RESET\r\n)*"
    rb"(-[^\r\n]*)?(\r\n?)?"
)


@settings(deadline=None, max_examples=40)
@given(said, st.integers(0, 1 << 32))
def test_before_a_login_nothing_is_answered_but_errors(data: bytes, seed: int) -> None:
    async def main(folder: Path) -> None:
        async with World.opened(folder / "tables") as world:
            root = await world.connect()
            await root.ask(command("ACL", "SETUSER", "boss", "on", ">boss", "~*", "+@all"), resp.OK)
            await root.ask(command("ACL", "SETUSER", "default", "resetpass"), resp.OK)
            before = len(world.member.commands)
            stranger = await world.connect()
            for piece in pieces(data, seed):
                with suppress(trio.BrokenResourceError):
                    await stranger.send(piece)
            with suppress(trio.BrokenResourceError):
                await stranger.stream.send_eof()
            got = bytearray()
            with trio.move_on_after(3), suppress(trio.BrokenResourceError):
                while piece := await stranger.stream.receive_some():
                    got += piece
            assert FINE.fullmatch(bytes(got)), bytes(got)[:500]
            assert len(world.member.commands) == before, "a stranger's command was executed"
            assert world.port.state.unfinished_bytes <= 1 << 16
            honest = await world.connect()
            await honest.ask(command("AUTH", "boss", "boss"), resp.OK)

    with TemporaryDirectory() as name:
        trio.run(main, Path(name))
