"""Who is sent to the leader: cluster clients by the port that they come through, and nobody else.

What the clients send is recorded: redis-py 8.1, coredis 6.9, ioredis 6.0, node-redis 6.3 and GLIDE
2.5, as cluster clients and as plain ones. On the connections that carry their commands the two
can't be told apart, which is why there is a port for the former.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest

from quorate.errors import UnknownOutcomeError
from quorate.keyvalue.slots.hashing import key_slot
from quorate.node.config.config import Redirect
from tests.support.client_port_world import MEMBERS, RawClient, World, command

TOLD_APART = tuple(attrs.evolve(one, redirect_port=one.client_port + 60) for one in MEMBERS)
MOVED = b"-MOVED %d 10.0.0.2:7061\r\n" % key_slot(b"k0")

_REDIS_PY = (
    "HELLO 3",
    "CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type internal-ip",
    "CLIENT SETINFO LIB-NAME redis-py",
    "CLIENT SETINFO LIB-VER 8.1.0",
)
_COREDIS = ("HELLO 3", "CLIENT SETINFO LIB-NAME coredis", "CLIENT SETINFO LIB-VER 6.9.0")
_IOREDIS = ("client SETINFO LIB-VER 6.0.0", "client SETINFO LIB-NAME ioredis")
_NODE_REDIS = ("HELLO 3", "CLIENT SETINFO LIB-VER 6.3.1", "CLIENT SETINFO LIB-NAME node-redis")
_NOTICES = "CLIENT MAINT_NOTIFICATIONS ON moving-endpoint-type external-ip"
_GLIDE = ("HELLO 3", "CLIENT SETINFO LIB-NAME GlideJS", "CLIENT SETINFO LIB-VER unknown")

# How a cluster client asks for the topology, and how its other connections begin.
CLUSTER_CLIENTS: dict[str, tuple[tuple[str, ...], list[tuple[str, ...]]]] = {
    "redis-py": ((*_REDIS_PY, "CLUSTER SLOTS"), [(*_REDIS_PY, "COMMAND"), _REDIS_PY]),
    "coredis": (
        (*_COREDIS, "CLUSTER SLOTS"),
        [(*_COREDIS, "CONFIG GET cluster-require-full-coverage"), _COREDIS],
    ),
    "ioredis": (
        ("client setname ioredis-cluster(refresher)", *_IOREDIS, "cluster SLOTS"),
        [
            ("hello 3", *_IOREDIS, "info", "cluster INFO"),
            ("hello 3", *_IOREDIS, "info", "readwrite"),
        ],
    ),
    "node-redis": ((*_NODE_REDIS, "CLUSTER SLOTS"), [(*_NODE_REDIS, _NOTICES)]),
    "GLIDE": (
        (*_GLIDE, "CLIENT SETNAME glide_management_connection", "CLUSTER SLOTS"),
        [(*_GLIDE, "PING"), (*_GLIDE, "CLIENT SETNAME glide_management_connection")],
    ),
    "redis-cli -c": (("PING",), [()]),
}
PLAIN_CLIENTS: dict[str, tuple[str, ...]] = {
    "redis-py": _REDIS_PY,
    "coredis": _COREDIS,
    "ioredis": ("hello 3", *_IOREDIS, "info"),
    "node-redis": (*_NODE_REDIS, _NOTICES),
    "GLIDE": (*_GLIDE, "INFO REPLICATION"),
    "redis-cli": ("COMMAND DOCS",),
    "socket": (),
}


async def replies(client: RawClient, lines: tuple[str, ...]) -> bytes:
    """Send commands, and return the replies to them."""
    asked = b"".join(command(*line.split()) for line in lines)
    await client.send(asked + command("ECHO", "the end"))
    end = b"$7\r\nthe end\r\n"
    return (await client.receive_until(end, chunk_bytes=1 << 20)).removesuffix(end)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A member with a port for cluster clients, as all members have."""
    async with World.opened(tmp_path / "tables", redirect_port=0) as opened:
        opened.member.topology = attrs.evolve(opened.member.topology, members=TOLD_APART)
        yield opened


