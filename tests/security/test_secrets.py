"""Secrets are in no file: what members, backups and logs hold is searched byte by byte."""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import base64
import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from quorate.cli.app import run
from quorate.node.config.config import NodeConfig, Security
from tests.security.test_real_members import secured, tls_cluster
from tests.support.real import MEMBERS, QUORATE, RealCluster

MARKER = b"this-is-found-everywhere"
SECRETS = [
    b"set-by-acl-setuser-1",
    b"set-and-removed-again-2",
    b"of-a-login-3",
    b"of-a-wrong-login-4",
    b"of-a-hello-5",
    b"next-to-a-wrong-rule-6",
    b"in-a-transaction-7",
    b"in-a-session-8",
    b"of-a-user-without-name-9",
    b"in-a-dry-run-10",
    b"to-be-removed-though-absent-11",
    b"said-before-the-command-was-whole-12",
]
AS_NAME = b"typed-where-the-name-belongs-13"
"""ACL LOG shows this one, as Redis does. It is in no file."""


def forms(secret: bytes) -> set[bytes]:
    """Return the forms in which somebody could find a secret."""
    found = {secret, secret.hex().encode(), secret.hex().upper().encode()}
    # Anywhere in a longer text in base64, its three phases differ at the edges.
    for phase in range(3):
        text = base64.b64encode(bytes(phase) + secret)
        found.add(text[4:-4] if phase else text[: len(secret) // 3 * 4])
    return {form for form in found if len(form) > 8}


def holders(folder: Path, secret: bytes, *, but: tuple[str, ...] = ()) -> list[str]:
    """Return the files below a folder that hold a secret in any form."""
    needles, found = forms(secret), list[str]()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in but:
            data = path.read_bytes()
            found += [str(path)] * any(needle in data for needle in needles)
    return found


def use_secrets(cluster: RealCluster) -> None:
    """Say secrets in every way in which clients say them, at all members."""
    for number, port in enumerate(cluster.ports):
        with once_only(port) as client:
            say_secrets(client, f"user-{number}".encode(), port)


def once_only(port: int) -> redis.Redis:
    """Connect as redis-py does, which otherwise tries a wrong password four times, with pauses."""
    return redis.Redis(port=port, retry=Retry(NoBackoff(), 0))


def say_secrets(client: redis.Redis, name: bytes, port: int) -> None:
    (first, second, login, wrong, greeting, rule, queued, once, nobody, dry, absent, _) = SECRETS

    def order(*words: bytes) -> None:
        with suppress(redis.RedisError):
            client.execute_command(*words)

    order(b"ACL", b"SETUSER", name, b"on", b">" + first, b">" + login, b">" + greeting, b"~*")
    order(b"ACL", b"SETUSER", name, b"+@all", b">" + second)
    order(b"ACL", b"SETUSER", name, b"<" + second, b"<" + absent)
    order(b"ACL", b"SETUSER", name, b"<" + second)
    order(b"ACL", b"SETUSER", name, b">" + rule, b"+no-such-command")
    order(b"ACL", b"SETUSER", b"spa ce", b">" + nobody)
    order(b"ACL", b"DRYRUN", name, b"AUTH", name, dry)
    order(b"QUORATE.ONCE", b"1", b"1", b"ACL", b"SETUSER", name, b">" + once)
    order(b"MULTI")
    order(b"ACL", b"SETUSER", name, b">" + queued)
    order(b"AUTH", name, queued)
    order(b"EXEC")
    order(b"DISCARD")
    for user, secret in ((name, login), (name, wrong), (AS_NAME, b"x")):
        with suppress(redis.RedisError), once_only(port) as other:
            other.execute_command("AUTH", user, secret)
            other.ping()
    with suppress(redis.RedisError), once_only(port) as other:
        other.execute_command("HELLO", "3", "AUTH", name, greeting, "SETNAME", "x")
    # Half a command, which a member holds when its client goes.
    with suppress(redis.RedisError), redis.Redis(port=port) as other:
        half = b"*3\r\n$4\r\nAUTH\r\n$5\r\nalice\r\n$90\r\n" + SECRETS[-1]
        connection = other.connection_pool.get_connection()
        connection.connect()
        sock = connection._sock  # pyright: ignore[reportPrivateUsage]
        assert sock is not None
        sock.sendall(half)
        connection.disconnect()


def work_and_copy(cluster: RealCluster, to: Path, *options: str) -> None:
    """Write, use secrets, take snapshots and a backup, and read all that members report."""
    with redis.Redis(port=cluster.leader_port) as client:
        client.set("marker", MARKER)
    use_secrets(cluster)
    for port in cluster.ports:
        with redis.Redis(port=port) as client:
            client.execute_command("QUORATE.CONTROL", "snapshot")
            said: list[object] = [client.execute_command(*words.split()) for words in REPORTS]
        (to.parent / f"said-{port}").write_bytes(repr(said).encode())
    for member in range(2):  # what is read back at a start is written again, too
        cluster.kill(member)
        cluster.restart_dead()
        cluster.wait_until_agreed()
    with redis.Redis(port=cluster.leader_port) as client:
        client.set("marker-2", MARKER)
    leader = f"127.0.0.1:{cluster.leader_port}"
    command = [*QUORATE, "backup", "--to", str(to), "--connect", leader, *options]
    subprocess.run(command, check=True)


REPORTS = [
    "INFO everything",
    "ACL LOG",
    "ACL LIST",
    "ACL GETUSER user-0",
    "CLIENT LIST",
    "QUORATE.STATUS",
    "CONFIG GET *",
]


def dump(folder: Path) -> None:
    """Write what `quorate log dump` shows of each member next to it."""
    for number in range(3):
        command = [*QUORATE, "log", "dump", str(folder / "c" / f"member-{number}")]
        shown = subprocess.run(command, capture_output=True, check=False)
        (folder / f"dump-{number}").write_bytes(shown.stdout + shown.stderr)


def assert_found_nowhere(folder: Path, secrets: list[bytes], *, but: tuple[str, ...] = ()) -> None:
    assert len(holders(folder, MARKER)) >= 4, "the search finds too little"
    assert len(list(folder.rglob("audit.jsonl"))) == MEMBERS
    assert b"login_failed" in (folder / "c/member-0/audit.jsonl").read_bytes()
    assert holders(folder / "c", AS_NAME) == []
    for secret in secrets:
        assert holders(folder, secret, but=but) == []


@pytest.mark.slow
def test_passwords_and_the_cluster_key_are_in_no_file(tmp_path: Path) -> None:
    directory = tmp_path / "c"
    configs = secured(directory, Security(cluster_key_file="../cluster.key"))
    key, secret = directory / "cluster.key", os.urandom(32)
    key.touch(0o600)
    key.write_bytes(secret)
    table = tmp_path / "backup.toml"
    table.write_text(f'[security]\ncluster_key_file = "{key}"\n')
    with RealCluster.run(directory, configs[0].own.client_port) as cluster:
        work_and_copy(cluster, tmp_path / "backup", "--security", str(table))
        assert_found_nowhere(tmp_path, [*SECRETS, secret], but=("cluster.key",))
    dump(tmp_path)
    assert_found_nowhere(tmp_path, [*SECRETS, secret], but=("cluster.key",))


@pytest.mark.slow
def test_private_keys_are_in_no_file_but_their_own(tmp_path: Path) -> None:
    with tls_cluster(tmp_path / "c") as (cluster, configs):
        work_and_copy(
            cluster, tmp_path / "backup", "--security", str(configs[0].directory / "node.toml")
        )
    dump(tmp_path)
    secrets = [line for config in configs for line in lines_of(config)]
    assert len(secrets) >= 6
    assert_found_nowhere(tmp_path, [*SECRETS, *secrets], but=("own.key",))


def lines_of(config: NodeConfig) -> list[bytes]:
    """Return the lines of a member's private key."""
    lines = (config.directory / "own.key").read_bytes().splitlines()
    return [line for line in lines if not line.startswith(b"-----")]


def test_a_trace_of_the_simulation_has_no_password(tmp_path: Path) -> None:
    """Its users have `secret-0`, `secret-1` and so on, by which they log in all the time."""
    trace = tmp_path / "trace"
    outcome = run(["simulate", "--scenario", "acl", "--seed", "3", "--trace", str(trace)])
    assert outcome == 0
    data = trace.read_bytes()
    assert data.count(b"\n") > 1000
    for number in range(1, 10):
        assert holders(tmp_path, b"secret-%d" % number) == []


def test_the_search_finds_every_form(tmp_path: Path) -> None:
    secret = SECRETS[0]
    for number, form in enumerate(
        [
            b"x" + secret + b"y",
            secret.hex().encode(),
            *(base64.b64encode(bytes(phase) + secret + b"and more") for phase in range(3)),
        ]
    ):
        path = tmp_path / str(number)
        path.write_bytes(form)
        assert holders(tmp_path, secret) == [str(path)], form
        path.unlink()
