"""Attacks by those that have something: a few bytes before they are known, or a certificate."""

# pyright: reportPrivateUsage=false

import os
import ssl
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

import attrs
import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from quorate.errors import ConfigurationError, HandshakeError
from quorate.transport import (
    Address,
    Challenge,
    ChallengeResponse,
    ClusterKey,
    Connection,
    FrameStream,
    Hello,
    HelloReply,
    HelloStatus,
    LinkLimits,
    Purpose,
    StreamPurpose,
    encode,
    open_stream,
)
from quorate.transport.authentication import ChallengeWith, Reject
from quorate.transport.limits import REMEMBERED_REASONS
from quorate.transport.strangers import FORGET_SECONDS, OnceLog
from quorate.transport.streams import CONNECTION_ERRORS, first_message, send_all
from quorate.transport.testing import MemoryNetwork
from quorate.transport.tls import Material, TlsFiles, TlsNetwork, load_material
from quorate.transport.tls.connection import ANSWER_BYTES
from quorate.transport.wire import HELLO_FRAME_BYTES, FrameDecoder
from tests.security.test_impostors import OURS, loaded, member_0
from tests.support.certificates import (
    DAY,
    NOW,
    authority,
    builder,
    material,
    pem_of,
    uri,
    write,
)
from tests.support.transport_world import Recorder, address, hello, make_links, simulated
from tests.transport.test_authentication import KEY, SERVER, key, member
from tests.transport.tls.test_connection import pair

HUGE = encode(ChallengeResponse(0, 1, bytes(1 << 20)))  # a header that promises a megabyte


# --- memory -------------------------------------------------------------------------------------


def test_a_large_frame_that_begins_behind_the_hello_is_refused_at_its_header() -> None:
    """Its header is seen together with the hello, when larger frames were still allowed."""
    decoder = FrameDecoder(HELLO_FRAME_BYTES)
    said = encode(hello(1))
    assert len(decoder.feed(said + HUGE[:100])) == 1
    decoder.limit(HELLO_FRAME_BYTES)
    with pytest.raises(Exception, match="bytes, at most 4096 here"):
        decoder.feed(HUGE[100:101])
    assert decoder.pending == 0


@simulated
async def test_a_stranger_cant_fill_memory_before_its_proof() -> None:
    async with member(key(KEY, 0)) as (network, recorder):
        said = attrs.evolve(hello(1, at=address(1)), credentials=b"n" * 32)
        with closing(await network.host("x").connect(SERVER)) as connection:
            await send_all(connection, encode(said) + HUGE[:100])
            challenge, _, _ = await first_message(connection)
            assert isinstance(challenge, Challenge)
            sent = 0
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                for begin in range(100, len(HUGE), 1000):
                    await send_all(connection, HUGE[begin : begin + 1000])
                    sent += 1000
                    await trio.sleep(0.01)
            assert sent < 10_000, "it was read, and kept"
        assert recorder.events == []


@simulated
async def test_new_keys_without_end_break_the_connection() -> None:
    """Each new key is answered with one of ours, which the other end does not read."""

    class KeyChanger:
        """OpenSSL, as if each byte that arrives were a request for a new key."""

        def __init__(self, tls: ssl.SSLObject, arrived: ssl.MemoryBIO, out: ssl.MemoryBIO) -> None:
            self.tls, self.arrived, self.out = tls, arrived, out

        def pending(self) -> int:
            return 0

        def read(self, _room: int) -> bytes:
            asked = len(self.arrived.read())
            self.out.write(bytes(22 * asked))
            raise ssl.SSLWantReadError

        def write(self, data: bytes) -> int:
            return self.tls.write(data)

    async with pair() as (here, there):
        while there.send_nowait(bytes(1 << 20)):  # until the network is full
            pass
        there._tls = KeyChanger(there._tls, there._arrived, there._outgoing)  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_all, here._inner, bytes(100_000))
            with pytest.raises(trio.BrokenResourceError, match="new keys, and does not read"):
                await there.receive(1000)
            nursery.cancel_scope.cancel()
        assert there._outgoing.pending < ANSWER_BYTES + 22 * (64 << 10) + 1


# --- what is logged -------------------------------------------------------------------------------


@simulated
async def test_nobody_writes_lines_of_its_own_into_the_log() -> None:
    said = attrs.evolve(hello(1, at=address(1)), service="x\nERROR all is lost\x1b[2J")
    recorder = Recorder()
    memory = MemoryNetwork(Random(0))
    made = make_links(0, {0: address(0), 1: address(1)}, memory.host("host0"), recorder)
    made._service = made._reception._service = "ours"
    async with trio.open_nursery() as nursery:
        await nursery.start(made.run)
        with pytest.raises(HandshakeError, match=r"a x\?ERROR all is lost\?\[2J, expected"):
            await open_stream(memory.host("host1"), address(0), said)
        nursery.cancel_scope.cancel()


