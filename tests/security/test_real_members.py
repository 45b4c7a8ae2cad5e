"""Real members with certificates: they agree, refuse impostors, and take new certificates."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest
import redis
import trio

from quorate.errors import HandshakeError
from quorate.local.cluster import free_client_port, lay_out
from quorate.node.config.config import NodeConfig, Security, load_config
from quorate.pipeline.source.logs import Connect, open_log
from quorate.transport import Address, Purpose, StreamPurpose, TcpNetwork, open_stream
from quorate.transport.tls import Material, TlsFiles, TlsNetwork
from tests.security.test_impostors import impostor
from tests.support.certificates import DAY, NOW, authority, uri
from tests.support.real import PATIENCE_SECONDS, QUORATE, RealCluster, set_surely
from tests.support.transport_world import hello

CLUSTER = "local"


def secured(directory: Path, security: Security) -> list[NodeConfig]:
    """Write configurations with this table, whose paths are relative to the members' folders."""
    port = free_client_port(3)
    for config in lay_out(directory, members=3, client_port=port):
        file = config.directory / "node.toml"
        plain = attrs.evolve(load_config(file), directory=Path(), security=security)
        file.write_text(plain.to_toml())
    return lay_out(directory, members=3, client_port=port)


def issue(config: NodeConfig, *, days: int = 30, ca: str = "test CA") -> TlsFiles:
    """Write a member's certificate as a tool does that replaces one file after the other."""
    made = authority(ca).write(
        config.directory / "new", uri(config.member_id, cluster=CLUSTER), ends=NOW + days * DAY
    )
    for path in (made.key, made.certificate, made.ca):
        path.replace(config.directory / path.name)
    shutil.rmtree(config.directory / "new")
    return made


@contextmanager
def tls_cluster(directory: Path) -> Generator[tuple[RealCluster, list[NodeConfig]]]:
    configs = secured(directory, Security("own.crt", "own.key", "ca.crt"))
    for config in configs:
        issue(config)
    with RealCluster.run(directory, configs[0].own.client_port) as cluster:
        yield cluster, configs


def address_of(config: NodeConfig) -> Address:
    return Address(config.own.host, config.own.member_port)


def refused(config: NodeConfig, material: Material | None) -> str:
    """Dial a member as member 1; return why it refuses us."""

    async def dial() -> str:
        network = TlsNetwork(TcpNetwork(), material) if material else TcpNetwork()
        said = hello(1, cluster=CLUSTER, purpose=StreamPurpose.CONSENSUS, at=Address("x", 1))
        try:
            async with await open_stream(network, address_of(config), said):
                pass
        except (HandshakeError, trio.BrokenResourceError) as error:
            return str(error)
        raise AssertionError("it was let in")

    return trio.run(dial)


@pytest.mark.slow
def test_members_with_certificates_agree_and_refuse_impostors(tmp_path: Path) -> None:
    with tls_cluster(tmp_path / "c") as (cluster, configs):
        client = redis.Redis(port=cluster.leader_port)
        assert client.set("a", "1")
        assert all(status.certificate_expires_ms > 0 for status in cluster.survey().said)
        before = cluster.survey()
        assert "certificate" in refused(configs[0], impostor("wrong cluster"))
        assert refused(configs[0], impostor("other CA"))
        assert refused(configs[0], None)
        after = cluster.survey()
        for one, other in zip(before.said, after.said, strict=True):
            assert (one.term, one.elections) == (other.term, other.elections)
            assert all(peer.connected for peer in other.peers)
        assert client.get("a") == b"1"
        client.close()


def test_a_backup_needs_a_certificate_of_its_own(tmp_path: Path) -> None:
    with tls_cluster(tmp_path / "c") as (cluster, configs):

        def backup(*options: str) -> int:
            to = ["--to", str(tmp_path / "taken"), "--connect", f"127.0.0.1:{port}"]
            return subprocess.run([*QUORATE, "backup", *to, *options], check=False).returncode

        port = cluster.leader_port
        table = '[security]\ncertificate = "own.crt"\nkey = "own.key"\nca = "ca.crt"\n'
        for purpose in (Purpose.BACKUP, Purpose.CLIENT):
            authority().write(tmp_path / purpose.value, uri("x", purpose, CLUSTER))
            (tmp_path / purpose.value / "backup.toml").write_text(table)
        assert backup() == 2
        assert backup("--security", str(tmp_path / "client/backup.toml")) == 78
        assert backup("--security", str(tmp_path / "backup/backup.toml")) == 0
        connect = Connect(f"127.0.0.1:{port}", security=str(tmp_path / "backup/backup.toml"))
        with open_log(connect) as opened:
            assert opened.facts.cluster == CLUSTER
        # A tool on the machine of a member may use the member's file.
        assert backup("--security", str(configs[1].directory / "node.toml")) == 0


