"""Clients get through the death of a leader."""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import asyncio

import pytest
import redis
import redis.asyncio
from redis.backoff import ConstantBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import ClusterDownError
from redis.retry import Retry

from tests.support.real import PATIENCE_SECONDS, RealCluster, set_surely


def test_a_write_at_a_follower_waits_for_the_next_leader(whole: RealCluster) -> None:
    leader = whole.leader
    with redis.Redis(port=whole.ports[(leader + 1) % 3]) as client:
        client.set("before", 1)
        whole.kill(leader)
        assert set_surely(client, "after", 2) <= 1
        assert client.mget("before", "after") == [b"1", b"2"]


def test_a_cluster_client_follows_the_leader(whole: RealCluster) -> None:
    nodes = [ClusterNode("127.0.0.1", port) for port in whole.ports]
    with RedisCluster(startup_nodes=nodes) as client:
        for n in range(20):
            client.set(f"key:{n}", n)
        whole.kill(whole.leader)
        for n in range(20, 40):
            client.set(f"key:{n}", n)
        assert [client.get(f"key:{n}") for n in range(40)] == [b"%d" % n for n in range(40)]


def test_an_asyncio_cluster_client_follows_the_leader(whole: RealCluster) -> None:
    async def main() -> list[object]:
        async with redis.asyncio.RedisCluster(host="127.0.0.1", port=port) as client:
            for n in range(20):
                await client.set(f"key:{n}", n)
            whole.kill(leader)
            for n in range(20, 40):
                await client.set(f"key:{n}", n)
            return [await client.get(f"key:{n}") for n in range(40)]

    leader = whole.leader
    port = whole.ports[(leader + 1) % 3]
    assert asyncio.run(main()) == [b"%d" % n for n in range(40)]


def test_the_dead_leaders_client_goes_to_another_member_and_loses_nothing(
    whole: RealCluster,
) -> None:
    leader = whole.leader
    with redis.Redis(port=whole.ports[leader], retry=Retry(ConstantBackoff(0), 0)) as client:
        for n in range(100):
            client.set(f"key:{n}", n)
        whole.kill(leader)
        with pytest.raises(redis.ConnectionError):
            client.set("key:0", "unknown")
    with redis.Redis(port=whole.ports[(leader + 1) % 3]) as client:
        assert client.mget([f"key:{n}" for n in range(1, 100)]) == [
            b"%d" % n for n in range(1, 100)
        ]


def test_without_a_quorum_writes_are_refused(whole: RealCluster) -> None:
    leader = whole.leader
    others = [member for member in range(3) if member != leader]
    for member in others:
        whole.kill(member)
    with redis.Redis(
        port=whole.ports[leader],
        retry=Retry(ConstantBackoff(0), 0),
        socket_timeout=PATIENCE_SECONDS,
    ) as client:
        with pytest.raises(redis.ResponseError):  # it may not have noticed: the outcome is unknown
            client.set("key", "value")
        with pytest.raises(ClusterDownError):
            client.set("key", "value")
