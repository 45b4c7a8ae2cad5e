"""Clients over TLS at real members: redis-py, coredis, redis-cli, and our command line."""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportMissingModuleSource=false

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import redis
import redis.asyncio
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import NoPermissionError

from quorate.client.connect import connect
from quorate.client.secure import ClientTls
from quorate.client.session_redis import SessionRedis
from quorate.errors import HandshakeError, NoLeaderError
from quorate.local.cluster import free_client_port, lay_out
from quorate.node.config.config import NodeConfig, Security, load_config
from quorate.transport import Purpose
from quorate.transport.tls import TlsFiles
from tests.support.certificates import DAY, NOW, authority, uri
from tests.support.real import PATIENCE_SECONDS, QUORATE, RealCluster, quorate

MEMBERS = 3
SECRET = "a-secret-of-alice"
TLS_ABOVE = 120
"""The TLS port of a member is this much above its client port."""


def files(folder: Path, user: str = "") -> TlsFiles:
    """Write a client's files."""
    names = [uri(user, Purpose.CLIENT, "local")] if user else []
    return authority().write(folder, *names)


def secure(
    directory: Path, port: int, members: int, security: Security, *, plain: bool = True
) -> None:
    """Write the files of members with TLS ports."""
    for config in lay_out(directory, members=members, client_port=port):
        file = config.directory / "node.toml"
        written = load_config(file)
        everyone = [
            attrs.evolve(
                one,
                tls_port=one.client_port + TLS_ABOVE,
                client_port=one.client_port if plain else 0,
                redirect_port=one.redirect_port if plain else 0,
            )
            for one in written.members
        ]
        changed = attrs.evolve(
            written, members=tuple(everyone), directory=Path(), security=security
        )
        file.write_text(changed.to_toml())
        authority().write(config.directory, uri(config.member_id, cluster="local"))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    directory = tmp_path_factory.mktemp("tls") / "cluster"
    security = Security("own.crt", "own.key", "ca.crt", client_certificates="optional")
    port = free_client_port(MEMBERS)
    secure(directory, port, MEMBERS, security)
    with RealCluster.run(directory, port) as cluster:
        with redis.Redis(port=cluster.leader_port) as root:
            rules: dict[str, Any] = {
                "categories": ["+@all", "-@dangerous"],
                "commands": ["+info"],
                "keys": ["*"],
            }
            root.acl_setuser("alice", enabled=True, passwords=[f"+{SECRET}"], **rules)
            root.acl_setuser("bob", enabled=True, keys=["b:*"], categories=["+@read"])
        yield cluster


