"""Impostors with certificates: refused as diallers and as listeners, logged, and nothing touched.

Those that know no cluster key, or a wrong one, are in tests/transport/test_authentication.py.
"""

# pyright: reportPrivateUsage=false

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import attrs
import pytest
import trio
from cryptography.hazmat.primitives.asymmetric import ec

from quorate.errors import HandshakeError
from quorate.transport import (
    Certificates,
    Connection,
    FrameStream,
    Hello,
    HelloReply,
    HelloStatus,
    PeerSecurity,
    Purpose,
    StreamPurpose,
    encode,
    open_stream,
)
from quorate.transport.incoming import CLIENT_PURPOSES
from quorate.transport.streams import send_all
from quorate.transport.testing import MemoryNetwork
from quorate.transport.tls import Material, TlsFiles, TlsNetwork
from quorate.transport.tls.files import _context
from tests.support.certificates import DAY, NOW, authority, material, pem_of, uri, write
from tests.support.transport_world import (
    Recorder,
    address,
    commit,
    hello,
    make_links,
    simulated,
)

OURS = PeerSecurity.by(Certificates("test"))
REFUSED_BY_NAME = {
    "wrong id": uri(2),
    "wrong cluster": uri(1, cluster="other"),
    "reader": uri(1, Purpose.READER),
    "backup": uri(1, Purpose.BACKUP),
    "client": uri(1, Purpose.CLIENT),
}
MEMBERS_ONLY = {StreamPurpose.CONSENSUS, StreamPurpose.CATCHUP, StreamPurpose.EVENTS}
REFUSED_BY_TLS = ["expired", "not yet valid", "other CA", "self-signed", "two names", "no name"]


def loaded(files: TlsFiles) -> Material:
    """Load files without any of the checks: an impostor would not make them."""
    server = _context(ssl.PROTOCOL_TLS_SERVER, files)
    client = _context(ssl.PROTOCOL_TLS_CLIENT, files)
    return Material(server, client, material(1).identity, 0, ())


@cache
def impostor(kind: str) -> Material:
    """Return what an impostor has; all of them trust our CA."""
    with TemporaryDirectory() as name:
        folder, ours = Path(name), authority()
        if kind in REFUSED_BY_NAME:
            return loaded(ours.write(folder, REFUSED_BY_NAME[kind]))
        if kind == "expired":
            return loaded(ours.write(folder, uri(1), begins=NOW - 2 * DAY, ends=NOW - DAY))
        if kind == "not yet valid":
            return loaded(ours.write(folder, uri(1), begins=NOW + DAY, ends=NOW + 2 * DAY))
        if kind == "two names":
            return loaded(ours.write(folder, uri(1), uri(2)))
        if kind == "no name":
            return loaded(ours.write(folder))
        other = authority("other CA" if kind == "other CA" else "own CA")
        pair = other.issue(uri(1))
        if kind == "self-signed":
            key = ec.generate_private_key(ec.SECP256R1())
            own = authority("alone")
            pair = own.issue(uri(1), key=key)[0] + own.pem, pem_of(key)
        return loaded(write(folder, *pair, ours.pem))


@asynccontextmanager
async def member_0() -> AsyncGenerator[tuple[MemoryNetwork, Recorder]]:
    """Run member 0, which knows members 1 and 2, with TLS over a network in memory."""
    memory, recorder = MemoryNetwork(Random(0)), Recorder()
    addresses = {number: address(number) for number in range(3)}
    network = TlsNetwork(memory.host("host0"), material(0))
    made = make_links(0, addresses, network, recorder, security=OURS)
    async with trio.open_nursery() as nursery:
        await nursery.start(made.run)
        yield memory, recorder
        nursery.cancel_scope.cancel()


@simulated
async def test_the_right_member_gets_in_at_both_ends() -> None:
    """The same as below with no impostor: so it is the certificate that is refused there."""
    async with member_0() as (memory, recorder):
        other = Recorder()
        addresses = {number: address(number) for number in range(3)}
        network = TlsNetwork(memory.host("host1"), material(1))
        async with trio.open_nursery() as nursery:
            await nursery.start(make_links(1, addresses, network, other, security=OURS).run)
            await recorder.until("up", 1)
            await other.until("up", 0)
            other.links.send(0, commit(5))
            await recorder.until("message", 1)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("purpose", list(StreamPurpose))
@pytest.mark.parametrize("kind", REFUSED_BY_NAME)
def test_a_dialler_with_the_wrong_name_is_refused(
    kind: str, purpose: StreamPurpose, caplog: pytest.LogCaptureFixture
) -> None:
    @simulated
    async def check() -> None:
        async with member_0() as (memory, recorder):
            network = TlsNetwork(memory.host("x"), impostor(kind))
            said = hello(1, purpose=purpose, at=address(1))
            for _ in range(3):
                with pytest.raises(
                    HandshakeError, match="refused us: the certificate is"
                ) as caught:
                    await open_stream(network, address(0), said)
                assert caught.value.status is HelloStatus.UNAUTHORISED
            assert recorder.events == []
            assert recorder.peers == []

    check()
    words = f"refused {purpose.name} from member 1: the certificate is for {REFUSED_BY_NAME[kind]}"
    assert caplog.text.count(words) == 1


