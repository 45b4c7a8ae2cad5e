"""Users of a real cluster, as redis-py manages them: plain and asyncio, in RESP2 and RESP3."""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from tests.programs.clients.test_control import connect
from tests.support.real import PATIENCE_SECONDS, RealCluster, quorate

SECRET = "hunter2-in-no-file"
OTHER = "correct-horse-battery"
REVOKED_WITHIN_S = 5.0


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def root(whole: RealCluster, request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    """A client of the default user, at a follower."""
    protocol: int = request.param
    with redis.Redis(port=whole.follower_port, protocol=protocol, decode_responses=True) as client:
        yield client
        client.acl_deluser("alice", "bob", "carol")
        client.acl_log_reset()


# For redis-py a wrong password is a broken connection, so it logs in again, ten times. Each answer
# is later than the one before, up to 3 s.
ONCE = Retry(NoBackoff(), 0)
ONCE_ASYNC = AsyncRetry(NoBackoff(), 0)


def as_user(
    cluster: RealCluster, member: int, name: str, secret: str = SECRET, retry: Retry | None = None
) -> redis.Redis:
    options: dict[str, Any] = {} if retry is None else {"retry": retry}
    return redis.Redis(
        port=cluster.ports[member],
        username=name,
        password=secret,
        decode_responses=True,
        **options,
    )


def passwords(client: redis.Redis, name: str) -> list[str]:
    found: Any = client.acl_getuser(name)
    return list(found["passwords"])


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_users_are_the_same_at_all_members(root: redis.Redis, whole: RealCluster) -> None:
    assert root.acl_setuser(
        "alice",
        enabled=True,
        passwords=[f"+{SECRET}"],
        categories=["+@read", "-@dangerous"],
        commands=["+set", "+ping", "+acl|whoami", "-mget"],
        keys=["a:*"],
    )
    assert sorted(root.acl_users()) == ["alice", "default"]
    lines = root.acl_list()
    assert lines[1] == "user default on nopass ~* &* +@all"
    for member in range(3):
        with as_user(whole, member, "alice") as alice:
            assert alice.acl_whoami() == "alice"
            assert alice.set("a:1", member)
            assert alice.get("a:1") == str(member)
            with pytest.raises(NoPermissionError):
                alice.set("b:1", "x")
            with pytest.raises(NoPermissionError):
                alice.mget("a:1")
            with pytest.raises(NoPermissionError):
                alice.keys("*")
        with redis.Redis(port=whole.ports[member], decode_responses=True) as client:
            assert client.acl_list() == lines
        stranger = as_user(whole, member, "alice", "wrong", ONCE)
        with stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()


def test_a_user_is_described_as_redis_py_expects(root: redis.Redis) -> None:
    assert root.acl_getuser("bob") is None
    assert root.acl_setuser("bob")
    found: Any = root.acl_getuser("bob")
    assert found["flags"] == ["off"]
    assert found["passwords"] == []
    assert found["categories"] == ["-@all"]
    assert found["commands"] == []
    assert found["keys"] == []
    assert root.acl_setuser(
        "bob",
        enabled=True,
        nopass=True,
        reset=True,
        categories=["+@string", "-@write"],
        commands=["+set", "-getrange"],
        keys=["cache:*", "objects:*"],
        channels=["message:*"],
    )
    found = root.acl_getuser("bob")
    assert set(found["flags"]) == {"on", "nopass"}
    assert found["enabled"] is True
    assert found["categories"] == ["-@all", "+@string", "-@write"]
    assert found["commands"] == ["+set", "-getrange"]
    assert found["keys"] == ["~cache:*", "~objects:*"]
    assert found["channels"] == ["&message:*"]
    assert found["selectors"] == []
    # passwords: two, then one of them is removed
    root.acl_setuser("bob", enabled=True, reset=True, passwords=[f"+{SECRET}", f"+{OTHER}"])
    assert len(passwords(root, "bob")) == 2
    root.acl_setuser("bob", enabled=True, passwords=[f"-{OTHER}"])
    assert len(passwords(root, "bob")) == 1
    digest = "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8"
    root.acl_setuser("bob", enabled=True, reset=True, hashed_passwords=[f"+{digest}"])
    assert passwords(root, "bob") == [digest]


def test_the_rest_of_redis_py_s_commands(root: redis.Redis) -> None:
    assert {"read", "write", "string", "cluster-admin"} <= set(root.acl_cat())
    assert "get" in root.acl_cat("read")
    assert isinstance(root.acl_help(), list)
    assert len(root.acl_genpass()) == 64
    assert len(root.acl_genpass(555)) == 139
    with pytest.raises(redis.DataError):
        root.acl_genpass("x")  # type: ignore[arg-type]
    assert root.acl_load()
    assert root.acl_save()
    assert root.acl_whoami() == "default"
    root.acl_setuser("carol", enabled=True, nopass=True, keys=["a"], commands=["+get"])
    assert root.acl_dryrun("carol", "get", "a") == "OK"
    assert "no permissions" in str(root.acl_dryrun("carol", "set", "a", "1"))
    with pytest.raises(redis.ResponseError, match="Error in ACL SETUSER modifier '\\+nosuch'"):
        root.acl_setuser("carol", commands=["+nosuch"])
    with pytest.raises(redis.ResponseError, match="cannot be removed"):
        root.acl_deluser("default")


def test_what_was_denied_is_listed(root: redis.Redis, whole: RealCluster) -> None:
    member = whole.ports.index(root.get_connection_kwargs()["port"])
    root.acl_log_reset()
    root.acl_setuser("carol", enabled=True, nopass=True, keys=["cache:*"], commands=["+get"])
    with as_user(whole, member, "carol") as carol:
        assert carol.get("cache:0") is None
        with pytest.raises(NoPermissionError):
            carol.get("violation")
        with pytest.raises(NoPermissionError):
            carol.set("cache:0", 1)
    log: Any = root.acl_log()
    # redis-py itself was denied CLIENT SETINFO, as by Redis
    assert [entry["object"] for entry in log[:2]] == ["set", "violation"]
    assert len(root.acl_log(count=1)) == 1
    newest = log[0]
    assert newest["reason"] == "command"
    assert newest["object"] == "set"
    assert newest["username"] == "carol"
    assert float(newest["age-seconds"]) >= 0
    info = newest["client-info"]  # in RESP3, redis-py leaves it as it is
    assert " user=carol " in info if isinstance(info, str) else info["user"] == "carol"
    assert {"count", "context", "entry-id", "timestamp-created"} <= newest.keys()
    assert root.acl_log_reset()
    assert root.acl_log() == []


def test_asyncio_users(root: redis.Redis, whole: RealCluster) -> None:
    async def use() -> None:
        async with redis.asyncio.Redis(port=whole.leader_port, decode_responses=True) as client:
            await client.acl_setuser("alice", enabled=True, passwords=[f"+{SECRET}"],
                                     keys=["*"], categories=["+@all"])  # fmt: skip
            found: Any = await client.acl_getuser("alice")
            assert found["keys"] == ["~*"]
        async with redis.asyncio.Redis(
            port=whole.follower_port, username="alice", password=SECRET, decode_responses=True
        ) as alice:
            assert await alice.set("a", 1)
            assert await alice.acl_whoami() == "alice"
            async with alice.pipeline(transaction=True) as pipeline:
                pipeline.incr("a")
                pipeline.get("a")
                assert await pipeline.execute() == [2, "2"]
        async with redis.asyncio.Redis(
            port=whole.follower_port,
            username="alice",
            password="wrong",
            retry=ONCE_ASYNC,
        ) as stranger:
            with pytest.raises(redis.AuthenticationError):
                await stranger.ping()

    assert root.acl_whoami() == "default"
    asyncio.run(use())


def test_a_deleted_user_is_out_everywhere_once_that_is_answered(
    root: redis.Redis, whole: RealCluster
) -> None:
    root.acl_setuser("alice", enabled=True, passwords=[f"+{SECRET}"], keys=["*"],
                     categories=["+@all"])  # fmt: skip
    raw = [as_user(whole, member, "alice").connection_pool.get_connection() for member in range(3)]
    for connection in raw:
        connection.send_command("SET", "a", "1")
        assert connection.read_response() == "OK"
    began = time.monotonic()
    assert root.acl_deluser("alice") == 1
    assert time.monotonic() - began < REVOKED_WITHIN_S
    # Answered means that all members have the entry; they apply it with the next heartbeat.
    for connection in raw:
        until(lambda one=connection: not _writes(one))  # type: ignore[misc]
        connection.disconnect()
    assert time.monotonic() - began < REVOKED_WITHIN_S


def _writes(connection: Any) -> bool:
    try:
        connection.send_command("SET", "a", "2")
        return bool(connection.read_response() == "OK")
    except redis.RedisError:
        return False


def test_a_secret_is_in_no_file_and_users_survive(whole: RealCluster, tmp_path: Path) -> None:
    with redis.Redis(port=whole.follower_port, decode_responses=True) as root:
        root.acl_setuser("alice", enabled=True, passwords=[f"+{SECRET}", f"+{OTHER}"], keys=["*"],
                         categories=["+@all"])  # fmt: skip
        root.acl_setuser("alice", enabled=True, passwords=[f"-{OTHER}"])
        with as_user(whole, 0, "alice") as alice:
            alice.set("marker-in-a-file", "marker-in-a-file")
        lines = root.acl_list()
    assert quorate("control", "snapshot", connect(whole, 0)).returncode == 0
    backup = tmp_path / "backup"
    done = quorate("backup", "--to", str(backup), connect(whole, 0))
    assert done.returncode == 0, done.stderr
    follower = (whole.leader + 1) % 3
    whole.kill(follower)
    whole.restart_dead()
    whole.wait_until_agreed()
    with redis.Redis(port=whole.ports[follower], decode_responses=True) as root:
        assert root.acl_list() == lines
        with as_user(whole, follower, "alice") as alice:
            assert alice.get("marker-in-a-file") == "marker-in-a-file"
        root.acl_deluser("alice")
    found = {SECRET: 0, OTHER: 0, "marker-in-a-file": 0}
    files = [
        file
        for top in (whole.directory, whole.directory.parent, backup)
        for file in top.rglob("*")
        if file.is_file()
    ]
    for file in files:
        data = file.read_bytes()
        for text in found:
            found[text] += text.encode() in data
    assert found[SECRET] == found[OTHER] == 0, "a secret is in a file"
    assert found["marker-in-a-file"] > 3  # the search would have found it


def test_the_command_line_logs_in(
    root: redis.Redis, whole: RealCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.acl_setuser("alice", enabled=True, passwords=[f"+{SECRET}"], keys=["*"],
                     commands=["+quorate.status"])  # fmt: skip
    monkeypatch.setenv("QUORATE_USER", "alice")
    monkeypatch.setenv("QUORATE_PASSWORD", SECRET)
    assert quorate("status", connect(whole, 0)).returncode == 0
    refused = quorate("control", "snapshot", connect(whole, 0))
    assert refused.returncode != 0
    assert "no permissions to run the 'quorate.control' command" in refused.stderr
    monkeypatch.setenv("QUORATE_PASSWORD", "wrong")
    assert "WRONGPASS" in quorate("status", connect(whole, 0)).stdout


def test_an_election_logs_nobody_out(whole: RealCluster) -> None:
    leader = whole.leader
    member = (leader + 1) % 3
    with redis.Redis(port=whole.ports[member], decode_responses=True) as root:
        root.acl_setuser("alice", enabled=True, passwords=[f"+{SECRET}"], keys=["*"],
                         categories=["+@all"])  # fmt: skip
    connection = as_user(whole, member, "alice").connection_pool.get_connection()
    connection.send_command("SET", "a", "1")
    assert connection.read_response() == "OK"
    whole.kill(leader)
    unknown: list[str] = []
    for value in range(2, 12):
        connection.send_command("SET", "a", str(value))
        try:
            assert connection.read_response() == "OK"
        except redis.ResponseError as error:  # the leader has died with this write
            unknown.append(str(error).partition(" ")[0])
        time.sleep(0.2)
    assert unknown in ([], ["UNKNOWN"])
    connection.send_command("ACL", "WHOAMI")
    assert connection.read_response() == "alice"
    connection.disconnect()
    # A change is answered although a member is down, within the bound.
    began = time.monotonic()
    with redis.Redis(port=whole.ports[member], decode_responses=True) as root:
        root.acl_setuser("alice", enabled=True, commands=["-del"])
    assert time.monotonic() - began < REVOKED_WITHIN_S
    whole.restart_dead()
    whole.wait_until_agreed()
    with as_user(whole, leader, "alice") as alice:  # it knows her after its start
        assert alice.get("a") == "11"
        with pytest.raises(NoPermissionError):
            alice.delete("a")
        alice.acl_deluser("alice")
