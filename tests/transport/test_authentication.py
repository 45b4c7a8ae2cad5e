"""Who may come in: certificates and cluster keys, and every impostor, at either end."""

# pyright: reportPrivateUsage=false

import hmac
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from random import Random
from typing import cast

import attrs
import pytest
import trio

from quorate.errors import HandshakeError
from quorate.transport import (
    Accept,
    Challenge,
    ChallengeResponse,
    ChallengeWith,
    ClusterKey,
    Connection,
    FrameStream,
    Hello,
    HelloReply,
    HelloStatus,
    Identity,
    PeerSecurity,
    Reject,
    StreamPurpose,
    encode,
    open_stream,
)
from quorate.transport.streams import first_message, next_message, send_all
from quorate.transport.testing import MemoryNetwork
from tests.support.transport_world import (
    Recorder,
    address,
    commit,
    hello,
    make_links,
    simulated,
)

KEY, OTHER = b"k" * 32, b"o" * 32
SERVER = address(0)


async def drain(_hello: Hello, stream: FrameStream) -> None:
    await stream.receive()


@asynccontextmanager
async def member(
    security: PeerSecurity | None,
) -> AsyncGenerator[tuple[MemoryNetwork, Recorder]]:
    """Run member 0, which knows members 1 and 2, in memory."""
    network, recorder = MemoryNetwork(Random(0)), Recorder(drain)
    addresses = {number: address(number) for number in range(3)}
    made = make_links(0, addresses, network.host("host0"), recorder, security=security)
    async with trio.open_nursery() as nursery:
        await nursery.start(made.run)
        yield network, recorder
        nursery.cancel_scope.cancel()


def key(value: bytes | None, member_id: int) -> PeerSecurity:
    """Prove by a key, or not at all."""
    return PeerSecurity() if value is None else PeerSecurity.by(ClusterKey(value, member_id))


async def refuses(
    network: MemoryNetwork, said: Hello, security: PeerSecurity | None, words: str
) -> HandshakeError:
    """Dial member 0, and expect a refusal."""
    with pytest.raises(HandshakeError, match=words) as caught:
        await open_stream(network.host("host1"), SERVER, said, security=security)
    return caught.value


@pytest.mark.parametrize("called", [0, -1])
@pytest.mark.parametrize("purpose", list(StreamPurpose))
def test_two_members_with_one_key_let_each_other_in(purpose: StreamPurpose, called: int) -> None:
    @simulated
    async def check() -> None:
        async with member(key(KEY, 0)) as (network, recorder):
            said = hello(1, purpose=purpose, called_member_id=called, at=address(1))
            made = await open_stream(network.host("host1"), SERVER, said, security=key(KEY, 1))
            async with made as stream:
                await stream.send(commit(7))
                if purpose is StreamPurpose.CONSENSUS:
                    await recorder.until("message", 1)

    check()


def test_whole_clusters_link_up_with_a_key() -> None:
    @simulated
    async def check() -> None:
        network, recorders = MemoryNetwork(Random(0)), [Recorder(), Recorder()]
        addresses = {number: address(number) for number in range(2)}
        async with trio.open_nursery() as nursery:
            for number, recorder in enumerate(recorders):
                host = network.host(f"host{number}")
                security = key(KEY, number)
                made = make_links(number, addresses, host, recorder, security=security)
                await nursery.start(made.run)
            for number, recorder in enumerate(recorders):
                await recorder.until("up", 1 - number)
            nursery.cancel_scope.cancel()

    check()


@pytest.mark.parametrize(
    ("theirs", "ours", "words"),
    [
        (KEY, OTHER, "it has another cluster key, or is another member"),
        (KEY, None, "set cluster_key_file in"),
        (None, KEY, "has not proved that it has the cluster key"),
    ],
)
def test_other_keys_are_refused(theirs: bytes | None, ours: bytes | None, words: str) -> None:
    @simulated
    async def check() -> None:
        async with member(key(theirs, 0)) as (network, recorder):
            said = hello(1, at=address(1), called_member_id=0)
            await refuses(network, said, key(ours, 1), words)
            assert theirs is None or recorder.events == []

    check()


STEPS = ((KEY, b""), (KEY, OTHER), (OTHER, KEY), (OTHER, b""))
"""The keys of a member while KEY is replaced by OTHER: the one that is offered, and the other."""


@pytest.mark.parametrize("theirs", range(len(STEPS)))
@pytest.mark.parametrize("ours", range(len(STEPS)))
def test_a_key_is_replaced_step_by_step(theirs: int, ours: int) -> None:
    """Members that are one step apart let each other in; without a step between, they do not."""

    def keys(step: int, member_id: int) -> PeerSecurity:
        first, other = STEPS[step]
        return PeerSecurity.by(ClusterKey(first, member_id, other=other))

    @simulated
    async def check() -> None:
        async with member(keys(theirs, 0)) as (network, _):
            said = hello(1, at=address(1), called_member_id=0)
            if abs(theirs - ours) <= 1:
                made = await open_stream(
                    network.host("host1"), SERVER, said, security=keys(ours, 1)
                )
                async with made:
                    pass
            elif {theirs, ours} == {0, 3} or STEPS[theirs][0] not in STEPS[ours]:
                await refuses(network, said, keys(ours, 1), "another cluster key")

    check()