@pytest.mark.slow
def test_new_certificates_are_used_without_a_restart(tmp_path: Path) -> None:
    with tls_cluster(tmp_path / "c") as (cluster, configs):
        client = redis.Redis(port=cluster.leader_port)
        first = {one.member_id: one.certificate_expires_ms for one in cluster.survey().said}
        terms = {one.term for one in cluster.survey().said}
        for config in configs:
            issue(config, days=60)
        end = time.monotonic() + PATIENCE_SECONDS
        longest, last = 0.0, time.monotonic()
        while True:
            assert client.incr("n")
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            seen = cluster.survey()
            last = time.monotonic()
            if all(one.certificate_expires_ms > first[one.member_id] for one in seen.said):
                break
            assert now < end, seen.problems
        cluster.wait_until_agreed()
        assert {one.term for one in cluster.survey().said} == terms, "there was an election"
        # One that is wrong is not used, and the status says why.
        key = configs[0].directory / "own.key"
        key.chmod(0o644)
        os.utime(key)
        while not (said := cluster.survey().said[0]).certificate_trouble:
            assert time.monotonic() < end + 30
            time.sleep(0.5)
        assert "chmod 600" in said.certificate_trouble
        assert client.incr("n")
        client.close()


@pytest.mark.slow
def test_members_with_a_cluster_key_agree(tmp_path: Path) -> None:
    directory = tmp_path / "c"
    configs = secured(directory, Security(cluster_key_file="../cluster.key"))
    key = directory / "cluster.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(32))
    with RealCluster.run(directory, configs[0].own.client_port) as cluster:
        cluster.wait_until_agreed()
        words = "no cluster key|asks for|cluster_key_file"
        assert any(word in refused(configs[0], None) for word in words.split("|"))


HANGUP = """
import signal
from quorate.cli import run

def hang_up(config, opened=run.open_node):
    signal.raise_signal(signal.SIGHUP)
    return opened(config)

run.open_node = hang_up
from quorate.cli.app import main
main()
"""


def test_a_hangup_ends_no_member_that_is_opening(tmp_path: Path) -> None:
    """A tool that renews certificates knows nothing of starts and full disks."""
    config = secured(tmp_path, Security("own.crt", "own.key", "ca.crt"))[0]
    issue(config)
    command = [sys.executable, "-c", HANGUP, "run", str(config.directory / "node.toml")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as member:
        try:
            end = time.monotonic() + PATIENCE_SECONDS
            while not (config.directory / "pid").exists():
                assert member.poll() is None, f"it ended with {member.returncode}"
                assert time.monotonic() < end
                time.sleep(0.05)
        finally:
            member.kill()


@pytest.mark.slow
def test_a_plain_cluster_goes_to_tls_member_by_member(tmp_path: Path) -> None:
    directory = tmp_path / "c"
    configs = secured(directory, Security())

    def step(security: Security) -> None:
        """Restart the members one after the other with a table; writes go on."""
        for config in configs:
            cluster.kill(config.member_id)
            file = config.directory / "node.toml"
            now = attrs.evolve(config, directory=Path(), security=security)
            file.write_text(now.to_toml())
            with redis.Redis(port=cluster.ports[(config.member_id + 1) % 3]) as client:
                set_surely(client, "n", config.member_id)
            cluster.restart_dead()
            cluster.wait_until_agreed()

    files = Security("own.crt", "own.key", "ca.crt")
    with RealCluster.run(directory, configs[0].own.client_port) as cluster:
        for config in configs:
            issue(config)
        step(attrs.evolve(files, accept_plain=True, insecure_network=True))
        with pytest.raises(AssertionError, match="it was let in"):
            refused(configs[0], None)
        assert "certificate" in refused(configs[0], impostor("wrong cluster"))
        step(files)
        assert refused(configs[0], None)
        with redis.Redis(port=cluster.leader_port) as client:
            assert client.get("n") == b"2"
