"""redis-py works unmodified: plain, asyncio and cluster clients, in RESP2 and RESP3."""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import asyncio
from collections.abc import Iterator

import pytest
import redis
import redis.asyncio
from redis.cluster import ClusterNode, LoadBalancingStrategy, RedisCluster

from tests.support.real import RealCluster


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def client(whole: RealCluster, request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    """A plain client, at a follower: it forwards."""
    protocol: int = request.param
    with redis.Redis(port=whole.follower_port, protocol=protocol) as plain:
        yield plain


def test_values_are_read_back(client: redis.Redis) -> None:
    value = bytes(range(256)) * 64
    assert client.set("key", value)
    assert client.get("key") == value
    assert client.get("other") is None


def test_counters_conditions_and_expiry(client: redis.Redis) -> None:
    assert client.incr("count", 5) == 5
    assert client.set("key", "1", nx=True, px=60_000)
    assert client.set("key", "2", nx=True) is None
    assert 0 < client.pttl("key") <= 60_000
    assert client.delete("key", "count") == 2


def test_many_keys_at_once(client: redis.Redis) -> None:
    names = {f"key:{n}": b"%d" % n for n in range(500)}
    assert client.mset(names)
    assert client.mget(list(names)) == list(names.values())
    assert sorted(client.scan_iter(match="key:1*")) == sorted(
        name.encode() for name in names if name.startswith("key:1")
    )
    assert client.dbsize() == 500


def test_a_pipeline_returns_all_replies_in_order(client: redis.Redis) -> None:
    with client.pipeline(transaction=False) as pipeline:
        for n in range(1000):
            pipeline.set(f"key:{n}", n)
            pipeline.get(f"key:{n}")
        replies = pipeline.execute()
    assert replies == [reply for n in range(1000) for reply in (True, b"%d" % n)]


def test_a_transaction_is_done_as_one(client: redis.Redis) -> None:
    with client.pipeline(transaction=True) as pipeline:
        pipeline.set("a", 1)
        pipeline.incr("a")
        pipeline.get("a")
        assert pipeline.execute() == [True, 2, b"2"]


def test_a_watched_key_that_changes_ends_the_transaction(
    client: redis.Redis, whole: RealCluster
) -> None:
    with redis.Redis(port=whole.leader_port) as other, client.pipeline() as pipeline:
        pipeline.watch("key")
        other.set("key", "theirs")
        pipeline.multi()
        pipeline.set("key", "ours")
        with pytest.raises(redis.WatchError):
            pipeline.execute()
    assert client.get("key") == b"theirs"


def test_a_lock_recipe_without_scripts_works(client: redis.Redis) -> None:
    assert client.set("lock", "mine", nx=True, px=10_000)
    assert client.set("lock", "theirs", nx=True, px=10_000) is None
    with client.pipeline() as pipeline:
        pipeline.watch("lock")
        assert pipeline.get("lock") == b"mine"
        pipeline.multi()
        pipeline.delete("lock")
        assert pipeline.execute() == [1]
    assert client.set("lock", "theirs", nx=True, px=10_000)


def test_a_lock_that_needs_scripts_says_so(client: redis.Redis) -> None:
    lock = client.lock("lock", timeout=1)
    assert lock.acquire()
    with pytest.raises(redis.ResponseError, match="scripts are not supported"):
        lock.release()


def test_what_one_member_acknowledged_every_member_reads(whole: RealCluster) -> None:
    clients = [redis.Redis(port=port) for port in whole.ports]
    for n in range(30):
        clients[n % 3].set("key", n)
        assert [client.get("key") for client in clients] == [b"%d" % n] * 3
    for client in clients:
        client.close()


def test_an_unknown_command_is_an_error_reply(client: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError, match="unknown command"):
        client.execute_command("NOSUCH", "a")


def test_asyncio_clients_work(whole: RealCluster) -> None:
    async def main() -> list[object]:
        async with redis.asyncio.Redis(port=whole.follower_port) as client:
            await asyncio.gather(*(client.set(f"key:{n}", n) for n in range(100)))
            return list(await asyncio.gather(*(client.get(f"key:{n}") for n in range(100))))

    assert asyncio.run(main()) == [b"%d" % n for n in range(100)]


def test_the_cluster_client_finds_the_leader_and_all_members(whole: RealCluster) -> None:
    with RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", whole.follower_port)]) as client:
        for n in range(50):
            client.set(f"key:{n}", n)
        assert [client.get(f"key:{n}") for n in range(50)] == [b"%d" % n for n in range(50)]
        assert {node.port for node in client.get_nodes()} == {port + 60 for port in whole.ports}
        assert [node.port for node in client.get_primaries()] == [whole.leader_port + 60]


def test_the_asyncio_cluster_client_works(whole: RealCluster) -> None:
    async def main() -> object:
        async with redis.asyncio.RedisCluster(port=whole.follower_port, host="127.0.0.1") as client:
            await client.set("key", "value")
            return await client.get("key")

    assert asyncio.run(main()) == b"value"


def test_readonly_clients_read_from_replicas(whole: RealCluster) -> None:
    nodes = [ClusterNode("127.0.0.1", whole.leader_port)]
    strategy = LoadBalancingStrategy.RANDOM_REPLICA
    with RedisCluster(startup_nodes=nodes, load_balancing_strategy=strategy) as client:
        client.set("key", "value")
        assert client.get("key") in {b"value", None}  # it may be older, as asked for
