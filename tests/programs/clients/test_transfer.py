"""`quorate transfer` on a real cluster, while clients write."""

# redis-py is typed in parts only
# mypy: disable-error-code="no-untyped-call"
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

import asyncio
import os
import signal
import subprocess
import threading

import pytest
import redis
import redis.asyncio
from redis.cluster import RedisCluster

from tests.support.real import QUORATE, RealCluster


def transfer(to: int, port: int, *options: str) -> subprocess.CompletedProcess[str]:
    command = [*QUORATE, "transfer", "--to", str(to), "--connect", f"127.0.0.1:{port}", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_leadership_goes_round_while_clients_write_and_no_write_fails(whole: RealCluster) -> None:
    stop = threading.Event()
    counted = [0, 0, 0]
    troubles: list[Exception] = []

    def write(member: int) -> None:
        with redis.Redis(port=whole.ports[member]) as client:
            while not stop.is_set():
                try:
                    client.incr(f"count:{member}")
                except redis.RedisError as error:
                    troubles.append(error)
                    return
                counted[member] += 1

    writers = [threading.Thread(target=write, args=(member,)) for member in range(3)]
    for writer in writers:
        writer.start()
    leader = whole.leader
    for step in (1, 2, 3):
        to = (leader + step) % 3
        done = transfer(to, whole.ports[step % 3])
        assert done.returncode == 0, done.stderr
        assert f"member {to} takes over\nmember {to} leads term" in done.stdout
        assert whole.leader == to
    stop.set()
    for writer in writers:
        writer.join()
    assert troubles == []
    with redis.Redis(port=whole.ports[0]) as client:
        assert [int(client.get(f"count:{member}") or 0) for member in range(3)] == counted


def commands_of_others(whole: RealCluster, member: int) -> int:
    """How many commands a member has been asked, but for those of this function."""
    with redis.Redis(port=whole.ports[member]) as client:
        return int(client.info("stats")["total_commands_processed"])


@pytest.mark.parametrize("asked", ["leader_port", "follower_port"])
def test_cluster_clients_follow_the_leader_and_plain_clients_stay(
    whole: RealCluster, asked: str
) -> None:
    async def follow_async(port: int, to: int) -> None:
        async with redis.asyncio.RedisCluster(host="127.0.0.1", port=port) as client:
            assert await client.set("before", "1")
            await asyncio.to_thread(transfer, to, port)
            for n in range(5):
                assert await client.set(f"after:{n}", n)
            assert [node.port for node in client.get_primaries()] == [whole.ports[to] + 60]

    plain = [redis.Redis(port=port) for port in whole.ports]
    port: int = getattr(whole, asked)
    with RedisCluster(host="127.0.0.1", port=port) as client:
        old = whole.leader
        for n in range(10):
            client.set(f"before:{n}", n)
        assert all(each.set("plain", "1") for each in plain)
        to = (old + 1) % 3
        assert transfer(to, port).returncode == 0
        for n in range(10):
            assert client.set(f"after:{n}", n)
            assert all(each.incr("plain") for each in plain)
        assert [node.port for node in client.get_primaries()] == [whole.ports[to] + 60]
        before = commands_of_others(whole, to)
        assert all(client.get(f"after:{n}") == b"%d" % n for n in range(10))
        assert commands_of_others(whole, to) >= before + 10
    asyncio.run(follow_async(port, old))
    for each in plain:
        assert each.set("plain", "2")
        each.close()


def test_a_member_that_may_be_behind_takes_over(whole: RealCluster) -> None:
    to = (whole.leader + 1) % 3
    with redis.Redis(port=whole.follower_port) as client:
        client.set("before", "1")
        done = transfer(to, whole.ports[0], "--even-if-behind")
        assert done.returncode == 0, done.stderr
        assert whole.leader == to
        assert client.get("before") == b"1"


def test_a_member_that_hears_too_late_that_it_should_take_over_changes_nothing(
    whole: RealCluster,
) -> None:
    seen = whole.wait_until_agreed().leader
    assert seen is not None
    leader, term = seen.member_id, seen.term
    to = (leader + 1) % 3
    pid = int((whole.directory / f"member-{to}" / "pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    try:
        done = transfer(to, whole.ports[leader])
        with redis.Redis(port=whole.ports[leader]) as client:
            for i in range(20):
                client.set(f"after:{i}", i)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert done.returncode == 1
    assert f"member {to} did not take over in time" in done.stderr
    with redis.Redis(port=whole.ports[to]) as client:
        assert client.get("after:19") == b"19"
    after = whole.wait_until_agreed().leader
    assert after is not None
    assert (after.member_id, after.term) == (leader, term)


def test_what_can_not_be_done_is_refused(whole: RealCluster) -> None:
    done = transfer(7, whole.ports[0])
    assert done.returncode == 1
    assert done.stderr == "transfer to '7': expected the id of a member, one of 0, 1, 2\n"
    with redis.Redis(port=whole.follower_port) as client:
        with pytest.raises(redis.ResponseError, match="REFUSED 'jump' is none of the things"):
            client.execute_command("QUORATE.CONTROL", "jump")
        pipe = client.pipeline()
        pipe.execute_command("QUORATE.CONTROL", "transfer", "1")
        with pytest.raises(redis.ResponseError, match="inside MULTI"):
            pipe.execute()


def test_nobody_there(whole: RealCluster) -> None:
    done = transfer(1, 1)
    assert (done.returncode, done.stderr) == (2, "127.0.0.1:1: connection refused\n")
