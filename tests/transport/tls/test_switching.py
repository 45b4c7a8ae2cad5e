"""TLS and plain connections at one port: whichever two members can speak to each other, do."""

from contextlib import suppress
from random import Random

import attrs
import pytest
import trio

from quorate.errors import HandshakeError
from quorate.transport import (
    Accept,
    Address,
    Authenticator,
    Certificates,
    ChallengeWith,
    Connection,
    FrameStream,
    Hello,
    Identity,
    LinkLimits,
    Network,
    PeerSecurity,
    Reject,
    StreamPurpose,
    encode,
    open_stream,
)
from quorate.transport.codec import HEADER
from quorate.transport.streams import CONNECTION_ERRORS
from quorate.transport.testing import MemoryNetwork
from quorate.transport.tls import SwitchingNetwork, TlsNetwork
from quorate.transport.tls.switching import is_tls
from quorate.transport.wire import HELLO_FRAME_BYTES
from tests.support.certificates import material
from tests.support.transport_world import Recorder, address, hello, make_links, simulated

SERVER = address(0)


async def drain(_hello: Hello, stream: FrameStream) -> None:
    await stream.receive()


KINDS = ("plain", "switching", "tls")


def made(kind: str, plain: Network, member_id: int) -> tuple[Network, PeerSecurity]:
    """What a member of a kind uses."""
    tls = TlsNetwork(plain, material(member_id))
    match kind:
        case "plain":
            return plain, PeerSecurity()
        case "switching":
            proof = Certificates("test", accept_plain=True)
            return SwitchingNetwork(plain, tls), PeerSecurity.by(proof)
        case _:
            return tls, PeerSecurity.by(Certificates("test"))


class Noting:
    """Judges as another one does, and notes whether those that it has let in came by TLS."""

    def __init__(self, inner: Authenticator) -> None:
        self.respond = inner.respond
        self.by_tls: list[bool] = []
        self._inner = inner

    def connect(self, hello: Hello, identity: Identity | None) -> Accept | ChallengeWith | Reject:
        said = self._inner.connect(hello, identity)
        if isinstance(said, Accept):
            self.by_tls.append(identity is not None)
        return said


@pytest.mark.parametrize("theirs", KINDS)
@pytest.mark.parametrize("ours", KINDS)
def test_members_one_step_apart_let_each_other_in(ours: str, theirs: str) -> None:
    @simulated
    async def check() -> None:
        network, recorder = MemoryNetwork(Random(0)), Recorder(drain)
        addresses = {number: address(number) for number in range(3)}
        there, security = made(theirs, network.host("host0"), 0)
        noting = Noting(security.authenticator)
        security = attrs.evolve(security, authenticator=noting)
        links = make_links(0, addresses, there, recorder, security=security)
        here, proof = made(ours, network.host("host1"), 1)
        said = hello(1, at=address(1), called_member_id=0, purpose=StreamPurpose.REPLAY)
        async with trio.open_nursery() as nursery:
            await nursery.start(links.run)
            if {ours, theirs} == {"plain", "tls"}:
                with pytest.raises(CONNECTION_ERRORS):
                    await open_stream(here, SERVER, said, security=proof)
                assert noting.by_tls == []
            else:
                async with await open_stream(here, SERVER, said, security=proof):
                    assert noting.by_tls == ["plain" not in {ours, theirs}]
            nursery.cancel_scope.cancel()

    check()


@pytest.mark.parametrize("theirs", ["tls", "switching"])
def test_an_impostor_with_a_certificate_is_refused_all_the_same(theirs: str) -> None:
    @simulated
    async def check() -> None:
        network, recorder = MemoryNetwork(Random(0)), Recorder()
        addresses = {number: address(number) for number in range(3)}
        there, security = made(theirs, network.host("host0"), 0)
        links = make_links(0, addresses, there, recorder, security=security)
        here, proof = made("tls", network.host("host1"), 2)
        said = hello(1, at=address(1), called_member_id=0)
        async with trio.open_nursery() as nursery:
            await nursery.start(links.run)
            with pytest.raises(HandshakeError, match="the certificate is for"):
                await open_stream(here, SERVER, said, security=proof)
            nursery.cancel_scope.cancel()

    check()


def test_the_first_bytes_of_any_hello_are_none_of_tls() -> None:
    for size in range(HELLO_FRAME_BYTES + 1):
        assert not is_tls(HEADER.pack(size, 3, 1, 0, 0)[:3])
    assert is_tls(b"\x16\x03\x01")
    assert not is_tls(encode(hello(1, at=address(1)))[:3])


@simulated
async def test_those_that_say_nothing_are_bounded_and_closed() -> None:
    network = MemoryNetwork(Random(0))
    plain = network.host("host0")
    limits = LinkLimits(pending_hellos=2)
    switching = SwitchingNetwork(plain, TlsNetwork(plain, material(0)), limits)
    began: list[Connection] = []

    async def keep(connection: Connection) -> None:
        began.append(connection)

    async def ends(connection: Connection) -> float:
        with suppress(trio.BrokenResourceError):
            assert not await connection.receive(1)
        return trio.current_time()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(switching.serve, SERVER, keep)
        await trio.sleep(0.1)
        client = network.host("host1")
        three = [await client.connect(SERVER) for _ in range(3)]
        three[2].send_nowait(b"ab")  # not enough to tell
        start = trio.current_time()
        assert await ends(three[0]) < start + 1  # there were too many
        assert start + 4 < await ends(three[1]) < start + 6
        await ends(three[2])
        assert not began
        whole = await client.connect(SERVER)
        for byte in b"abc":
            whole.send_nowait(bytes([byte]))
            await trio.sleep(0.1)
        assert await began[0].receive(2) == b"ab"
        assert await began[0].receive(2) == b"c"
        whole.close()
        nursery.cancel_scope.cancel()


@simulated
async def test_a_member_that_is_not_there_is_dialled_once() -> None:
    network = MemoryNetwork(Random(0))
    plain = network.host("host1")
    switching = SwitchingNetwork(plain, TlsNetwork(plain, material(1)))
    with pytest.raises(OSError, match="refused"):
        await switching.connect(Address("host9", 1))