@simulated
async def test_nor_by_the_reason_of_a_refusal() -> None:
    async def refuse(connection: Connection) -> None:
        await first_message(connection)
        status, words = HelloStatus.WRONG_MEMBER, "no\nERROR all is lost"
        await send_all(connection, encode(HelloReply(0, status, words, 1)))

    memory = MemoryNetwork(Random(0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(memory.host("host0").serve, address(0), refuse)
        await trio.sleep(0.1)
        for security in (None, key(KEY, 1)):
            with pytest.raises(HandshakeError, match=r"no\?ERROR all is lost") as caught:
                await open_stream(memory.host("x"), address(0), hello(1), security=security)
            assert "\n" not in str(caught.value) + caught.value.reason
        nursery.cancel_scope.cancel()


def test_strangers_cant_silence_the_log_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    @simulated
    async def check() -> None:
        warn = OnceLog().warn
        for number in range(3 * REMEMBERED_REASONS):
            warn(f"nonsense {number}")
        assert len(caplog.messages) == REMEMBERED_REASONS + 1
        assert caplog.messages[-1] == "more than 256 reasons: no more are logged in this hour"
        await trio.sleep(FORGET_SECONDS)
        for _ in range(2):
            warn("an impostor")
        assert caplog.messages[REMEMBERED_REASONS + 1 :] == ["an impostor"]

    check()


# --- certificates ---------------------------------------------------------------------------------


def strange_certificate(folder: Path) -> TlsFiles:
    """Write a certificate of our CA whose name is no text."""
    own, raw = ec.generate_private_key(ec.SECP256R1()), b"\xff\xfe"
    names = bytes([0x30, len(raw) + 2, 0x86, len(raw)]) + raw
    made = builder(authority().certificate.subject, "leaf", own, NOW - DAY, NOW + DAY)
    made = made.add_extension(
        x509.UnrecognizedExtension(x509.ObjectIdentifier("2.5.29.17"), names), critical=False
    )
    signed = made.sign(authority().key, hashes.SHA256())
    pem = signed.public_bytes(serialization.Encoding.PEM)
    return write(folder, pem, pem_of(own), authority().pem)


def test_a_certificate_whose_name_is_no_text_ends_only_its_connection(tmp_path: Path) -> None:
    files = strange_certificate(tmp_path)

    @simulated
    async def check() -> None:
        async with member_0() as (memory, recorder), trio.open_nursery() as nursery:
            network = TlsNetwork(memory.host("host1"), loaded(files))
            with suppress(*CONNECTION_ERRORS):
                await open_stream(network, address(0), hello(1, at=address(1)))
            nursery.start_soon(network.serve, address(1), nothing)
            await trio.sleep(5)
            assert "names that are no text" in recorder.links.trouble(1)
            assert recorder.events == []
            nursery.cancel_scope.cancel()

    check()
    with pytest.raises(ConfigurationError, match="names that are no text"):
        load_material(files, cluster="test", purposes=(Purpose.MEMBER,))


async def nothing(connection: Connection) -> None:
    with suppress(*CONNECTION_ERRORS):
        await connection.receive(1)


@pytest.mark.parametrize("name", ["certificate", "key", "ca"])
def test_a_file_that_is_gone_for_an_instant_is_a_mistake_and_no_crash(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tools replace a file by removing it first; OpenSSL opens it after we have looked at it."""
    files = authority().write(tmp_path, uri(2))
    monkeypatch.setattr("quorate.transport.tls.files._check_readable", Mock())
    Path(getattr(files, name)).unlink()
    with pytest.raises(ConfigurationError, match="No such file or directory, while it was read"):
        load_material(files, cluster="test", purposes=(Purpose.MEMBER,))


def test_a_stream_does_not_outlive_the_certificate_at_its_other_end(tmp_path: Path) -> None:
    ends = datetime.now(UTC) + timedelta(hours=1)
    files = authority().write(tmp_path, uri("r", Purpose.READER), ends=ends)
    reader = load_material(files, cluster="test", purposes=(Purpose.READER,))
    ended = list[float]()

    @simulated
    async def check() -> None:
        async def send_for_ever(_hello: Hello, stream: FrameStream) -> None:
            try:
                while True:
                    await stream.send(hello(1))
                    await trio.sleep(60)
            finally:
                ended.append(trio.current_time())

        async with member_0() as (memory, recorder):
            recorder._stream = send_for_ever
            network = TlsNetwork(memory.host("x"), reader)
            said = hello(-1, purpose=StreamPurpose.REPLAY)
            began = trio.current_time()
            stream = await open_stream(network, address(0), said, security=OURS)
            with suppress(trio.BrokenResourceError):
                while trio.current_time() < began + 7200:
                    await stream._connection.receive(1 << 20)
            assert 3500 < ended[0] - began < 3700

    check()


def test_a_stolen_certificate_is_of_no_use_once_its_ca_is_gone(tmp_path: Path) -> None:
    """Also on a stream that was opened before; the same for a handshake that is under way."""
    both = b"".join(authority(name).pem for name in ("test CA", "new CA"))

    def of(name: object, ca: str, trusted: bytes, purpose: Purpose = Purpose.MEMBER) -> Material:
        pair_ = authority(ca).issue(uri(name, purpose))
        folder = tmp_path / os.urandom(4).hex()
        folder.mkdir()
        files = write(folder, *pair_, trusted)
        return load_material(files, cluster="test", purposes=(purpose,))

    @simulated
    async def check() -> None:
        memory, recorder = MemoryNetwork(Random(0)), Recorder()
        open_now = list[str]()

        async def wait(_hello: Hello, stream: FrameStream) -> None:
            open_now.append(stream.principal)
            try:
                await stream.receive()
            finally:
                open_now.remove(stream.principal)

        recorder._stream = wait
        server = TlsNetwork(memory.host("host0"), of(0, "test CA", both))
        made = make_links(0, {0: address(0)}, server, recorder, security=OURS)
        said = hello(-1, purpose=StreamPurpose.REPLAY)
        async with trio.open_nursery() as nursery:
            await nursery.start(made.run)
            for name, ca in (("thief", "test CA"), ("good", "new CA")):
                network = TlsNetwork(memory.host(name), of(name, ca, both, Purpose.READER))
                await open_stream(network, address(0), said, security=OURS)
            server.material = of(0, "new CA", both)
            assert server.doubtful() == []  # nothing is trusted less than before
            server.material = of(0, "new CA", authority("new CA").pem)
            for connection in server.doubtful():
                connection.close()
            await trio.sleep(0.1)
            assert open_now == []
            network = TlsNetwork(memory.host("thief"), of("t", "test CA", both, Purpose.READER))
            with suppress(HandshakeError, trio.BrokenResourceError):
                await open_stream(network, address(0), said, security=OURS)
            network = TlsNetwork(memory.host("good"), of("good", "new CA", both, Purpose.READER))
            await open_stream(network, address(0), said, security=OURS)
            assert open_now == [uri("good", Purpose.READER)]
            nursery.cancel_scope.cancel()

    check()


@simulated
async def test_a_reader_cant_take_the_streams_of_another_one() -> None:
    async def wait(_hello: Hello, stream: FrameStream) -> None:
        await stream.receive()

    memory, recorder = MemoryNetwork(Random(0)), Recorder(wait)
    network = TlsNetwork(memory.host("host0"), material(0))
    made = make_links(
        0, {0: address(0)}, network, recorder, security=OURS, limits=LinkLimits(streams=2)
    )
    said = hello(-1, purpose=StreamPurpose.BACKUP)
    async with trio.open_nursery() as nursery:
        await nursery.start(made.run)
        for member_id in (1, 2):  # any two certificates will do
            dialler = TlsNetwork(memory.host("x"), material(member_id))
            for _ in range(2):
                await open_stream(dialler, address(0), said, security=OURS)
            with pytest.raises(HandshakeError, match="2 streams are open already"):
                await open_stream(dialler, address(0), said, security=OURS)
        nursery.cancel_scope.cancel()


# --- the cluster key ------------------------------------------------------------------------------

HELLO = attrs.evolve(
    hello(1, called_member_id=0, at=Address("here", 7000)), credentials=b"n" * 32, service="ours"
)
CHANGED: dict[str, Any] = {
    "cluster": "other",
    "member_id": 2,
    "protocol_version": HELLO.protocol_version + 1,
    "incarnation": 5,
    "purpose": StreamPurpose.BACKUP,
    "log_session_id": 5,
    "join_position": 5,
    "called_member_id": -1,
    "history": 5,
    "instance": 5,
    "service": "theirs",
    "host": "evil",
    "port": 1,
    "credentials": b"N" * 32,
}


@pytest.mark.parametrize("field", [each.name for each in attrs.fields(Hello)])
def test_no_field_of_a_hello_can_be_changed_on_the_way(field: str) -> None:
    """Neither end accepts a proof that was made for another hello."""
    listener, dialler = ClusterKey(KEY, 0), ClusterKey(KEY, 1)
    changed = attrs.evolve(HELLO, **{field: CHANGED[field]})
    challenge = listener.connect(changed, None)
    assert isinstance(challenge, ChallengeWith)
    with pytest.raises(HandshakeError, match="another cluster key, or is another member"):
        dialler.on_challenge(HELLO, challenge.challenge)
    honest = listener.connect(HELLO, None)
    assert isinstance(honest, ChallengeWith)
    proof = dialler.on_challenge(HELLO, honest.challenge)
    assert not isinstance(listener.respond(HELLO, honest.challenge, proof), Reject)
    assert isinstance(listener.respond(changed, honest.challenge, proof), Reject)


@pytest.mark.parametrize("proof", [b"", b"x", b"x" * 31, b"x" * 32, b"x" * 33, b"\xff" * 64])
def test_a_proof_of_any_length_is_compared_and_refused(proof: bytes) -> None:
    listener = ClusterKey(KEY, 0)
    challenge = listener.connect(HELLO, None)
    assert isinstance(challenge, ChallengeWith)
    assert isinstance(listener.respond(HELLO, challenge.challenge, proof), Reject)
