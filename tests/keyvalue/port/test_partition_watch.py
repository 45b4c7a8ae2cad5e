"""QUORATE.WATCH at a member of a partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from quorate.keyvalue.slots.cluster_map import ClusterMap, Machine, Partition, encode_map
from quorate.keyvalue.slots.folder import MAP_FILE, replace_file
from quorate.keyvalue.slots.hashing import key_slot
from quorate.keyvalue.state.pushes import encode_ended
from tests.support.client_port_world import RawClient, World, command

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

OK = b"+OK\r\n"
SLOT = key_slot(b"b")
MOVED = f"MOVED {SLOT} 10.1.0.1:7102"
ELSEWHERE = key_slot(b"a")
MAP = ClusterMap(
    "orders",
    epoch=3,
    machines=tuple(Machine(n, f"10.1.0.{n}", 7100, 8100) for n in range(3)),
    partitions=(
        Partition(0, (0, 1, 2), preferred=0, founders=(0, 1, 2), slots="0-8191"),
        Partition(1, (1, 2), preferred=1, founders=(1, 2), slots="8192-16383"),
    ),
    metadata=(0, 1, 2),
)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """The leader of partition 0, which has the first half of the slots."""
    replace_file(tmp_path / MAP_FILE, encode_map(MAP))
    async with World.opened(tmp_path / "t", redirect="always", machine=tmp_path) as opened:
        await (await opened.connect()).ask(command("QUORATE.SLOTS", "FOUND", "0-8191"), OK)
        yield opened


@pytest.fixture
async def client(world: World) -> RawClient:
    """A client that speaks RESP3."""
    found = await world.connect()
    await found.send(command("HELLO", "3") + command("ECHO", "hello"))
    await found.receive_until(b"$5\r\nhello\r\n")
    return found


async def test_a_watch_ends_where_its_slot_has_left_and_names_the_next_owner(
    world: World, client: RawClient
) -> None:
    await client.send(command("QUORATE.WATCH", "{b}"))
    await client.receive_until(b":1\r\n" + b":%d\r\n" % world.member.position)
    other = await world.connect()
    await other.send(command("QUORATE.SLOTS", "FREEZE", "7", str(SLOT), "1"))
    frozen = await other.receive_until(b":1\r\n")
    revision = int(frozen.split(b"\r\n")[1][1:])
    await other.ask(command("QUORATE.SLOTS", "RELEASE", "7", "1", "0"), OK)
    await client.ask(b"", encode_ended(1, revision, MOVED))
    await client.ask(command("QUORATE.WATCH", "{b}"), f"-{MOVED}\r\n".encode())


async def test_a_watch_of_keys_of_another_partition_is_moved(client: RawClient) -> None:
    reply = f"-MOVED {ELSEWHERE} 10.1.0.1:7102\r\n"
    await client.ask(command("QUORATE.WATCH", "{a}", "AFTER", "0"), reply.encode())


async def test_a_prefix_of_several_slots_is_watched_only_on_request(
    world: World, client: RawClient
) -> None:
    await client.send(command("QUORATE.WATCH", "b") + command("ECHO", "the end"))
    refused = await client.receive_until(b"the end\r\n")
    assert refused.startswith(b"-CROSSSLOT the keys with this prefix have several slots")
    begun = b"*2\r\n:1\r\n:%d\r\n" % world.member.position
    await client.ask(command("QUORATE.WATCH", "b", "PARTITION"), begun)
    begun = b"*2\r\n:2\r\n:0\r\n"
    await client.ask(command("QUORATE.WATCH", "b", "partition", "after", "0"), begun)
