"""`quorate.connect` at real members: its writes are done once whoever dies."""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false

import asyncio

import anyio
import anyio.to_thread
import pytest
import redis

import quorate
from quorate.errors import HandshakeError, KeyValueError, NoLeaderError
from tests.support.real import RealCluster


def members(cluster: RealCluster) -> list[tuple[str, int]]:
    return [("127.0.0.1", port) for port in cluster.ports]


async def test_increments_through_kills_of_the_leader_count_exactly(whole: RealCluster) -> None:
    each, tasks, kills = 150, 8, 2
    done = 0

    async def count(name: str) -> None:
        nonlocal done
        for n in range(1, each + 1):
            assert await kv.increment(name) == n
            await kv.increment("all")
            done += 1

    def kill() -> None:
        whole.kill(whole.leader)
        whole.restart_dead()
        whole.wait_until_agreed()

    async with quorate.connect(members(whole)) as kv:
        async with anyio.create_task_group() as group:
            for n in range(tasks):
                group.start_soon(count, f"n{n}")
            for number in range(1, kills + 1):
                while done < number * each * tasks // (kills + 1):  # noqa: ASYNC110
                    await anyio.sleep(0.01)
                await anyio.to_thread.run_sync(kill)
        assert await kv.get("all") == b"%d" % (each * tasks)


async def test_a_transaction_and_a_scan_at_real_members(whole: RealCluster) -> None:
    async with quorate.connect(members(whole)) as kv:
        await kv.set_many({f"k{n}": str(n) for n in range(50)})

        async def move(t: quorate.Transaction) -> int:
            amount = int(await t.get("k7") or 0)
            t.increment("k8", amount)
            t.delete("k7")
            return amount

        await kv.transact(move)
        assert await kv.mget("k7", "k8") == [None, b"15"]
        assert len([key async for key in kv.scan("k*")]) == 49


async def test_a_watch_of_the_same_client(whole: RealCluster) -> None:
    async with quorate.connect(members(whole)) as kv, kv.watch("w:") as changes:
        await kv.set("w:1", "a")
        await kv.set("other", "b")
        await kv.delete("w:1")
        found = [await anext(changes) for _ in range(2)]
        assert [(change.kind.value, change.key) for change in found] == [
            ("set", b"w:1"),
            ("deleted", b"w:1"),
        ]
        assert found[0].position < found[1].position


def test_it_is_the_same_on_asyncio_and_without_an_event_loop(whole: RealCluster) -> None:
    async def use() -> bytes | None:
        async with quorate.connect(members(whole)) as kv:
            await asyncio.gather(*(kv.increment("n") for _ in range(100)))
            return await kv.get("n")

    assert asyncio.run(use()) == b"100"
    with quorate.connect_blocking(members(whole)) as kv:
        assert kv.increment("n") == 101
        with kv.watch("n") as changes:
            kv.increment("n")
            assert next(changes).value == b"102"


async def test_users_log_in_with_their_passwords(whole: RealCluster) -> None:
    secret = "a-secret-of-dora"
    with redis.Redis(port=whole.ports[0]) as root:
        root.acl_setuser(
            "dora", enabled=True, passwords=[f"+{secret}"], keys=["d:*"], categories=["+@all"]
        )
    async with quorate.connect(members(whole), user="dora", password=secret) as kv:
        await kv.set("d:1", "x")
        async with anyio.create_task_group() as tasks:  # in one batch with one that is refused
            for n in range(5):
                tasks.start_soon(kv.set, f"d:{n}", "y")
            with pytest.raises(KeyValueError, match="NOPERM"):
                await kv.set("other", "x")
        assert await kv.get("d:4") == b"y"
    with pytest.raises(KeyValueError, match="WRONGPASS"):
        async with quorate.connect(members(whole), user="dora", password="wrong"):
            pass
    with redis.Redis(port=whole.ports[0]) as root:
        root.acl_deluser("dora")


async def test_a_port_of_something_else() -> None:
    async def talk(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(b"SSH-2.0-OpenSSH_9.2\r\n")

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, talk)
        with pytest.raises(HandshakeError, match=f"127.0.0.1:{port}: not a RESP reply"):
            async with quorate.connect([("127.0.0.1", port)]):
                pass
        tasks.cancel_scope.cancel()
    with pytest.raises(NoLeaderError, match=f"127.0.0.1:{port}: connection refused"):
        async with quorate.connect([("127.0.0.1", port)], patience_s=0.05):
            pass
