"""Impostors at whole members: whatever they say at either end, no store changes, and it is logged.

Each impostor sends votes, terms and log with its hello, without waiting for the answer. So what
comes together with a hello that is refused must be dropped, too.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import hashlib
import logging
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs
import pytest
import trio
import trio.testing

from quorate.errors import HandshakeError
from quorate.node.config.security import Security
from quorate.simulation.ledger import open_ledgers
from quorate.transport import (
    PROTOCOL_VERSION,
    Address,
    CanvassPosition,
    Challenge,
    ChallengeResponse,
    ClusterKey,
    CommitPosition,
    Connection,
    Hello,
    HelloReply,
    HelloStatus,
    Message,
    Network,
    Purpose,
    RequestVote,
    StreamPurpose,
    TerminationPosition,
    encode,
)
from quorate.transport.streams import CONNECTION_ERRORS, first_message, send_all
from quorate.transport.tls import Material, TlsNetwork
from tests.security.test_impostors import REFUSED_BY_NAME, REFUSED_BY_TLS, loaded
from tests.support.certificates import DAY, NOW, authority, uri, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorate.simulation import Ledger, World

    Clock = trio.testing.MockClock

CLUSTER: Final = "simulated"
KEY, OTHER = b"k" * 32, b"o" * 32
TERM = 1_000_000
POISON: list[Message] = [
    CanvassPosition(TERM, 1 << 40, TERM, 1, PROTOCOL_VERSION),
    RequestVote(TERM, 1 << 40, TERM, 1, PROTOCOL_VERSION),
    CommitPosition(TERM, 1 << 40, 1, 0),
    TerminationPosition(TERM, 1 << 40),
]

Reach: TypeAlias = "Callable[[Network], Network]"


def settings_of(folder: Path, member: int, *, by_key: bool) -> Security:
    """Write what a member proves by who it is."""
    if by_key:
        key = folder / "cluster.key"
        key.touch(0o600)
        key.write_bytes(KEY)
        return Security(cluster_key_file=str(key))
    files = authority().write(folder / f"tls-{member}", uri(member, cluster=CLUSTER))
    return Security(str(files.certificate), str(files.key), str(files.ca))


def impostor(kind: str) -> Material:
    """Return what an impostor has that says it is member 1; all of them trust our CA."""
    with TemporaryDirectory() as name:
        folder, ours, member_1 = Path(name), authority(), uri(1, cluster=CLUSTER)
        match kind:
            case "wrong cluster":
                return loaded(ours.write(folder, uri(1, cluster="other")))
            case "wrong id":
                return loaded(ours.write(folder, uri(2, cluster=CLUSTER)))
            case "reader" | "backup" | "client":
                return loaded(ours.write(folder, uri(1, Purpose(kind), CLUSTER)))
            case "expired":
                return loaded(ours.write(folder, member_1, begins=NOW - 2 * DAY, ends=NOW - DAY))
            case "not yet valid":
                return loaded(ours.write(folder, member_1, begins=NOW + DAY, ends=NOW + 2 * DAY))
            case "two names":
                return loaded(ours.write(folder, member_1, uri(0, cluster=CLUSTER)))
            case "no name":
                return loaded(ours.write(folder))
            case _:
                other = authority("alone" if kind == "self-signed" else "other CA")
                certificate, key = other.issue(member_1)
                return loaded(write(folder, certificate + other.pem, key, ours.pem))


def state_of(world: World[Ledger], members: list[int]) -> list[object]:
    """Return everything that members keep: their files, byte by byte, and what they report.

    Their audit logs are left out, which take note of impostors.
    """
    found: list[object] = []
    for member in members:
        host = world.hosts[member]
        said = host.running.status()
        found += [said.term, said.elections, said.append_position, said.commit_position]
        found += sorted(
            (str(path), hashlib.sha256(path.read_bytes()).hexdigest())
            for path in host.config.directory.rglob("*")
            if path.is_file() and path.name not in {"lock.mdb", "audit.jsonl"}
        )
    return found


async def settled(world: World[Ledger], folder: Path, *, by_key: bool) -> int:
    """Start members that prove who they are, and write a little; return the leader."""
    for member, host in world.hosts.items():
        security = settings_of(folder, member, by_key=by_key)
        host.config = attrs.evolve(host.config, security=security)
    await world.start()
    leader = await world.settled()
    assert await world.attempt(leader, b"x")
    await trio.sleep(5)
    return leader


def hello(purpose: StreamPurpose, called: int, *, credentials: bytes = b"") -> Hello:
    return Hello(
        CLUSTER,
        1,
        PROTOCOL_VERSION,
        7,
        purpose,
        called_member_id=called,
        instance=77,
        host="evil",
        port=7000,
        credentials=credentials,
    )


async def dial(network: Network, victim: int, purpose: StreamPurpose, key: bytes | None) -> None:
    """Say that we are member 1, and everything else at once."""
    said = hello(purpose, victim, credentials=b"n" * 32 if key else b"")
    with suppress(*CONNECTION_ERRORS), trio.fail_after(10):
        connection = await network.connect(Address(f"h{victim}", 7000))
        with closing(connection):
            await send_all(connection, b"".join(map(encode, [said, *([] if key else POISON)])))
            answer, _, _ = await first_message(connection)
            if isinstance(answer, Challenge):
                assert key is not None
                nonce = answer.challenge[:32]
                forged = ClusterKey(key, 1)._mac(b"dialler", said, victim, nonce)
                response = ChallengeResponse(0, answer.session_id, forged)
                await send_all(connection, b"".join(map(encode, [response, *POISON])))
                answer, _, _ = await first_message(connection)
            if isinstance(answer, HelloReply):
                assert answer.status is HelloStatus.UNAUTHORISED
            while await connection.receive(1000):
                pass


async def listen(network: Network, place: int, *, reflect: bool) -> None:
    """Take the place of a member, accept everybody, and say everything at once."""

    async def answer(connection: Connection) -> None:
        with suppress(*CONNECTION_ERRORS):
            reply: Message = HelloReply(place, HelloStatus.ACCEPTED, "", 7)
            # None comes if the dialler has seen our certificate, and says nothing at all.
            said, _, _ = await first_message(connection)
            if isinstance(said, Hello) and reflect:
                reply = Challenge(0, 1, said.credentials * 2)
            await send_all(connection, b"".join(map(encode, [reply, *POISON])))
            while await connection.receive(1000):
                pass

    await network.serve(Address(f"h{place}", 7000), answer)


def plain(network: Network) -> Network:
    return network


def with_certificate(kind: str) -> Reach:
    material = impostor(kind)
    return lambda network: TlsNetwork(network, material)


CASES: Final[dict[str, tuple[bool, Callable[[], Reach], bytes | None]]] = {
    **{
        kind: (False, partial(with_certificate, kind), None)
        for kind in (*REFUSED_BY_NAME, *REFUSED_BY_TLS)
    },
    "no TLS": (False, lambda: plain, None),
    "no key": (True, lambda: plain, None),
    "wrong key": (True, lambda: plain, OTHER),
}
"""Whether the members have a key, how the impostor reaches them, and its key."""

WORDS = ("refused ", "no TLS connection from evil", "no hello from evil")


@pytest.mark.parametrize("case", CASES)
async def test_an_impostor_that_dials_changes_nothing(
    tmp_path: Path, autojump_clock: Clock, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    by_key, make, key = CASES[case]
    async with open_ledgers(tmp_path) as world:
        leader = await settled(world, tmp_path, by_key=by_key)
        network = make()(world.network.host("evil"))
        # Member 1 itself refuses its own id, whoever says it.
        victims = sorted({0, 2, leader} - {1})
        before = state_of(world, [0, 1, 2])
        for victim in victims:
            for purpose in StreamPurpose:
                await dial(network, victim, purpose, key)
        await trio.sleep(5)
        assert state_of(world, [0, 1, 2]) == before
        assert await world.attempt(leader, b"y")
    refused = [text for text in caplog.messages if text.startswith(WORDS)]
    assert refused
    assert len(refused) <= len(victims) * len(StreamPurpose)


@pytest.mark.parametrize("reflect", [False, True], ids=["accepts", "challenges"])
@pytest.mark.parametrize("case", CASES)
async def test_an_impostor_in_the_place_of_a_member_changes_nothing(
    tmp_path: Path,
    autojump_clock: Clock,
    case: str,
    reflect: bool,  # noqa: FBT001
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "quorate.transport")
    by_key, make, _ = CASES[case]
    async with open_ledgers(tmp_path) as world, trio.open_nursery() as nursery:
        await settled(world, tmp_path, by_key=by_key)
        # The impostors say that they are member 1.
        await world.kill(1)
        alive = [0, 2]
        leader = await world.settled()
        await trio.sleep(5)
        before = state_of(world, alive)
        caplog.clear()
        network = make()(world.network.host("h1"))

        async def serve() -> None:
            await listen(network, 1, reflect=reflect)

        nursery.start_soon(serve)
        await trio.sleep(10)
        assert state_of(world, alive) == before
        for member in alive:
            assert not world.hosts[member].running.links.connected(1)
            assert world.hosts[member].running.links.trouble(1)
        assert await world.attempt(leader, b"y")
        nursery.cancel_scope.cancel()
    assert "no link to member 1 at h1:7000" in caplog.text


def test_the_poison_works_where_nobody_proves_anything(tmp_path: Path) -> None:
    """Without certificates and keys the same impostor does harm: so the tests above prove much."""

    async def main() -> None:
        async with open_ledgers(tmp_path) as world:
            await world.start()
            leader = await world.settled()
            before = state_of(world, [0, 1, 2])
            network = world.network.host("evil")
            with suppress(HandshakeError):
                await dial_open(network, (leader + 1) % 3)
            await trio.sleep(5)
            assert state_of(world, [0, 1, 2]) != before

    async def dial_open(network: Network, victim: int) -> None:
        who = next(each for each in (0, 1, 2) if each != victim)
        said = attrs.evolve(hello(StreamPurpose.CONSENSUS, victim), member_id=who)
        with closing(await network.connect(Address(f"h{victim}", 7000))) as connection:
            await send_all(connection, b"".join(map(encode, [said, *POISON])))
            with suppress(*CONNECTION_ERRORS), trio.move_on_after(5):
                while await connection.receive(1000):
                    pass

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