@pytest.mark.parametrize("name", CLUSTER_CLIENTS)
async def test_a_cluster_client_follows_the_leader(world: World, name: str) -> None:
    topology, beginnings = CLUSTER_CLIENTS[name]
    listed = await replies(await world.connect(), topology)
    assert b":7060\r\n" in listed or "CLUSTER SLOTS" not in " ".join(topology).upper()
    assert b":7000\r\n" not in listed
    connections = [await world.connect(redirected=True) for _ in beginnings]
    for connection, beginning in zip(connections, beginnings, strict=True):
        assert b"MOVED" not in await replies(connection, (*beginning, "SET k0 0", "GET k0"))
    world.member.follow(1)
    for connection in connections:
        assert await replies(connection, ("SET k0 1", "GET k0")) == MOVED * 2
    late = await world.connect(redirected=True)
    assert (await replies(late, (*beginnings[0], "SET k0 1"))).endswith(MOVED)


@pytest.mark.parametrize("name", PLAIN_CLIENTS)
async def test_a_plain_client_is_served_next_to_cluster_clients_of_its_library(
    world: World, name: str
) -> None:
    topology, beginnings = CLUSTER_CLIENTS.get(name, CLUSTER_CLIENTS["redis-py"])
    await replies(await world.connect(), topology)
    for beginning in beginnings:
        await replies(await world.connect(redirected=True), (*beginning, "SET k0 0"))
    early = await world.connect()
    await replies(early, (*PLAIN_CLIENTS[name], "SET k0 1"))
    world.member.follow(1)
    late = await world.connect()
    await replies(late, PLAIN_CLIENTS[name])
    for connection in (early, late):
        lines = ("SET k0 2", "GET k0", "WATCH k0", "MULTI", "GET k0", "EXEC")
        two = b"$1\r\n2\r\n"
        expected = b"+OK\r\n" + two + b"+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n" + two
        assert await replies(connection, lines) == expected
    assert world.port.state.counters.redirections == 0


@pytest.mark.parametrize(
    ("redirect", "port", "lines", "answer"),
    [
        ("always", "port", (), b"-MOVED"),
        ("always", "redirect_port", (), b"-MOVED"),
        ("always", "port", ("RESET",), b"-MOVED"),
        ("auto", "redirect_port", ("RESET",), b"-MOVED"),
        ("auto", "port", ("CLUSTER NODES",), b"-MOVED"),
        ("auto", "port", ("CLUSTER NODES", "RESET"), b"+OK"),
        ("never", "port", (), b"+OK"),
        ("never", "redirect_port", ("CLUSTER SLOTS", "READONLY", "READWRITE"), b"+OK"),
    ],
)
async def test_the_setting_decides(
    tmp_path: Path, redirect: Redirect, port: str, lines: tuple[str, ...], answer: bytes
) -> None:
    async with World.opened(tmp_path / "t", redirect_port=0, redirect=redirect) as world:
        world.member.follow(1)
        client = await world.connect(redirected=port == "redirect_port")
        await replies(client, lines)
        assert (await replies(client, ("SET k0 1",))).startswith(answer)


async def test_a_cluster_client_loses_its_connection_where_others_get_the_error_unknown(
    world: World,
) -> None:
    """None of them knows that error. With a lost connection they deal as with a dead leader."""
    plain, cluster = await world.connect(), await world.connect(redirected=True)
    await replies(plain, ("SET k0 1",))
    ours = await world.connect(redirected=True)
    world.member.error = UnknownOutcomeError("lost")
    write = command("SET", "k0", "2")
    await plain.send(write)
    assert (await plain.receive_until(b"\r\n")).startswith(b"-UNKNOWN ")
    await cluster.send(command("PING") + write + command("MULTI"))
    assert await cluster.rest() == b"+PONG\r\n"
    for mine in (("QUORATE.REQUEST", "0", "0", "0", write), ("QUORATE.ONCE", "7", "1", "DEL", "a")):
        await ours.send(command(*mine))
        assert (await ours.receive_until(b"\r\n")).startswith(b"-UNKNOWN ")


async def test_stale_reads_are_there_also_where_nobody_is_redirected(tmp_path: Path) -> None:
    async with World.opened(tmp_path / "tables", redirect="never") as world:
        client = await world.connect()
        await replies(client, ("SET k0 1", "READONLY"))
        world.member.follow(1)
        assert await replies(client, ("GET k0", "SET k0 2")) == b"$1\r\n1\r\n+OK\r\n"
        assert world.member.stale == [command("GET", "k0")]
