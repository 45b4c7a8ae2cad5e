"""A client keeps the newest map, and asks for another one only when it has to."""

import re
from collections.abc import Callable
from random import Random

import anyio
import msgspec
import pytest
from trio.testing import MockClock

from quorate.client.dialling import Dialler
from quorate.client.partitioned.map_reply import MapReply, decode_reply_untrusted
from quorate.client.partitioned.placement import Placement
from quorate.errors import NoLeaderError, WireError
from quorate.keyvalue.slots.cluster_map import ClusterMap, Machine, Partition
from quorate.transport import Address
from tests.client.partitioned.conftest import Connect
from tests.support.fake_cluster import FakeStream
from tests.support.fake_partitions import FakePartitions

MAP = ClusterMap(
    "orders",
    7,
    (Machine(1, "a", 7000, 8000, 7500), Machine(2, "b", 7000, 8000)),
    (
        Partition(0, (1, 2), 2, (1, 2), "0-8191", "0-8191"),
        Partition(1, (1, 2), 1, (1, 2), "8192-16000", "8192-16383"),
    ),
    (1, 2),
)
GIVEN = (Address("given", 1),)


def reply(cluster_map: ClusterMap = MAP, leaders: dict[int, int] | None = None) -> MapReply:
    return MapReply(cluster_map, leaders or {}, 0)


def placed(*, tls: bool = False) -> Placement:
    dialler = Dialler()
    dialler.tls = object() if tls else None  # type: ignore[assignment]
    return Placement(dialler, GIVEN, reply(), Random(1))


def test_a_reply_is_decoded() -> None:
    data = msgspec.json.encode({"map": MAP, "leaders": {"0": 2, "1": None}, "partition": 1})
    assert decode_reply_untrusted(data) == MapReply(MAP, {0: 2}, 1)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "QUORATE.MAP"),
        (b"[]", "QUORATE.MAP"),
        (b'{"map": null, "partition": 0}', "knows no map of the cluster yet"),
        (b'{"map": {}, "partition": 0}', "expected one that quorate wrote"),
        (b'{"map": {}, "partition": "x"}', "QUORATE.MAP"),
        (b'{"map": 1, "leaders": {"x": 1}, "partition": 0}', "QUORATE.MAP"),
        (b" " * (3 << 20), "expected 2097152 at most"),
    ],
)
def test_a_malformed_reply_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(WireError, match=re.escape(words)):
        decode_reply_untrusted(data)


def test_the_leader_comes_first_and_else_where_it_is_meant_to_be() -> None:
    placement = placed()
    assert placement.members_of(0) == (Address("b", 7001), Address("a", 7001))
    placement.take(reply(leaders={0: 1}))
    assert placement.members_of(0) == (Address("a", 7001), Address("b", 7001))
    assert placement.partition_at(Address("b", 7002)) == 1
    assert placement.partition_at(Address("b", 7003)) is None


def test_with_tls_only_members_with_such_a_port_count() -> None:
    assert placed(tls=True).members_of(1) == (Address("a", 7502),)


def test_an_older_map_changes_nothing() -> None:
    placement = placed()
    old = msgspec.structs.replace(MAP, epoch=6, partitions=MAP.partitions[:1])
    placement.take(reply(old, {0: 1}))
    assert placement.map == MAP
    assert placement.members_of(0)[0] == Address("b", 7001)


def test_members_serving_a_prefix() -> None:
    placement = placed()
    assert placement.members_serving(b"{b}/") == placement.members_of(0)
    assert placement.owner_of(16001) is None


def test_what_members_say_counts_until_a_newer_map() -> None:
    placement = placed()
    assert placement.learn(5, 0, "MOVED 5 a:7002")
    assert placement.owner_of(5) == 1
    for asked, text in [(1, "MOVED 5 a:7002"), (1, "MOVED 5 x:1"), (1, "TRYAGAIN"), (None, "")]:
        assert not placement.learn(5, asked, text)
        assert placement.owner_of(5) == 0, "it goes by the map again"
    assert placement.learn(5, 0, "MOVED 5 a:7002")
    placement.take(reply(msgspec.structs.replace(MAP, epoch=8)))
    assert placement.owner_of(5) == 0


async def test_after_a_large_move_the_map_is_asked_for_once(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    asked, keys = list[FakeStream](), [f"key {n}" for n in range(300)]
    for partition in world.partitions:
        partition.answer = noting(partition.answer, asked)  # type: ignore[assignment,method-assign]
    async with connected() as kv:
        await kv.get_many(keys)
        first = world.partitions[0]
        world.move(*(key.encode() for key in keys if world.owner_of(key.encode()) is first))
        before, requests = len(asked), len(first.requests)
        for key in keys:
            await kv.set(key, "1")
        assert len(asked) - before <= 3
        assert len(first.requests) - requests < 60
    assert len(first.fed.log) < 60


def noting(
    answer: Callable[[FakeStream, list[bytes]], bytes], asked: list[FakeStream]
) -> Callable[[FakeStream, list[bytes]], bytes]:
    def noting(stream: FakeStream, words: list[bytes]) -> bytes:
        asked.extend([stream] * (words == [b"QUORATE.MAP"]))
        return answer(stream, words)

    return noting


async def test_patience_is_not_spent_on_maps(
    world: FakePartitions, connected: Connect, autojump_clock: MockClock
) -> None:
    async with connected(patience_s=2) as kv:
        await kv.set("a", "1")
        for each in world.partitions:
            each.down = {*each.addresses}
        before = anyio.current_time()
        with pytest.raises(NoLeaderError):
            await kv.get("b")
        assert anyio.current_time() - before < 4