@attrs.frozen
class Supplier:
    """Believes every listener, and proves what it is given.

    Args:
        early: what to say in the hello.
        late: what to answer to a challenge.
    """

    early: Callable[[], bytes]
    late: Callable[[Hello, bytes], bytes] = lambda _hello, _challenge: b""

    def credentials(self) -> bytes:
        return self.early()

    def check_called(self, hello: Hello, identity: Identity | None) -> None: ...

    def on_challenge(self, hello: Hello, challenge: bytes) -> bytes:
        return self.late(hello, challenge)

    def check_reply(
        self, reply: HelloReply, identity: Identity | None, *, challenged: bool
    ) -> None: ...


def test_a_listener_refuses_a_wrong_proof_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    wrong = ClusterKey(OTHER, 1)
    careless = Supplier(
        wrong.credentials,
        lambda hello, challenge: wrong._mac(b"dialler", hello, 0, challenge[:32]),
    )

    @simulated
    async def check() -> None:
        async with member(key(KEY, 0)) as (network, recorder):
            for _ in range(3):
                error = await refuses(
                    network,
                    hello(1, at=address(1)),
                    PeerSecurity(supplier=careless),
                    "refused us: another cluster key than ours",
                )
                assert error.status is HelloStatus.UNAUTHORISED
            assert recorder.events == []

    check()
    assert caplog.text.count("refused CONSENSUS from member 1: another cluster key") == 1


# --- impostors that speak the protocol by hand ----------------------------------------------------


Exchange = Callable[[Connection, Hello], Awaitable[None]]


@simulated
async def test_a_proof_cant_be_used_again() -> None:
    """What a member has sent once lets nobody in: the listener draws a nonce each time."""
    async with member(key(KEY, 0)) as (network, recorder):
        good = ClusterKey(KEY, 1)
        said = attrs.evolve(hello(1, at=address(1)), credentials=b"n" * 32)

        async def attempt(response: bytes | None) -> tuple[object, bytes]:
            with closing(await network.host("x").connect(SERVER)) as connection:
                await send_all(connection, encode(said))
                challenge, decoder, rest = await first_message(connection)
                assert isinstance(challenge, Challenge)
                proof = response or good._mac(b"dialler", said, 0, challenge.challenge[:32])
                await send_all(
                    connection, encode(ChallengeResponse(0, challenge.session_id, proof))
                )
                reply, _ = await next_message(connection, decoder, rest)
                return reply, proof

        reply, proof = await attempt(None)
        assert isinstance(reply, HelloReply)
        assert reply.status is HelloStatus.ACCEPTED
        reply, _ = await attempt(proof)
        assert isinstance(reply, HelloReply)
        assert reply.status is HelloStatus.UNAUTHORISED
        assert recorder.count("lost", 1) == 1


@simulated
async def test_a_listeners_mac_is_no_proof_when_it_is_played_back() -> None:
    async with member(key(KEY, 0)) as (network, recorder):
        said = attrs.evolve(hello(1, at=address(1)), credentials=b"n" * 32)
        with closing(await network.host("x").connect(SERVER)) as connection:
            await send_all(connection, encode(said))
            challenge, decoder, rest = await first_message(connection)
            assert isinstance(challenge, Challenge)
            mac = challenge.challenge[32:]
            await send_all(connection, encode(ChallengeResponse(0, challenge.session_id, mac)))
            reply, _ = await next_message(connection, decoder, rest)
            assert isinstance(reply, HelloReply)
            assert reply.status is HelloStatus.UNAUTHORISED
        assert recorder.events == []


def listener(
    answer: Callable[[Hello], bytes], status: HelloStatus = HelloStatus.ACCEPTED
) -> Exchange:
    """Return an impostor that challenges with something, and accepts whatever comes."""

    async def exchange(connection: Connection, said: Hello) -> None:
        await send_all(connection, encode(Challenge(0, 1, answer(said))))
        assert not await connection.receive(1000), "it has proved something to an impostor"
        await accept_at_once(connection, said)

    return exchange


async def accept_at_once(connection: Connection, _said: Hello) -> None:
    await send_all(connection, encode(HelloReply(0, HelloStatus.ACCEPTED, "", 1)))


async def claim_removal(connection: Connection, _said: Hello) -> None:
    await send_all(connection, encode(HelloReply(0, HelloStatus.REMOVED, "you are out", 1)))


RECORDED = cast("ChallengeWith", ClusterKey(KEY, 0).connect(
    attrs.evolve(hello(1, called_member_id=0), credentials=b"old nonce".ljust(32)), None
)).challenge  # fmt: skip


def from_member(number: int) -> Callable[[Hello], bytes]:
    """Answer as a member with the key does that is another one than was called."""
    return lambda said: cast("ChallengeWith", ClusterKey(KEY, number).connect(said, None)).challenge