@pytest.fixture(params=["password", "certificate"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """What redis-py needs to be alice, over TLS."""
    alice = files(tmp_path / "alice", "alice")
    options = {"ssl": True, "ssl_ca_certs": str(alice.ca), "ssl_check_hostname": False}
    if request.param == "password":
        return options | {"username": "alice", "password": SECRET}
    return options | {"ssl_certfile": str(alice.certificate), "ssl_keyfile": str(alice.key)}


def tls_port(running: RealCluster, *, leads: bool = False) -> int:
    return (running.leader_port if leads else running.follower_port) + TLS_ABOVE


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py(running: RealCluster, options: dict[str, Any], protocol: int) -> None:
    with redis.Redis(port=tls_port(running), protocol=protocol, **options) as client:
        assert client.acl_whoami() in (b"alice", "alice")
        assert client.set("a", b"x" * 100_000)
        assert client.get("a") == b"x" * 100_000
        with client.pipeline(transaction=True) as pipeline:
            pipeline.set("n", 1)
            pipeline.incr("n")
            assert pipeline.execute() == [True, 2]
        with pytest.raises(NoPermissionError):
            client.keys("*")


def test_redis_py_sees_rules_as_it_does_without_tls(running: RealCluster, tmp_path: Path) -> None:
    bob = files(tmp_path / "bob", "bob")
    with redis.Redis(
        port=tls_port(running),
        ssl=True,
        ssl_ca_certs=str(bob.ca),
        ssl_certfile=str(bob.certificate),
        ssl_keyfile=str(bob.key),
        ssl_check_hostname=False,
    ) as client:
        assert client.get("b:1") is None
        with pytest.raises(NoPermissionError):
            client.get("a:1")
        with pytest.raises(NoPermissionError):
            client.set("b:1", "x")


def test_a_certificate_of_nobody_is_an_error(running: RealCluster, tmp_path: Path) -> None:
    nobody = files(tmp_path / "nobody", "nobody")
    with (
        redis.Redis(
            port=tls_port(running),
            ssl=True,
            ssl_ca_certs=str(nobody.ca),
            ssl_certfile=str(nobody.certificate),
            ssl_keyfile=str(nobody.key),
            ssl_check_hostname=False,
        ) as client,
        pytest.raises(redis.AuthenticationError, match="names no enabled user"),
    ):
        client.get("a")


def test_redis_py_asyncio(running: RealCluster, options: dict[str, Any]) -> None:
    async def use() -> None:
        async with redis.asyncio.Redis(port=tls_port(running), **options) as client:
            assert await client.set("a", "1")
            assert await client.get("a") == b"1"
            several = [client.incr("several") for _ in range(50)]
            assert max(await asyncio.gather(*several)) >= 50

    asyncio.run(use())


def test_redis_py_cluster_is_shown_the_ports_with_tls(
    running: RealCluster, options: dict[str, Any]
) -> None:
    nodes = [ClusterNode("127.0.0.1", tls_port(running))]
    with RedisCluster(startup_nodes=nodes, **options) as client:
        assert client.set("a", "1")
        assert client.get("a") == b"1"
        found = {node.port for node in client.get_nodes()}
        assert found == {port + TLS_ABOVE for port in running.ports}


async def test_connect(running: RealCluster, tmp_path: Path) -> None:
    alice = files(tmp_path / "alice", "alice")
    ca = str(alice.ca)
    ports = [("127.0.0.1", port + TLS_ABOVE) for port in running.ports]
    plain = [("127.0.0.1", port) for port in running.ports]
    certificate = ClientTls(ca, str(alice.certificate), str(alice.key))
    logins: list[dict[str, Any]] = [
        {"tls": certificate},
        {"tls": ClientTls(ca), "user": "alice", "password": SECRET},
    ]
    for login in logins:
        async with connect(ports, **login) as kv:
            assert await kv.set("a", b"x" * 100_000)
            assert await kv.get("a") == b"x" * 100_000
    with pytest.raises(HandshakeError, match="is it a port without TLS"):
        async with connect(plain, tls=certificate):
            pass
    with pytest.raises(NoLeaderError, match=r"One with TLS needs tls=ClientTls"):
        async with connect(ports, patience_s=0.1):
            pass
    other = tmp_path / "other.crt"
    other.write_bytes(alice.certificate.read_bytes())
    with pytest.raises(HandshakeError, match=r"TLS: .*certificate"):
        async with connect(ports, tls=ClientTls(str(other))):
            pass


def test_sessions_of_redis_py(running: RealCluster, options: dict[str, Any]) -> None:
    members = [("127.0.0.1", port + TLS_ABOVE) for port in running.ports]
    with SessionRedis(members, **options) as client:
        before = client.incr("once")
        assert client.incr("once") == before + 1


@pytest.mark.slow
def test_clients_that_all_come_back_at_once_cost_no_election(
    running: RealCluster, tmp_path: Path
) -> None:
    before = {one.member_id: (one.elections, one.term) for one in running.wait_until_agreed().said}
    command = [sys.executable, "-m", "bench.lib.reconnecting", str(tls_port(running, leads=True))]
    ca = str(files(tmp_path / "crowd").ca)
    # On a busy machine some of them need more than one try.
    subprocess.run([*command, "400", ca], capture_output=True, check=True)
    after = {one.member_id: (one.elections, one.term) for one in running.wait_until_agreed().said}
    assert after == before


def test_coredis(running: RealCluster, options: dict[str, Any]) -> None:
    coredis = pytest.importorskip("coredis")
    wanted = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "username", "password")
    given = {name: options[name] for name in wanted if name in options}

    async def use() -> None:
        client = coredis.Redis(port=tls_port(running), ssl=True, ssl_check_hostname=False, **given)
        async with client:
            assert await client.set("a", "1")
            assert await client.get("a") == b"1"

    asyncio.run(use())


needs_cli = pytest.mark.skipif(not shutil.which("redis-cli"), reason="redis-cli is not there")


@needs_cli
def test_redis_cli(running: RealCluster, tmp_path: Path) -> None:
    alice = files(tmp_path / "alice", "alice")
    at = ["redis-cli", "--tls", "--cacert", str(alice.ca), "-p", str(tls_port(running))]

    def said(*words: str) -> str:
        return subprocess.run(
            [*at, *words], check=True, capture_output=True, text=True, timeout=60
        ).stdout

    told = subprocess.run([*at, "PING"], capture_output=True, text=True, check=False)
    if "Unrecognized option" in told.stdout + told.stderr:
        pytest.skip("this redis-cli was built without TLS")
    certified = ["--cert", str(alice.certificate), "--key", str(alice.key)]
    assert said(*certified, "ACL", "WHOAMI") == "alice\n"
    assert said("--user", "alice", "--pass", SECRET, "--no-auth-warning", "SET", "k", "v") == "OK\n"
    assert said(*certified, "-c", "GET", "k") == "v\n"
    assert said(*certified, "KEYS", "*").startswith("NOPERM")


def test_the_command_line_over_tls(
    running: RealCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = files(tmp_path / "alice", "alice")
    at = ("--connect", f"127.0.0.1:{tls_port(running)}")
    monkeypatch.setenv("QUORATE_CA", str(alice.ca))
    done = quorate("status", "--json", *at)
    assert done.returncode == 0, done.stderr
    done = quorate("status", *at)
    assert all(f"127.0.0.1:{port + TLS_ABOVE}" in done.stdout for port in running.ports)
    monkeypatch.setenv("QUORATE_CERTIFICATE", str(alice.certificate))
    monkeypatch.setenv("QUORATE_KEY", str(alice.key))
    done = quorate("control", "suspend", *at)
    assert (done.returncode, "no permissions" in done.stderr) == (1, True), done
    assert quorate("status", *at).returncode == 0
    # Nothing falls back to plain.
    assert quorate("status", "--connect", f"127.0.0.1:{running.ports[0]}").returncode == 2
    monkeypatch.setenv("QUORATE_CA", str(tmp_path / "missing"))
    assert quorate("status", *at).returncode == 78
    monkeypatch.setenv("QUORATE_CA", str(files(tmp_path / "x").ca))
    monkeypatch.delenv("QUORATE_CERTIFICATE")
    other = authority("other CA").write(tmp_path / "other")
    monkeypatch.setenv("QUORATE_CA", str(other.ca))
    assert quorate("status", *at).returncode == 2


def test_a_member_without_a_plain_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates are required, and a new one of the member is used without a stop."""
    port = free_client_port(1)
    security = Security("own.crt", "own.key", "ca.crt", client_certificates="required")
    secure(tmp_path / "c", port, 1, security, plain=False)
    folder = tmp_path / "c" / "member-0"
    root = files(tmp_path / "root", "default")
    for name, path in (("CA", root.ca), ("CERTIFICATE", root.certificate), ("KEY", root.key)):
        monkeypatch.setenv(f"QUORATE_{name}", str(path))
    at = ("--connect", f"127.0.0.1:{port + TLS_ABOVE}")
    command = [*QUORATE, "run", "--stop-at-eof", str(folder / "node.toml")]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        try:
            agreed = wait_for(lambda: quorate("status", "--json", *at).returncode == 0)
            assert agreed
            assert quorate("control", "snapshot", *at).returncode == 0
            options = {"ssl_certfile": str(root.certificate), "ssl_keyfile": str(root.key)}
            client = redis.Redis(
                port=port + TLS_ABOVE,
                ssl=True,
                ssl_ca_certs=str(root.ca),
                ssl_check_hostname=False,
                **options,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            )
            assert client.set("a", "1")
            before = expires(at)
            renew(load_config(folder / "node.toml"))
            child.send_signal(signal.SIGHUP)
            assert wait_for(lambda: expires(at) > before)
            assert client.get("a") == b"1", "the old connection is used on"
            client.close()
        finally:
            assert child.stdin is not None
            child.stdin.close()
            assert child.wait(PATIENCE_SECONDS) == 0


def wait_for(condition: Any) -> bool:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
    return True


def expires(at: tuple[str, str]) -> int:
    """When the certificate ends that a new connection is shown, by the member's status."""
    found = json.loads(quorate("status", "--json", *at).stdout)
    expires_ms: int = found["members"][0]["status"]["certificate_expires_ms"]
    return expires_ms


def renew(config: NodeConfig) -> None:
    new = authority().write(
        config.directory / "new", uri(config.member_id, cluster="local"), ends=NOW + 60 * DAY
    )
    for path in (new.key, new.certificate):
        path.replace(config.directory / path.name)
