"""How a member proves who it is: its files, new certificates, and the protected default."""

# pyright: reportPrivateUsage=false

import logging
import os
import shutil
import signal
import ssl
from pathlib import Path
from random import Random
from typing import cast

import attrs
import pytest
import trio
import trio.testing

from quorate.cli.app import run
from quorate.cli.run import _reload_on_hangup
from quorate.embed import Node, open_node
from quorate.errors import ConfigurationError, HandshakeError
from quorate.local.cluster import lay_out, local_configs
from quorate.node.config.config import NodeConfig, Security, load_config
from quorate.node.upkeep.access import Access, CertificateWatch, open_access, open_reader_access
from quorate.node.upkeep.exposure import (
    check_client_exposure,
    check_exposure,
    is_loopback,
)
from quorate.transport import (
    PROTOCOL_VERSION,
    Accept,
    Address,
    ChallengeWith,
    Hello,
    Identity,
    PeerSecurity,
    Purpose,
    Reject,
    StreamPurpose,
    TcpNetwork,
    open_stream,
)
from quorate.transport.testing import MemoryNetwork
from quorate.transport.tls import TlsNetwork
from tests.support.certificates import DAY, NOW, authority, uri
from tests.support.transport_world import address, simulated

NAMES = ("own.crt", "own.key", "ca.crt")


@pytest.fixture
def config(tmp_path: Path) -> NodeConfig:
    (alone,) = lay_out(tmp_path, members=1, client_port=7000, security=Security(*NAMES))
    issue(alone)
    return alone


def issue(config: NodeConfig, *, days: int = 30, member: int = 0) -> None:
    name = uri(member, cluster=config.cluster)
    authority().write(config.directory, name, ends=NOW + days * DAY)


def access(config: NodeConfig) -> Access:
    now_ms = int(NOW.timestamp() * 1000)
    return open_access(config, TcpNetwork(), lambda: now_ms, Random(0))


def watch_of(config: NodeConfig) -> tuple[CertificateWatch, TlsNetwork]:
    made = access(config)
    assert made.watch is not None
    assert isinstance(made.network, TlsNetwork)
    return made.watch, made.network


async def test_paths_are_relative_to_the_file(config: NodeConfig) -> None:
    watch, network = watch_of(config)
    assert str(network.material.identity) == "quorate://local/member/0"
    assert not watch.trouble


async def test_a_member_does_not_start_with_the_certificate_of_another_one(
    config: NodeConfig,
) -> None:
    issue(config, member=1)
    with pytest.raises(ConfigurationError, match="it is for quorate://local/member/1: expected"):
        async with open_node(config):
            pass


async def test_a_new_certificate_is_used_once_the_files_have_settled(config: NodeConfig) -> None:
    watch, network = watch_of(config)
    first = network.material
    assert not watch.look()
    issue(config, days=60)
    assert not watch.look()
    assert network.material is first
    assert watch.look()
    assert network.material is not first
    assert watch.expires_ms > first.expires_ms
    assert not watch.look()


async def test_an_operator_need_not_wait_for_that(config: NodeConfig) -> None:
    watch, network = watch_of(config)
    issue(config, days=60)
    assert watch.look(asked=True)
    assert not watch.trouble
    assert network.material.stamp == config_stamp(config)


def config_stamp(config: NodeConfig) -> object:
    assert config.security.tls is not None
    return config.security.tls.stamp()


async def test_a_hangup_has_the_member_look(config: NodeConfig) -> None:
    looked = trio.Event()

    class Fake:
        def reload_certificates(self) -> None:
            looked.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_reload_on_hangup, cast("Node", Fake()))
        await trio.testing.wait_all_tasks_blocked()
        signal.raise_signal(signal.SIGHUP)
        with trio.fail_after(10):
            await looked.wait()
        nursery.cancel_scope.cancel()


