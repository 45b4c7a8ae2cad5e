"""Who came in at the member port, or was refused, is in the audit log."""

import hashlib
import json
import ssl
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
import trio

import quorate
from quorate.errors import HandshakeError
from quorate.keyvalue.protocol.resp import encode_command
from quorate.node.config.security import Security
from quorate.node.upkeep.access import CertificateWatch
from quorate.transport import (
    Certificates,
    FrameStream,
    Hello,
    PeerSecurity,
    Purpose,
    StreamPurpose,
    open_stream,
)
from quorate.transport.testing import MemoryNetwork
from quorate.transport.tls import Material, TlsFiles, TlsNetwork, load_material
from tests.security.test_impostors import impostor, loaded
from tests.support.certificates import authority, material, uri
from tests.support.transport_world import Recorder, address, hello, make_links, simulated


@attrs.define
class Noted:
    events: list[tuple[str, dict[str, Any]]] = attrs.field(factory=list[Any])

    def note(self, event: str, /, *, of: str = "", **facts: object) -> None:
        self.events.append((event, facts))


class Server(Recorder):
    """Serves readers, with nothing."""

    async def on_stream(self, hello: Hello, stream: FrameStream) -> None:
        await trio.lowlevel.checkpoint()


def reader(folder: Path) -> Material:
    return loaded(authority().write(folder, uri("spark", Purpose.READER)))


@simulated
async def check_port(folder: Path, audit: Noted) -> None:
    memory, recorder = MemoryNetwork(Random(0)), Server()
    addresses = {number: address(number) for number in range(3)}
    network = TlsNetwork(memory.host("host0"), material(0), audit=audit)
    security = attrs.evolve(PeerSecurity.by(Certificates("test")), audit=audit)
    links = make_links(0, addresses, network, recorder, security=security)
    async with trio.open_nursery() as nursery:
        await nursery.start(links.run)
        for kind in ("other CA", "wrong id"):
            with pytest.raises((HandshakeError, trio.BrokenResourceError)):
                await open_stream(
                    TlsNetwork(memory.host("x"), impostor(kind)),
                    address(0),
                    hello(1, at=address(1)),
                )
        stream = await open_stream(
            TlsNetwork(memory.host("y"), reader(folder)),
            address(0),
            hello(-1, purpose=StreamPurpose.BACKUP),
        )
        stream.close()
        nursery.cancel_scope.cancel()


def test_refusals_and_readers(tmp_path: Path) -> None:
    audit = Noted()
    check_port(tmp_path, audit)
    stranger, impostor_, admitted = audit.events
    assert stranger[0] == impostor_[0] == "refused"
    assert "certificate" in stranger[1]["reason"]
    assert impostor_[1]["claims_member"] == 1
    assert impostor_[1]["status"] == "UNAUTHORISED"
    assert admitted[0] == "reader_admitted"
    assert admitted[1]["purpose"] == "BACKUP"
    assert "spark" in admitted[1]["principal"]
    assert all(facts["address"] for _, facts in audit.events)


def test_new_certificates(tmp_path: Path) -> None:
    audit = Noted()
    files = authority().write(tmp_path, uri(0))

    def load() -> Material:
        return load_material(files, cluster="test", purposes=(Purpose.MEMBER,), name="0")

    async def check() -> None:
        network = TlsNetwork(MemoryNetwork(Random(0)).host("host0"), load())
        watch = CertificateWatch(files, load, network, lambda: 0, Random(0), audit=audit)
        issue(files, uri(1))
        watch.look(asked=True)
        issue(files, uri(0))
        watch.look(asked=True)

    trio.run(check)
    (first, refused), (second, used) = audit.events
    assert (first, second) == ("certificate_refused", "certificate_used")
    assert "member" in refused["reason"]
    der = ssl.PEM_cert_to_DER_cert(authority().pem.decode())
    assert used == {
        "identity": uri(0),
        "authorities": hashlib.sha256(der).hexdigest()[:16],
    }


def issue(files: TlsFiles, name: str) -> None:
    certificate, key = authority().issue(name)
    files.key.write_bytes(key)
    files.certificate.write_bytes(certificate)


SECRET = "hunter2-is-secret"


async def asked(stream: trio.SocketStream, *words: str) -> bytes:
    await stream.send_all(encode_command(words))
    with trio.fail_after(30):
        return bytes(await stream.receive_some(1 << 16))


async def test_a_member_writes_its_audit_log_and_no_secret_anywhere(tmp_path: Path) -> None:
    """A real member with a disk; what each event has is tested one by one elsewhere."""
    (config,) = quorate.local_configs(1, tmp_path / "m")
    security = Security(audit_log=str(tmp_path / "audit.jsonl"))
    config = attrs.evolve(config, security=security)
    async with quorate.open_node(config) as node:
        await node.wait_for_leader()
        assert node.client_address is not None
        stream = await trio.open_tcp_stream(*node.client_address)
        rules = ("on", f">{SECRET}", "~*", "+@all", "-quorate.control")
        assert await asked(stream, "ACL", "SETUSER", "alice", *rules) == b"+OK\r\n"
        await asked(stream, "QUORATE.CONTROL", "suspend")
        await node.resume()
        await asked(stream, "AUTH", "alice", "wrong")
        await asked(stream, "AUTH", "alice", SECRET)
        await asked(stream, "QUORATE.CONTROL", "suspend")
        await stream.aclose()
    path = tmp_path / "audit.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["event"], line.get("user")) for line in lines] == [
        ("started", None),
        ("users_change", "default"),
        ("users_change_done", "default"),
        ("operator", "default"),
        ("operator_done", "default"),
        ("operator", None),
        ("operator_done", None),
        ("login_failed", "alice"),
        ("login", "alice"),
        ("denied", "alice"),
        ("stopped", None),
    ]
    assert {line["outcome"] for line in lines if "outcome" in line} == {"ok"}
    for file in tmp_path.rglob("*"):  # noqa: ASYNC240 - a test
        assert not file.is_file() or SECRET.encode() not in file.read_bytes()