@pytest.mark.parametrize(
    "impostor",
    [
        accept_at_once,
        claim_removal,
        listener(lambda _: RECORDED),
        listener(lambda _: b""),
        listener(lambda _: b"x" * 31),
        listener(lambda _: RECORDED[:-1]),
        listener(lambda said: said.credentials * 2),
        listener(lambda said: said.credentials + hmac.digest(OTHER, said.credentials, "sha256")),
        listener(from_member(2)),
    ],
    ids=[
        "accepts at once",
        "claims removal",
        "replayed challenge",
        "no challenge",
        "short nonce",
        "truncated MAC",
        "reflected nonce",
        "other key",
        "other member",
    ],
)
def test_an_impostor_that_listens_is_refused_and_gets_no_proof(impostor: Exchange) -> None:
    @simulated
    async def check() -> None:
        async def serve(connection: Connection) -> None:
            said, _, _ = await first_message(connection)
            assert isinstance(said, Hello)
            with suppress(trio.BrokenResourceError):  # the dialler closes at once
                await impostor(connection, said)
                assert not await connection.receive(1000)

        network = MemoryNetwork(Random(0))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(network.host("host0").serve, SERVER, serve)
            await trio.sleep(0.1)
            error = await refuses(
                network, hello(1, called_member_id=0), key(KEY, 1), "host0:7000: it"
            )
            # A member must not believe a stranger that it was removed.
            assert error.status is None
            await trio.sleep(1)
            nursery.cancel_scope.cancel()

    check()


@pytest.mark.parametrize("purpose", [StreamPurpose.REPLAY, StreamPurpose.BACKUP])
def test_a_reader_needs_the_key_and_calls_any_member(purpose: StreamPurpose) -> None:
    @simulated
    async def check() -> None:
        async with member(key(KEY, 0)) as (network, _):
            said = hello(-1, purpose=purpose)
            (await open_stream(network.host("r"), SERVER, said, security=key(KEY, -1))).close()
            await refuses(network, said, None, "set cluster_key_file")

    check()


@pytest.mark.parametrize(
    "answers",
    [
        [],
        [encode(commit(1))],
        [encode(hello(1))],
        [encode(ChallengeResponse(0, 77, b"x" * 32))],
        [encode(ChallengeResponse(0, 1, b"x" * 32))[:-1]],
        [encode(ChallengeResponse(0, 1, b"x" * 10_000))],
        [b"\xff" * 100],
    ],
)
def test_other_answers_to_a_challenge_cost_only_the_connection(answers: list[bytes]) -> None:
    @simulated
    async def check() -> None:
        async with member(key(KEY, 0)) as (network, recorder):
            said = attrs.evolve(hello(1, at=address(1)), credentials=b"n" * 32)
            with closing(await network.host("x").connect(SERVER)) as connection:
                await send_all(connection, encode(said))
                challenge, _, _ = await first_message(connection)
                assert isinstance(challenge, Challenge)
                for answer in answers:
                    await send_all(connection, answer)
                with trio.fail_after(6):  # a silent one is closed after the time for a hello
                    with suppress(trio.BrokenResourceError):
                        assert await connection.receive(10) == b""
            assert recorder.events == []

    check()


class Password:
    """An authenticator that takes one of two passwords: in the hello, or after a challenge."""

    def connect(self, hello: Hello, identity: Identity | None) -> Accept | ChallengeWith | Reject:
        if hello.credentials == b"let me in":
            return Accept("early")
        return ChallengeWith(b"who is there?") if hello.credentials else Reject("nothing said")

    def respond(self, hello: Hello, challenge: bytes, credentials: bytes) -> Accept | Reject:
        assert challenge == b"who is there?"
        return Accept("late") if credentials == b"it is me" else Reject("no")


@simulated
async def test_an_authenticator_of_ones_own_may_challenge_and_name_the_principal() -> None:
    """Aeron's style: credentials come in the hello or after a challenge."""
    principals = list[str]()

    async def note(_hello: Hello, stream: FrameStream) -> None:
        principals.append(stream.principal)

    async with member(PeerSecurity(Password())) as (network, recorder):
        recorder._stream = note
        said = hello(-1, purpose=StreamPurpose.REPLAY)

        def proof(early: bytes, late: bytes = b"") -> PeerSecurity:
            return PeerSecurity(supplier=Supplier(lambda: early, lambda _hello, _challenge: late))

        for security in (proof(b"let me in"), proof(b"ask", b"it is me")):
            host = network.host("r")
            async with await open_stream(host, SERVER, said, security=security) as stream:
                assert await stream.receive() is None
        await refuses(network, said, proof(b"ask", b"hm"), "refused us: no$")
        await refuses(network, said, proof(b""), "refused us: nothing said")
    assert principals == ["early", "late"]


def test_a_key_is_never_shown() -> None:
    assert "kkk" not in repr(ClusterKey(KEY, 1))
    assert "kkk" not in repr(key(KEY, 1))