async def test_a_wrong_one_is_not_used_and_reported_until_it_is_right(
    config: NodeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    watch, network = watch_of(config)
    first = network.material
    issue(config, member=5)
    looks = [watch.look() for _ in range(4)]
    assert not any(looks)
    assert network.material is first
    assert "it is for quorate://local/member/5" in watch.trouble
    assert caplog.text.count("the new certificate is not used, the old one stays") == 1
    (config.directory / "own.key").unlink()
    assert [watch.look() for _ in range(2)] == [False, False]
    assert "No such file" in watch.trouble
    issue(config, days=90)
    assert [watch.look() for _ in range(2)] == [False, True]
    assert not watch.trouble


async def test_files_that_are_as_they_were_are_no_trouble(config: NodeConfig) -> None:
    watch, _ = watch_of(config)
    key = config.directory / "own.key"
    aside = config.directory / "aside"
    os.link(key, aside)
    key.unlink()
    assert [watch.look() for _ in range(2)] == [False, False]
    assert watch.trouble
    aside.rename(key)
    assert [watch.look() for _ in range(2)] == [False, True]
    assert not watch.trouble


@pytest.mark.parametrize(("days", "warnings"), [(60, 0), (13, 1)])
def test_the_end_is_warned_of_once_a_day(
    config: NodeConfig, days: int, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        issue(config, days=days)
        watch, _ = watch_of(config)
        for _ in range(3):
            watch._warn_of_the_end()

    trio.run(main)
    assert caplog.text.count("own.crt ends in 31") == warnings


class Nobody:
    """An authenticator that lets nobody in."""

    def connect(self, hello: Hello, identity: Identity | None) -> Accept | ChallengeWith | Reject:
        return Reject("closed today")

    def respond(self, hello: Hello, challenge: bytes, credentials: bytes) -> Accept | Reject:
        raise AssertionError(credentials)


async def test_a_program_may_judge_by_itself_who_comes_in(tmp_path: Path) -> None:
    (alone,) = local_configs(1, tmp_path)
    async with open_node(alone, security=PeerSecurity(Nobody())):
        hello = Hello("local", -1, PROTOCOL_VERSION, 0, StreamPurpose.BACKUP)
        where = Address(alone.own.host, alone.own.member_port)
        with pytest.raises(HandshakeError, match="refused us: closed today"):
            await open_stream(TcpNetwork(), where, hello)


# --- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "mode", "words"),
    [
        (31, 0o600, "31 bytes: expected 32 or more, type: head -c 32 /dev/urandom"),
        (4097, 0o600, "more than 4096 bytes: expected 32"),
        (32, 0o644, "its mode is 0644: expected 0600, type: chmod 600"),
        (None, 0o600, "cannot be read: No such file"),
        (32, 0o600, None),
    ],
)
def test_a_cluster_key_is_long_and_secret(
    tmp_path: Path, size: int | None, mode: int, words: str | None
) -> None:
    file = tmp_path / "cluster.key"
    if size is not None:
        file.write_bytes(os.urandom(size))
        file.chmod(mode)
    security = Security(cluster_key_file=str(file))
    good = tmp_path / "good.key"
    good.touch(0o600)
    good.write_bytes(bytes(32))
    both = Security(cluster_key_file=str(good), other_cluster_key_file=str(file))
    for each in (security, both):
        if words is None:
            open_reader_access(each, cluster="c", network=TcpNetwork())
            continue
        with pytest.raises(ConfigurationError, match=words):
            open_reader_access(each, cluster="c", network=TcpNetwork())


@pytest.mark.parametrize("purpose", list(Purpose))
def test_a_reader_uses_a_certificate_of_its_purpose(tmp_path: Path, purpose: Purpose) -> None:
    files = authority().write(tmp_path, uri(1, purpose))
    security = Security(str(files.certificate), str(files.key), str(files.ca))
    if purpose is not Purpose.CLIENT:
        open_reader_access(security, cluster="test", network=TcpNetwork())
        return
    with pytest.raises(ConfigurationError, match=r"expected one for .*/reader/NAME or .*/backup"):
        open_reader_access(security, cluster="test", network=TcpNetwork())


def test_a_reader_uses_new_files_from_the_next_dial_on(tmp_path: Path) -> None:
    @simulated
    async def check() -> None:
        files = authority().write(tmp_path, uri("nightly", Purpose.BACKUP))
        security = Security(str(files.certificate), str(files.key), str(files.ca))
        memory = MemoryNetwork(Random(0))
        access = open_reader_access(security, cluster="test", network=memory.host("x"))
        network = access.network
        assert isinstance(network, TlsNetwork)
        first = network.material
        new = authority("new CA").write(tmp_path / "new", uri("nightly", Purpose.BACKUP))
        for name in ("certificate", "key"):
            shutil.copy(getattr(new, name), getattr(files, name))
            with pytest.raises(OSError, match="refused"):
                await network.connect(address(0))
            # The key of another certificate, and then an unknown CA: the old files stay in use.
            assert network.material is first
        shutil.copy(new.ca, files.ca)
        with pytest.raises(OSError, match="refused"):
            await network.connect(address(0))
        assert network.material.authorities == {
            ssl.PEM_cert_to_DER_cert(authority("new CA").pem.decode())
        }

    check()


# --- the table ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"certificate": "a"}, "key and ca: missing: TLS needs all three"),
        ({"key": "a", "ca": "b"}, "certificate: missing"),
        (
            dict(zip(("certificate", "key", "ca", "cluster_key_file"), "abcd", strict=True)),
            "either",
        ),
        ({"other_cluster_key_file": "a"}, "expected cluster_key_file, too"),
        ({"client_certificates": "required"}, "client_certificates: expected certificate"),
        ({"client_certificates": "some"}, 'one of "none", "optional", "required"'),
        ({"tls_minimum": "1.1"}, 'one of "1.2", "1.3"'),
        ({"insecure_network": 1}, "true or false"),
        ({"ca": 1}, "the path of a file"),
    ],
)
def test_a_wrong_table_is_refused_in_words(
    tmp_path: Path, values: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Security(**values)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    (alone,) = lay_out(tmp_path, members=1, client_port=7000)
    file = alone.directory / "node.toml"
    lines = [
        f"{k} = {str(v).lower() if isinstance(v, int) else repr(v)}" for k, v in values.items()
    ]
    file.write_text("\n".join([file.read_text(), "[security]", *lines]))
    with pytest.raises(ConfigurationError, match=rf"security\.?.*{words}"):
        load_config(file)


def test_a_table_is_written_and_read(config: NodeConfig) -> None:
    text = attrs.evolve(config, directory=Path()).to_toml()
    assert "[security]" in text
    (config.directory / "node.toml").write_text(text)
    assert load_config(config.directory / "node.toml").security == config.security


# --- the protected default ------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
async def test_hosts_that_are_loopback(host: str) -> None:
    assert await is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "fe80::1%lo"])