@pytest.mark.parametrize("kind", REFUSED_BY_TLS)
def test_a_dialler_with_a_wrong_certificate_is_refused(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    @simulated
    async def check() -> None:
        async with member_0() as (memory, recorder):
            network = TlsNetwork(memory.host("x"), impostor(kind))
            for _ in range(3):
                with pytest.raises((trio.BrokenResourceError, HandshakeError)):
                    await open_stream(network, address(0), hello(1, at=address(1)))
            assert recorder.events == []
            assert recorder.peers == []

    check()
    assert caplog.text.count("no TLS connection from x: ") == 1


@pytest.mark.parametrize("kind", [*REFUSED_BY_NAME, *REFUSED_BY_TLS])
def test_a_listener_that_is_an_impostor_is_refused_and_gets_no_hello(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "quorate.transport")
    got = list[bytes]()

    async def accept_anything(connection: Connection) -> None:
        """Tell the dialler that all is well, whatever it says."""
        try:
            await send_all(connection, encode(HelloReply(1, HelloStatus.ACCEPTED, "", 1)))
            got.append(await connection.receive(1000))
        except trio.BrokenResourceError:
            pass

    @simulated
    async def check() -> None:
        async with member_0() as (memory, recorder), trio.open_nursery() as nursery:
            network = TlsNetwork(memory.host("host1"), impostor(kind))
            nursery.start_soon(network.serve, address(1), accept_anything)
            await trio.sleep(10)
            assert recorder.events == []
            assert recorder.removals == []
            assert not recorder.links.connected(1)
            assert "certificate" in recorder.links.trouble(1)
            nursery.cancel_scope.cancel()

    check()
    assert set(got) <= {b""}
    assert caplog.text.count("no link to member 1 at host1:7000") <= 2  # refused, and not there yet


@pytest.mark.parametrize("kind", ["reader", "backup"])
def test_a_reader_may_read_from_any_member_and_no_more(kind: str) -> None:
    purposes = list[StreamPurpose]()

    async def note(hello: Hello, stream: object) -> None:
        purposes.append(hello.purpose)
        assert stream

    @simulated
    async def check() -> None:
        async with member_0() as (memory, recorder):
            recorder._stream = note
            network = TlsNetwork(memory.host("x"), impostor(kind))
            for purpose in StreamPurpose:
                said = hello(-1, purpose=purpose)
                if purpose in MEMBERS_ONLY:
                    with pytest.raises(HandshakeError, match="which may not open"):
                        await open_stream(network, address(0), said, security=OURS)
                else:
                    made = await open_stream(network, address(0), said, security=OURS)
                    await made.receive()
                    made.close()

    check()
    assert StreamPurpose.BACKUP in purposes
    assert not MEMBERS_ONLY & set(purposes)


def test_the_certificate_of_a_removed_member_reads_nothing() -> None:
    """Nor does a tool with it, which says no id; and a stream that is open then ends."""
    removed = set[int]()

    async def serve(hello: Hello, stream: FrameStream) -> None:
        while await stream.receive():
            pass

    def admits(hello: Hello) -> tuple[HelloStatus, str]:
        if hello.member_id in removed:
            return HelloStatus.REMOVED, f"member {hello.member_id} was removed"
        return HelloStatus.ACCEPTED, ""

    @simulated
    async def check() -> None:
        async with member_0() as (memory, recorder):
            recorder._stream = serve
            recorder.admits = admits  # type: ignore[method-assign]
            networks = {
                name: TlsNetwork(memory.host(f"x{name}"), material(name)) for name in (1, 2)
            }
            before = hello(-1, purpose=StreamPurpose.BACKUP)
            streams = {
                name: await open_stream(network, address(0), before, security=OURS)
                for name, network in networks.items()
            }
            removed.add(2)
            recorder.links.judge_anew()
            assert await streams[2].receive() is None
            for purpose in CLIENT_PURPOSES:
                said = hello(-1, purpose=purpose)
                with pytest.raises(HandshakeError, match="member 2 was removed"):
                    await open_stream(networks[2], address(0), said, security=OURS)
                (await open_stream(networks[1], address(0), said, security=OURS)).close()
            with trio.move_on_after(1) as scope:
                await streams[1].receive()
            assert scope.cancelled_caught, "the stream of a member that stays has ended"

    check()


def test_a_dial_ends_if_a_ca_was_taken_out_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    @simulated
    async def check() -> None:
        async with member_0() as (memory, _):
            network = TlsNetwork(memory.host("x"), material(2))

            def take_out(_host: str) -> None:
                network.material = attrs.evolve(network.material, authorities=frozenset[bytes]())

            # It is called as the handshake begins.
            monkeypatch.setattr(network, "_note_host", take_out)
            with pytest.raises(HandshakeError, match="a CA was taken out"):
                await network.connect(address(0))

    check()
