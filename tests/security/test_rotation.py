"""Certificates and CAs are replaced while members run, and no link is down for long."""

# pyright: reportPrivateUsage=false

import logging
from pathlib import Path
from random import Random

import pytest
import trio

from quorate.node.upkeep.access import CertificateWatch
from quorate.transport import Certificates, PeerSecurity, Purpose
from quorate.transport.testing import MemoryNetwork
from quorate.transport.tls import Material, TlsFiles, TlsNetwork, load_material
from tests.support.certificates import DAY, NOW, authority, uri
from tests.support.transport_world import Recorder, address, make_links, simulated

MEMBERS = 3
LONGEST_SECONDS = 1.0


def now_ms() -> int:
    return int(NOW.timestamp() * 1000)


class World:
    """Three members, each with files of its own in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = [TlsFiles(*self._paths(member)) for member in range(MEMBERS)]
        self.recorders = [Recorder() for _ in range(MEMBERS)]
        self.networks: list[TlsNetwork] = []
        self.watches: list[CertificateWatch] = []

    def _paths(self, member: int) -> tuple[Path, Path, Path]:
        folder = self.folder / str(member)
        folder.mkdir(exist_ok=True)
        return folder / "own.crt", folder / "own.key", folder / "ca.crt"

    def issue(self, member: int, ca: str = "test CA", days: int = 30) -> None:
        made = authority(ca).issue(uri(member), ends=NOW + days * DAY)
        self.files[member].key.touch(0o600)
        self.files[member].key.write_bytes(made[1])
        self.files[member].certificate.write_bytes(made[0])

    def trust(self, *names: str) -> None:
        for files in self.files:
            files.ca.write_bytes(b"".join(authority(name).pem for name in names))

    async def start(self, nursery: trio.Nursery) -> None:
        memory, addresses = MemoryNetwork(Random(0)), {i: address(i) for i in range(MEMBERS)}
        for member, (files, recorder) in enumerate(zip(self.files, self.recorders, strict=True)):

            def load(files: TlsFiles = files, member: int = member) -> Material:
                return load_material(
                    files, cluster="test", purposes=(Purpose.MEMBER,), name=str(member)
                )

            network = TlsNetwork(memory.host(f"host{member}"), load())
            watch = CertificateWatch(files, load, network, now_ms, Random(member))
            security = PeerSecurity.by(Certificates("test"))
            links = make_links(member, addresses, network, recorder, security=security)
            await nursery.start(links.run)
            nursery.start_soon(watch.run, links)
            self.networks.append(network)
            self.watches.append(watch)

    def longest_outage(self) -> float:
        """Return the longest time from the end of a link, at its far end, until it is up again."""
        longest = 0.0
        for receiver, recorder in enumerate(self.recorders):
            for lost in recorder.events:
                if lost.kind == "lost":
                    dialler = self.recorders[lost.member]
                    again = [
                        event.time
                        for event in dialler.events
                        if (event.kind, event.member) == ("up", receiver)
                        # Its own end is closed first, and the other end learns of it later.
                        and event.time > lost.time - 0.01
                    ]
                    longest = max(longest, min(again, default=float("inf")) - lost.time)
        return longest

    def all_up(self) -> bool:
        return all(
            recorder.links.connected(peer)
            for member, recorder in enumerate(self.recorders)
            for peer in range(MEMBERS)
            if peer != member
        )


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging.getLogger("quorate.transport").setLevel(logging.WARNING)


@simulated
async def rotate(folder: Path, *, at_once: bool, storm: bool = False) -> None:
    made = World(folder)
    made.trust("test CA")
    for member in range(MEMBERS):
        made.issue(member)
    async with trio.open_nursery() as nursery:
        await made.start(nursery)
        await trio.sleep(3)
        assert made.all_up()
        if storm:
            for network in made.networks:
                await network._turns.acquire()
        old = [network.material for network in made.networks]
        for member in range(MEMBERS):
            made.issue(member, days=60)
            if not at_once:
                await trio.sleep(20)
        await trio.sleep(30)
        for network, before in zip(made.networks, old, strict=True):
            assert network.material.expires_ms > before.expires_ms
        assert made.all_up()
        assert made.longest_outage() < LONGEST_SECONDS
        # Each link was dialled anew, so the new certificate is what the other end has seen.
        for member, recorder in enumerate(made.recorders):
            assert all(recorder.count("up", i) >= 2 for i in range(MEMBERS) if i != member)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "one by one"])
def test_new_certificates_are_used_and_no_link_is_down_for_long(
    tmp_path: Path,
    at_once: bool,  # noqa: FBT001
) -> None:
    rotate(tmp_path, at_once=at_once)


def test_members_do_not_wait_for_the_handshakes_of_strangers(tmp_path: Path) -> None:
    """Here strangers always hold the turn that all of them have together."""
    rotate(tmp_path, at_once=True, storm=True)


def test_a_ca_is_replaced_in_three_steps(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    @simulated
    async def check() -> None:
        made = World(tmp_path)
        made.trust("test CA")
        for member in range(MEMBERS):
            made.issue(member)
        async with trio.open_nursery() as nursery:
            await made.start(nursery)
            await trio.sleep(3)
            made.trust("test CA", "new CA")
            await trio.sleep(30)
            for member in range(MEMBERS):
                made.issue(member, "new CA")
            await trio.sleep(30)
            made.trust("new CA")
            await trio.sleep(30)
            assert made.all_up()
            assert made.longest_outage() < LONGEST_SECONDS
            # The old CA is trusted no more: what it signs is not used.
            made.issue(0)
            await trio.sleep(30)
            assert "unable to get local issuer certificate" in made.watches[0].trouble
            assert made.all_up()
            nursery.cancel_scope.cancel()

    check()
    assert caplog.text.count("the new certificate is not used") == 1


def test_links_are_dialled_again_each_day(tmp_path: Path) -> None:
    @simulated
    async def check() -> None:
        made = World(tmp_path)
        made.trust("test CA")
        for member in range(MEMBERS):
            made.issue(member)
        async with trio.open_nursery() as nursery:
            await made.start(nursery)
            await trio.sleep(3)
            before = [recorder.count("up", 1) for recorder in made.recorders]
            await trio.sleep(25 * 3600)
            after = [recorder.count("up", 1) for recorder in made.recorders]
            assert after[0] == before[0] + 1
            assert made.all_up()
            assert made.longest_outage() < LONGEST_SECONDS
            nursery.cancel_scope.cancel()

    check()