async def test_hosts_that_are_not(host: str) -> None:
    assert not await is_loopback(host)


async def test_a_host_without_an_address_is_neither() -> None:
    """It may have one a moment later, and would then be open to all."""
    with pytest.raises(OSError, match=r"(?i)name|resolution"):
        await is_loopback("no-such-host.invalid")


@pytest.mark.parametrize(
    "security",
    [
        Security(*NAMES),
        Security(cluster_key_file="k"),
        Security(insecure_network=True),
        None,
    ],
)
async def test_an_open_port_on_the_network_needs_a_word_in_the_file(
    config: NodeConfig, security: Security | None
) -> None:
    config = attrs.evolve(config, member_listen_host="0.0.0.0")
    if security is not None:
        await check_exposure(attrs.evolve(config, security=security))
        return
    with pytest.raises(ConfigurationError, match=r"0\.0\.0\.0.*TLS, a cluster key") as caught:
        await check_exposure(attrs.evolve(config, security=Security()))
    for line in ("certificate = ", "cluster_key_file = ", "insecure_network = true"):
        assert line in str(caught.value)


def test_the_command_ends_with_status_78_and_the_lines_to_add(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # the command adds its own
    (alone,) = lay_out(tmp_path, members=1, client_port=7000)
    file = alone.directory / "node.toml"
    file.write_text('member_listen_host = "0.0.0.0"\n' + file.read_text())
    assert run(["run", str(file)]) == 78
    told = capsys.readouterr().err
    assert "insecure_network = true" in told
    assert not (alone.directory / "log").exists()


PLAIN, SECURE, BOTH = (7000, 0), (0, 7443), (7000, 7443)
ASKED = Security(*NAMES, client_certificates="required")


@pytest.mark.parametrize(
    ("ports", "security"),
    [
        (PLAIN, Security(require_users=True)),
        (PLAIN, Security(insecure_network=True)),
        (SECURE, ASKED),
        (SECURE, Security(*NAMES, require_users=True)),
        (BOTH, Security(*NAMES, require_users=True)),
        # With a stricter line, that one decides.
        (PLAIN, Security(require_users=True, insecure_network=True)),
        (SECURE, attrs.evolve(ASKED, insecure_network=True)),
        (BOTH, attrs.evolve(ASKED, insecure_network=True)),  # none: the plain port asks for nothing
    ],
)
async def test_a_port_of_clients_on_the_network_with_a_word_in_the_file(
    config: NodeConfig, ports: tuple[int, int], security: Security
) -> None:
    config = with_ports(config, *ports)
    config = attrs.evolve(config, client_listen_host="0.0.0.0", security=security)
    certified = security.client_certificates == "required" and ports == SECURE
    assert await check_client_exposure(config) is (certified or security.require_users)


@pytest.mark.parametrize(
    ("ports", "security"),
    [
        (PLAIN, Security()),
        (PLAIN, Security(cluster_key_file="k")),
        (PLAIN, Security(*NAMES)),
        (SECURE, Security(*NAMES)),
        (SECURE, Security(*NAMES, client_certificates="optional")),
        (BOTH, ASKED),  # the plain port asks for nothing
    ],
)
async def test_an_open_port_of_clients_on_the_network_is_refused(
    config: NodeConfig, ports: tuple[int, int], security: Security
) -> None:
    config = with_ports(config, *ports)
    assert not await check_client_exposure(attrs.evolve(config, security=security))
    config = attrs.evolve(config, client_listen_host="0.0.0.0", security=security)
    with pytest.raises(ConfigurationError, match=r"client_listen_host = '0\.0\.0\.0'") as caught:
        await check_client_exposure(config)
    for line in ("require_users = true", "client_certificates = ", "insecure_network = true"):
        assert line in str(caught.value)


def with_ports(config: NodeConfig, client_port: int, tls_port: int) -> NodeConfig:
    own = attrs.evolve(config.own, client_port=client_port, tls_port=tls_port)
    members = (own if each is config.own else each for each in config.members)
    return attrs.evolve(config, members=tuple(members))


@pytest.mark.parametrize("key", ["", 'cluster_key_file = "cluster.key"'])
def test_the_command_asks_for_users_before_it_opens_a_port_of_clients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # the command adds its own
    (alone,) = lay_out(tmp_path, members=1, client_port=7000)
    file = alone.directory / "node.toml"
    file.write_text(f'client_listen_host = "0.0.0.0"\n{file.read_text()}\n[security]\n{key}\n')
    assert run(["run", str(file)]) == 78
    assert "require_users = true" in capsys.readouterr().err
    assert not (alone.directory / "log").exists()


def test_a_port_with_tls_needs_certificates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    (alone,) = lay_out(tmp_path, members=1, client_port=7000)
    file = alone.directory / "node.toml"
    last = "client_port = 7000\n"
    file.write_text(file.read_text().replace(last, last + "tls_port = 7443\n"))
    assert run(["run", str(file)]) == 78
    assert "tls_port = 7443: expected certificate, key and ca" in capsys.readouterr().err
    assert not (alone.directory / "log").exists()
